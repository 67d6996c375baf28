"""Triton's cache inside a package: read from there, also after the package moved or became read-only."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from runtime.files import read_regular
from runtime.known_digests import KnownDigests, kept_folders
from runtime.triton_key import remember_triton_key

TEXT_BYTES = 64 << 20
METADATA = frozenset(("hash", "name", "target"))  # what Triton cannot do without

_settings = threading.RLock()  # Triton's settings are the process's: threads take turns


class LocalCacheManager(FileCacheManager):  # type: ignore[misc]
    """Triton's own manager, but a group's files are found beside the group file, wherever the folder lies now."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a compiled kernel's files by name, or None if a file is absent or its text cannot be read.

        Objects are not looked at: who loads one checks it.
        """
        grp_file = self.get_file(f"__grp__{filename}")
        if grp_file is None:
            return None
        try:
            names = json.loads(read_regular(grp_file, TEXT_BYTES))["child_paths"]
            group = {name: str(Path(grp_file).parent / Path(path).name) for name, path in names.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return group if all(_readable(Path(path)) for path in group.values()) else None


def _readable(file: Path) -> bool:
    try:
        if file.suffix == ".json":
            return METADATA.issubset(json.loads(read_regular(file, TEXT_BYTES)))
        if file.suffix in (".c", ".ttir"):
            read_regular(file, TEXT_BYTES).decode()
        return file.is_file()
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def writable(folder: Path) -> bool:
    """Whether files can be created in `folder`, or it in the nearest parent that exists: not where that is a file."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


@contextmanager
def cache_scope(folder: Path, kept: Path) -> Iterator[None]:
    """Inside, Triton reads and writes compiled kernels in `folder`; a read-only folder without them: the user's cache.

    kept: where Triton's hash of itself may be remembered. Nests, and several packages may take turns, in threads too:
    the settings are restored at the end.
    """
    with _settings:
        remember_triton_key(KnownDigests(kept_folders(kept)))
        if not writable(folder) and not folder.is_dir():
            yield
            return
        yield from _scoped(folder)


def _scoped(folder: Path) -> Iterator[None]:
    with knobs.cache.scope():
        knobs.cache.dir = str(folder)
        knobs.cache.manager_class = LocalCacheManager if writable(folder) else ReadOnlyCacheManager
        yield


class ReadOnlyCacheManager(LocalCacheManager):
    """Reads from the package's folder if the kernel is there, else reads and writes the user's cache."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        packaged = os.path.join(knobs.cache.dir, key)
        if override or dump or os.path.isdir(packaged):
            super().__init__(key, override=override, dump=dump)
            return
        with knobs.cache.scope():
            knobs.cache.dir = knobs.cache.get_triton_dir("cache")
            super().__init__(key)
