"""Triton's hash of itself, remembered between processes.

It is part of every kernel's name in the cache, and made of the contents of libtriton.so, 460 MB, and of some hundred
Python files: a quarter of a second before the first kernel is found. What is remembered counts as long as none of these
files has changed, by `runtime.known_digests`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import triton
from triton.runtime import cache as triton_cache

from runtime.known_digests import KnownDigests, identity

HASHED = ("compiler", "backends", "language", "_C")  # folders of Triton that its key is made of, and runtime/cache.py
SUFFIXES = (".py", ".so", ".pyd")

_computed = triton_cache.triton_key
_remembered: str | None = None


def remember_triton_key(digests: KnownDigests) -> None:
    """From now on Triton's key is the remembered one; it is computed, and remembered, if there is none."""
    global _remembered
    if _remembered is not None:
        return
    before = _identity()
    known = digests.get(before)
    if known is None or not known.startswith(triton.__version__):
        known = str(_computed())
        if before == _identity():
            digests.put(before, known)
    _remembered = known
    triton_cache.triton_key = _key


def _key() -> str:
    assert _remembered is not None
    return _remembered


def _identity() -> str | None:
    root = Path(triton.__file__).parent
    found = [(path, os.stat(root / path)) for path in sorted(_files(root))]
    return identity(f"triton {triton.__version__} {root}", found)


def _files(root: Path) -> Iterator[str]:
    yield "runtime/cache.py"
    for room in HASHED:
        for folder, _, names in os.walk(root / room, followlinks=True):
            yield from (os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(SUFFIXES))
