"""Failed device assertions: taken from a kernel after its launch and raised. See native/debug.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

from .errors import DeviceAssertFailed


class _Failure(ctypes.Structure):
    _fields_ = (
        ("site", ctypes.c_int32), ("program", ctypes.c_int32 * 3), ("location", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
    )  # fmt: skip


#: Kernels that hold assertions, by function address: name, and the function that takes a failure.
watched: dict[int, tuple[str, Callable]] = {}


def watch(name: str, function: int, module: ctypes.CDLL) -> None:
    """Remember a loaded kernel if it holds assertions."""
    if hasattr(module, "cp_take_failure"):
        watched[function] = name, module.cp_take_failure


def raise_failures(functions: Iterable[int]) -> None:
    """Raise DeviceAssertFailed for the first of these kernels that failed, and forget failures of all."""
    errors = [error for function in functions if (error := _take(*watched[function])) is not None]
    if errors:
        raise errors[0]


def _take(name: str, take: Callable) -> DeviceAssertFailed | None:
    failure = _Failure()
    take(ctypes.byref(failure))
    if not failure.site:
        return None
    location, text = failure.location.decode(), failure.text.decode()
    return DeviceAssertFailed(location=location, kernel=name, program=tuple(failure.program), text=text)
