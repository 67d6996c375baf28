"""`python -m codegen verify`: proves the promise of a package on this machine. Imports both compiler and runtime."""

from codegen.verify.errors import CannotVerify
from codegen.verify.report import Check, Finding, Report
from codegen.verify.run import verify_package

__all__ = ["CannotVerify", "Check", "Finding", "Report", "verify_package"]
