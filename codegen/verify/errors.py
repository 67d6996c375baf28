"""What `python -m codegen verify` refuses, and how a run of the engine can fail while it is watched."""

from __future__ import annotations

from codegen.errors import CodegenError


class CannotVerify(CodegenError):
    """The folder, the weights or an option cannot be used."""

    code = "verify-refused"
    template = "{detail}"


class RunFailed(Exception):
    """An engine raised, or did not come to an end, while it ran a case in a mode. case: its index, None if several ran."""

    def __init__(self, mode: str, case: int | None, error: Exception) -> None:
        self.mode, self.case, self.error = mode, case, error
        super().__init__(f"{mode}: {type(error).__name__}: {error}")
