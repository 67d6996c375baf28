"""What `python -m codegen verify` refuses."""

from __future__ import annotations

from codegen.errors import CodegenError


class CannotVerify(CodegenError):
    """The folder, the weights or an option cannot be used."""

    code = "verify-refused"
    template = "{detail}"
