"""Every error of Stepforge by its code: what docs/errors.md lists and `python -m codegen errors CODE` explains.

An application: it imports all sides, so that a class is in the catalogue because it exists.
"""

from __future__ import annotations

import inspect
import string
from collections.abc import Iterator
from dataclasses import dataclass

import codegen.verify.errors  # noqa: F401  (its classes are in the catalogue)
from codegen.errors import CodegenError, UnknownCode
from dsl.errors import SpecError, nearest_name
from runtime.cpu.errors import CpuBackendError
from runtime.errors import RuntimeStateError

COMMAND = "python -m codegen errors"
INTRODUCTION = f"""# Errors

Every refusal is one message that names the place, the value and what is allowed, and ends its first line with a stable
code in brackets:

    specs/x.yaml:6 d_model = 3: must be even (kernels read pairs of bf16); nearest 2 or 4 [spec-odd-size]

A spec gives one line per mistake, all at once. Control characters in what a file or a name says are shown escaped.

A command that refuses its input exits with code 2 and leaves nothing half written. `{COMMAND} CODE`
explains one code. In Python, `error.code` is the code and `error.fields` (of a spec's mistake `error.path`,
`error.value`, `error.line`) is what the message was made of.
"""


@dataclass(frozen=True)
class Family:
    """One base class: whose mistakes these are."""

    base: type[Exception]
    title: str
    raised_by: str


@dataclass(frozen=True)
class Entry:
    """One class of error. template: its message, fields in braces. meaning: the first paragraph of its docstring."""

    code: str
    name: str
    module: str
    template: str
    meaning: str


FAMILIES = (
    Family(SpecError, "Specs", "`dsl.load_spec`, `python -m dsl`, and every command that reads a spec"),
    Family(CodegenError, "Building", "`python -m codegen` and `python -m autotune`"),
    Family(RuntimeStateError, "Running", "the engine and `python -m runtime`"),
    Family(CpuBackendError, "Kernels on CPUs", "the CPU backend, when a kernel is compiled or launched"),
)


def subclasses(base: type[Exception]) -> Iterator[type[Exception]]:
    """A class and all below it, in the order in which they were written."""
    yield base
    for cls in base.__subclasses__():
        yield from subclasses(cls)


def entries(family: Family) -> list[Entry]:
    """The errors of a family that can be raised: those with a code of their own, the base first if it has a message."""
    found = []
    for cls in subclasses(family.base):
        template = getattr(cls, "template", getattr(cls, "message", ""))
        if cls is family.base or not isinstance(template, str) or "code" not in vars(cls):
            continue
        found.append(Entry(vars(cls)["code"], cls.__name__, cls.__module__, template, _meaning(cls)))
    return found


def _meaning(cls: type[Exception]) -> str:
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())


def fields(template: str) -> list[str]:
    """The fields of a message."""
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def page() -> str:
    """docs/errors.md."""
    parts = [f"<!-- written by {COMMAND} --page; a test holds them equal -->\n", INTRODUCTION]
    for family in FAMILIES:
        parts.append(f"## {family.title}\n\nRaised by {family.raised_by}; base class `{family.base.__name__}`.\n")
        rows = [f"| `{e.code}` | {_cell(e.meaning)} | {_cell(e.template)} |" for e in entries(family)]
        parts.append("\n".join(["| code | what it means | message |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def explain(code: str) -> str:
    """One error in words. Raises UnknownCode."""
    known = {entry.code: (family, entry) for family in FAMILIES for entry in entries(family)}
    if code not in known:
        raise UnknownCode(value=code, hint=nearest_name(code, known))
    family, entry = known[code]
    return (
        f"{entry.code}: {entry.meaning}\n"
        f"  message: {entry.template}\n"
        f"  raised:  {entry.module}.{entry.name}, by {family.raised_by.replace('`', '')}"
    )
