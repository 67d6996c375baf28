"""The native thread pool (native/pool.c), loaded once per process."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import operator
import os
import tempfile
import threading

from . import knobs, toolchain
from .errors import BadArgument, BadKnob, KernelDamaged

_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_threads: int | None = None


def load_object(name: str, content: bytes) -> ctypes.CDLL:
    """dlopen a sealed shared object given as bytes. Nothing stays on disk unless STEPFORGE_CPU_OBJECT_DIR is set.

    Raises KernelDamaged instead of mapping code that is not what the compiler wrote.
    """
    if not toolchain.is_intact(content):
        raise KernelDamaged(name=name, reason=f"its {len(content)} bytes do not match their seal")
    folder = knobs.object_dir()
    if folder is not None:
        return _open(name, _keep_for_profilers(folder, name, content))
    with tempfile.TemporaryDirectory(prefix="stepforge-cpu-") as temporary:
        return _open(name, _keep(temporary, name, content))


def _open(name: str, path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise KernelDamaged(name=name, reason=error) from error


def _keep_for_profilers(folder: str, name: str, content: bytes) -> str:
    try:
        return _keep(folder, name, content)
    except OSError as error:
        allowed = f"a folder that can be written ({error.strerror or error})"
        raise BadKnob(name="STEPFORGE_CPU_OBJECT_DIR", value=folder, allowed=allowed) from error


def _keep(folder: str, name: str, content: bytes) -> str:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.so")
    if _read(path) != content:
        temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    return path


def library() -> ctypes.CDLL:
    """The pool, started with the default number of threads at first use. Raises CompilerMissing."""
    global _library
    with _lock:
        if _library is None:
            _library = _load()
            _library.cp_set_threads(get_num_threads(), knobs.spin_microseconds())
    return _library


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _load() -> ctypes.CDLL:
    from triton.runtime.cache import get_cache_manager

    cache = get_cache_manager(hashlib.sha256(f"cpu-pool {toolchain.fingerprint()}".encode()).hexdigest())
    path = cache.get_file("pool.so")
    content = _read(path) if path else b""
    if not toolchain.is_intact(content):  # absent or damaged: it is no part of a package, so it is made here
        content = toolchain.build_library()
        with contextlib.suppress(OSError):
            cache.put(content, "pool.so", binary=True)
    loaded = load_object("pool", content)
    loaded.cp_run_launches.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    loaded.cp_run_launches.restype = None
    loaded.cp_run_one.argtypes = [ctypes.c_void_p, ctypes.c_char_p] + [ctypes.c_uint32] * 3
    loaded.cp_run_one.restype = None
    loaded.cp_set_threads.argtypes = [ctypes.c_int, ctypes.c_int]
    loaded.cp_set_threads.restype = None
    return loaded


def get_num_threads() -> int:
    """Threads that run programs, the caller included.

    What set_num_threads said, else STEPFORGE_CPU_THREADS or OMP_NUM_THREADS (at most the processors this process may
    run on), else those processors."""
    if _threads is not None:
        return _threads
    available = len(os.sched_getaffinity(0))
    return min(knobs.requested_threads() or available, available)


def set_num_threads(count: int) -> None:
    """Use `count` threads, 1 to 256, from the next launch on. Results do not depend on it. Raises BadArgument."""
    global _threads
    most = knobs.MOST_THREADS
    if isinstance(count, bool) or not hasattr(count, "__index__") or not 1 <= operator.index(count) <= most:
        allowed = f"a whole number, at least 1 and at most {most}"
        raise BadArgument(function="set_num_threads", argument="count", value=repr(count), allowed=allowed)
    library().cp_set_threads(operator.index(count), knobs.spin_microseconds())
    _threads = operator.index(count)


def _run_first(address: int, packed: bytes, gx: int, gy: int, gz: int) -> None:
    global run_one
    run_one = library().cp_run_one
    run_one(address, packed, gx, gy, gz)


#: Run all programs of one launch (function address, packed arguments, grid) and wait for them. The first call loads the
#: library, later ones go straight to C.
run_one = _run_first
