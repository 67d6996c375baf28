"""A checkpoint directory that fails in any way costs an engine its checkpoints there, and nothing else."""

from __future__ import annotations

import logging
import resource
import shutil
import signal
from pathlib import Path

import pytest

from runtime import errors
from runtime.engine import Engine
from tests.cpu.engine.toys import Ask, agreeing_weights, drain, toy_spec

ASK = Ask(tuple(b"jackdaws love my big sphinx of quartz"), 20, temperature=0.7, seed=5)


def answer(engine: Engine, oracle) -> int:
    """Run the request, compare it with the cold one, and return how much was restored."""
    request = ASK.submit(engine)
    drain(engine)
    assert (request.output, request.finish_reason) == oracle(ASK)
    return request.restored_position


@pytest.fixture
def folder(package, weights, oracle, tmp_path) -> Path:
    """A directory with the checkpoints of ASK."""
    with Engine(package, weights, interval=0, checkpoint_dir=tmp_path / "kept") as engine:
        answer(engine, oracle)
    return tmp_path / "kept"


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/checkpoints/*.safetensors"))


def test_a_restart_finds_everything(package, weights, oracle, folder):
    with Engine(package, weights, interval=0, checkpoint_dir=folder) as engine:
        assert answer(engine, oracle) == len(ASK.prompt)
        assert (engine.stats().checkpoint_counts.read, engine.stats().refused_files) == (1, 0)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "page"])
def test_a_damaged_file_is_refused_once_and_by_name(package, weights, oracle, folder, damage, caplog):
    victims = sorted(folder.glob("*/pages/*")) if damage == "page" else files(folder)
    for victim in victims:
        content = bytearray(victim.read_bytes())
        content[-5] ^= 1
        keep = {"truncated": content[: len(content) // 2], "empty": b""}.get(damage, content)
        victim.chmod(0o600)
        victim.write_bytes(bytes(keep))
    with caplog.at_level(logging.WARNING), Engine(package, weights, interval=0, checkpoint_dir=folder) as engine:
        assert answer(engine, oracle) == 0
        assert engine.stats().refused_files > 0
        assert any(victim.name in record.getMessage() for record in caplog.records for victim in victims)
        assert answer(engine, oracle) == len(ASK.prompt)


def test_another_build_finds_nothing_there(package, oracle, folder):
    """Other weights, another stamp: the folder is shared, the files are not."""
    weights = agreeing_weights(toy_spec(), strength=0.2)
    with Engine(package, weights, interval=0, checkpoint_dir=folder) as engine:
        request = ASK.submit(engine)
        drain(engine)
        assert request.restored_position == 0 and engine.stats().refused_files == 0


def test_an_archive_of_another_build_is_refused(package, weights, tmp_path):
    with Engine(package, weights) as engine:
        engine.generate(list(ASK.prompt), max_new_tokens=3)
        engine.checkpoints.save(tmp_path / "kept")
    with Engine(package, agreeing_weights(toy_spec(), strength=0.2)) as other:
        with pytest.raises(errors.CheckpointFileForeign, match="kept"):
            other.checkpoints.load(tmp_path / "kept")
        assert not other.cache.explain().kept and other.generate(list(ASK.prompt), max_new_tokens=3).tokens


def test_a_disk_that_is_full_costs_only_the_files(package, weights, oracle, tmp_path, caplog):
    with Engine(package, weights) as engine:
        answer(engine, oracle)  # kernels are compiled, which writes files too
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with caplog.at_level(logging.WARNING), Engine(package, weights, checkpoint_dir=tmp_path / "kept") as engine:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, limit[1]))
        try:
            answer(engine, oracle)
            engine.checkpoints.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, handler)
        told = [record for record in caplog.records if "File too large" in record.getMessage()]
        assert len(told) == 1, "a repeated error is told once"
        assert not files(tmp_path / "kept")
        assert answer(engine, oracle) > 0


def test_a_directory_that_is_gone_costs_only_the_files(package, weights, oracle, tmp_path):
    folder = tmp_path / "kept"
    engine = Engine(package, weights, checkpoint_dir=folder)
    shutil.rmtree(folder)
    folder.write_text("in the way")
    answer(engine, oracle)
    assert answer(engine, oracle) > 0
    with pytest.raises(errors.RuntimeStateError, match="kept"):
        engine.close()
