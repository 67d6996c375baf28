"""Triton's hash of itself, remembered: the one that Triton would compute, anew whenever a file of it changed."""

from __future__ import annotations

import os

import pytest
import triton
from triton.runtime import cache as triton_cache

from runtime import known_digests, triton_key
from runtime.known_digests import KnownDigests


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As in a new process, with a Triton of three files; yields its folder."""
    root = tmp_path / "triton"
    for name in ("runtime/cache.py", "compiler/code.py", "_C/libtriton.so"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    monkeypatch.setattr(triton_key, "_remembered", None)
    monkeypatch.setattr(triton_cache, "triton_key", triton_cache.triton_key)  # restored at the end
    monkeypatch.setattr(triton, "__file__", str(root / "__init__.py"))
    monkeypatch.setattr(known_digests, "SETTLED_NS", 0)
    return root


@pytest.fixture
def hashed(monkeypatch):
    """Counts how often Triton hashes itself."""
    calls = []
    monkeypatch.setattr(triton_key, "_computed", lambda: calls.append(1) or f"{triton.__version__}-hash-{len(calls)}")
    return calls


def start(monkeypatch, folder):
    """A new process with what the ones before kept in `folder`: its key."""
    monkeypatch.setattr(triton_key, "_remembered", None)
    triton_key.remember_triton_key(KnownDigests([folder]))
    return triton_cache.triton_key()


def test_it_is_the_key_that_triton_computes(monkeypatch, tmp_path):
    monkeypatch.setattr(triton_cache, "triton_key", triton_cache.triton_key)
    assert start(monkeypatch, tmp_path) == start(monkeypatch, tmp_path) == str(triton_key._computed())


def test_it_is_computed_once(fresh, hashed, monkeypatch, tmp_path):
    keys = {start(monkeypatch, tmp_path / "kept") for _ in range(3)}
    assert len(keys) == len(hashed) == 1


@pytest.mark.parametrize("name", ["runtime/cache.py", "compiler/code.py", "_C/libtriton.so"])
def test_a_changed_file_is_hashed_again(fresh, hashed, monkeypatch, tmp_path, name):
    before = start(monkeypatch, tmp_path / "kept")
    stat = (fresh / name).stat()
    (fresh / name).write_text(name[::-1])  # as long as it was, and its times set back
    os.utime(fresh / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert start(monkeypatch, tmp_path / "kept") != before and len(hashed) == 2


def test_a_new_file_is_hashed_too(fresh, hashed, monkeypatch, tmp_path):
    before = start(monkeypatch, tmp_path / "kept")
    (fresh / "compiler" / "more.py").write_text("")
    assert start(monkeypatch, tmp_path / "kept") != before


def test_what_is_young_is_not_remembered(fresh, hashed, monkeypatch, tmp_path):
    monkeypatch.setattr(known_digests, "SETTLED_NS", 3_600_000_000_000)
    start(monkeypatch, tmp_path / "kept")
    start(monkeypatch, tmp_path / "kept")
    assert len(hashed) == 2


def test_a_remembered_key_of_another_version_is_not_taken(fresh, hashed, monkeypatch, tmp_path):
    KnownDigests([tmp_path / "kept"]).put(triton_key._identity(), "0.0.0-hash")
    assert start(monkeypatch, tmp_path / "kept").startswith(triton.__version__)


def test_without_a_folder_it_is_computed(fresh, hashed, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    assert start(monkeypatch, tmp_path / "file" / "kept") and len(hashed) == 1
