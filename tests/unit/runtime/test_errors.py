"""The catalogue of errors: stable codes, one each, templates that name what they are given."""

from __future__ import annotations

import string
from collections.abc import Iterator

from runtime import errors


def classes(
    base: type[errors.RuntimeStateError] = errors.RuntimeStateError,
) -> Iterator[type[errors.RuntimeStateError]]:
    for cls in base.__subclasses__():
        yield cls
        yield from classes(cls)


def test_codes_are_unique_and_own() -> None:
    codes = [cls.code for cls in classes()]
    assert len(codes) == len(set(codes)) and "runtime" not in codes


def test_every_template_says_its_code_and_fields() -> None:
    for cls in classes():
        names = [name for _, name, _, _ in string.Formatter().parse(cls.template) if name]
        error = cls(**{name: f"<{name}>" for name in names})
        assert str(error).endswith(f" [{cls.code}]")
        assert all(f"<{name}>" in str(error) for name in names)
        assert cls.__doc__
