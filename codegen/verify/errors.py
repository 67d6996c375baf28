"""What `python -m codegen verify` refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from codegen.errors import CodegenError
from runtime.errors import RuntimeStateError


class CannotVerify(CodegenError):
    """The folder, the weights or an option cannot be used."""

    code = "verify-refused"
    template = "{detail}"


class RefusedByRuntime(CannotVerify):
    """The runtime does not take the package or the weights; its own message says why."""

    def __init__(self, error: RuntimeStateError) -> None:
        self.code = error.code
        Exception.__init__(self, str(error))


@contextmanager
def cannot_verify() -> Iterator[None]:
    """Inside, what the runtime refuses is the user's to mend."""
    try:
        yield
    except RuntimeStateError as error:
        raise RefusedByRuntime(error) from error
