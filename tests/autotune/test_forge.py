"""Modules of candidates: whole whoever writes them at the same time, and made again where they are damaged."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from autotune.forge import Forge
from codegen.errors import TuneNotWritten
from codegen.render import kernel_text
from codegen.whole_file import write_whole
from dsl import ModelSpec

MATMUL = "matmul_20x50"
LARGE = 1 << 22  # characters: long enough to be seen half written


def test_two_candidates_of_one_text_share_a_module(toy: ModelSpec, tmp_path: Path) -> None:
    forge = Forge(toy, "cpu", tmp_path)
    paths = {forge.write(forge.candidate(MATMUL, values).kernel) for values in ({}, {"prefetch_bytes": 512})}
    assert len(paths) == 1, "the test shows nothing"


def test_a_module_that_is_not_what_was_rendered_is_made_again(toy: ModelSpec, tmp_path: Path) -> None:
    forge = Forge(toy, "cpu", tmp_path)
    kernel = forge.untuned.kernel(MATMUL)
    path = forge.write(kernel)
    for damage in (b"", b"raise SystemExit\n", b"\xff"):
        path.write_bytes(damage)
        assert forge.write(kernel).read_text() == kernel_text(kernel)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == [path.name]


def test_a_module_that_could_not_be_imported_is_imported_again(toy: ModelSpec, tmp_path: Path) -> None:
    texts = iter(["import no_such_module_anywhere\n", "import no_such_module_anywhere\n"])
    forge = Forge(toy, "cpu", tmp_path, lambda kernel: next(texts))
    for _ in range(2):  # the second time, nothing half made is taken for the module
        with pytest.raises(ModuleNotFoundError):
            forge.candidate(MATMUL, {})


def write_often(path: Path, times: int) -> None:
    for _ in range(times):
        write_whole(path, "x" * LARGE)


def test_a_file_that_many_write_at_once_is_whole(tmp_path: Path) -> None:
    """Threads have one process id, and processes of two machines may have the same."""
    path, found = tmp_path / "module.py", list[int]()
    threads = [threading.Thread(target=write_often, args=(path, 10)) for _ in range(2)]
    process = multiprocessing.get_context("spawn").Process(target=write_often, args=(path, 10))
    for writer in (*threads, process):
        writer.start()
    while any(writer.is_alive() for writer in (*threads, process)):
        if path.exists():
            found.append(path.stat().st_size)
    for writer in (*threads, process):
        writer.join()
    assert process.exitcode == 0
    assert set(found) == {LARGE}
    assert [file.name for file in tmp_path.iterdir()] == ["module.py"], "something half written was left"


@pytest.mark.parametrize("name", ["file/below/x.json", "x" * 300, "a\0b", "a\ud800"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TuneNotWritten, match=r"was not written.*--folder"):
        write_whole(tmp_path / name, "x")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
