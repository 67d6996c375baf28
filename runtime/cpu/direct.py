"""Launches that go from Triton to C without Python in between (native/launch.c)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from triton import knobs

from . import assertions, launcher, pool, profiling


def launch(general: launcher.KernelLauncher) -> Callable[..., None]:
    """What Triton calls to launch a kernel: a function in C, which leaves to `general` what it does not know itself.

    Where `general` has arguments in tuples or tensor descriptors, `general`."""
    formats = general.formats()
    return general if formats is None else _library().cp_direct_launcher(general, formats.encode()) or general


@functools.lru_cache
def _library() -> ctypes.PyDLL:
    """The pool's library, its functions called as those of Python."""
    loaded = ctypes.PyDLL(None, handle=pool.library()._handle)
    loaded.cp_watch_launches.argtypes, loaded.cp_watch_launches.restype = [ctypes.py_object] * 4, None
    loaded.cp_direct_launcher.argtypes = [ctypes.py_object, ctypes.c_char_p]
    loaded.cp_direct_launcher.restype = ctypes.py_object
    chain = getattr(knobs, "HookChain", None)
    loaded.cp_watch_launches(vars(launcher), vars(profiling), assertions.watched, chain)
    return loaded
