"""A time limit for one input, in the process that reads it."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LAST_RESORT = 10  # times the limit: C code that no signal interrupts ends the process, with a traceback


class Hang(BaseException):
    """An input took longer than it may. Not an Exception: no handler of the code under test takes it for its own."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread when the time is over."""

    def ring(*_: Any) -> None:
        raise Hang(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(LAST_RESORT * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
