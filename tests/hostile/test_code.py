"""What runs of a package is what its manifest vouches for; what lies in its kernel cache cannot hang a reader."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib._bootstrap_external import _code_to_timestamp_pyc  # type: ignore[attr-defined]
from pathlib import Path

import pytest
from triton import knobs

from runtime.kernel_cache import LocalCacheManager
from runtime.package import open_package
from tests.hostile import places
from tests.hostile.subject import Good, make_good
from tests.hostile.watch import within

KERNEL = {"hash": "h", "name": "kernel", "target": {"backend": "cpu"}}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    return make_good(tmp_path_factory.mktemp("code"))


def plant(source: Path, code: str) -> Path:
    """Bytecode of other code, which Python would take for that of `source`."""
    status = source.stat()
    content = _code_to_timestamp_pyc(compile(code, str(source), "exec"), int(status.st_mtime), status.st_size)
    planted = Path(importlib.util.cache_from_source(str(source)))
    planted.parent.mkdir(exist_ok=True)
    planted.write_bytes(content)
    return planted


@pytest.mark.parametrize("name", ["cpu/step.py", "cpu/__init__.py", "cpu/kernels/sample.py", "cpu/kernels/__init__.py"])
def test_bytecode_beside_a_module_does_not_run(good: Good, name: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(good.folder, package, ignore=shutil.ignore_patterns("__pycache__"))
    planted = plant(package / name, "import sys; sys.planted = True")
    before, content = sys.dont_write_bytecode, planted.read_bytes()
    opened = open_package(package)
    assert not hasattr(sys, "planted") and callable(opened.step.step)
    assert planted.read_bytes() == content and [*package.rglob("*.pyc")] == [planted]
    assert (sys.dont_write_bytecode, sys.pycache_prefix) == (before, None)


def group(content: str | None = None, make: Callable[[Path], None] | None = None) -> Callable[[Path], None]:
    """Something in the place of the file that lists a kernel's files."""
    return in_place("__grp__kernel.json", content, make)


def metadata(content: str | None = None, make: Callable[[Path], None] | None = None) -> Callable[[Path], None]:
    """Something in the place of a kernel's metadata."""
    return in_place("kernel.json", content, make)


def in_place(name: str, content: str | None, make: Callable[[Path], None] | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_text(content)
        if make is not None:
            make(folder / name)

    return apply


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a group that is null": group("null"),
    "a group that is a list": group('{"child_paths": []}'),
    "a group of numbers": group('{"child_paths": {"kernel.json": 5}}'),
    "a group of brackets": group("[" * 100_000),
    "a group that is a fifo": group(make=places.fifo),
    "a group that is endless": group(make=places.zeros),
    "a group of files that are not there": group('{"child_paths": {"kernel.json": "/etc/hostname"}}'),
    "metadata that is null": metadata("null"),
    "metadata that is a list": metadata("[1]"),
    "metadata without a name": metadata('{"hash": "h"}'),
    "metadata of brackets": metadata("[" * 100_000),
    "metadata that is a fifo": metadata(make=places.fifo),
    "metadata that is endless": metadata(make=places.zeros),
    "metadata that links to itself": metadata(make=places.loop),
    "code that is a fifo": in_place("kernel.so", None, places.fifo),
    "a source that is a fifo": in_place("kernel.c", None, places.fifo),
}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LocalCacheManager]:
    """Of a folder that holds one kernel."""
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path)
        (tmp_path / "key").mkdir()
        files = {name: str(tmp_path / "key" / name) for name in ("kernel.json", "kernel.so", "kernel.c")}
        for path in files.values():
            Path(path).write_text(json.dumps(KERNEL))
        (tmp_path / "key" / "__grp__kernel.json").write_text(json.dumps({"child_paths": files}))
        yield LocalCacheManager("key")


def test_a_good_kernel_is_found(manager: LocalCacheManager) -> None:
    found = manager.get_group("kernel.json")
    assert found is not None and set(found) == {"kernel.json", "kernel.so", "kernel.c"}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_kernel_is_not_there(manager: LocalCacheManager, name: str, tmp_path: Path) -> None:
    DAMAGE[name](tmp_path / "key")
    with within(5):
        assert manager.get_group("kernel.json") is None
