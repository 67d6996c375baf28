"""Journals that somebody else, or a broken disk, has written: never a hang or a traceback, and one stops one kernel."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from autotune import run as running
from autotune.finale import conclude
from autotune.journal import JOURNAL_BYTES, journal, set_aside
from autotune.measure import Verdict
from autotune.run import Progress, Task, run
from autotune.space import Space
from autotune.study import Search, State, open_study
from autotune.tune import attempts, run_trials
from codegen.errors import StudyDamaged, TuneInterrupted
from codegen.plan import Plan
from codegen.tuned import MEASURED, identity
from dsl import ModelSpec
from tests.autotune.searching import Landscape, everything, made_up
from tests.hostile.mutate import mutated, restructured
from tests.hostile.places import PLACES
from tests.hostile.watch import within

MUTATIONS = 150


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with within(60.0):
        yield


@pytest.fixture(scope="module")
def space(toy_plan: Plan) -> Space:
    return made_up(toy_plan)


@pytest.fixture(scope="module")
def good(space: Space, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal of a few trials, one of each state."""
    folder = tmp_path_factory.mktemp("journal")
    search = Search(open_study(str(folder), "study"), space, everything(space))
    run_trials(search, space, Landscape(space), most=36)
    states = {attempt.state for attempt in attempts(search)}
    assert {"complete", "rejected"} <= states
    search.refuse(space.default, State.SLOW, "in batch")
    return journal(folder, "study").read_bytes()


def read(folder: Path, space: Space) -> int:
    """What a run does with a study, and how many attempts it knows of then."""
    search = Search(open_study(str(folder), "study"), space, everything(space), folder / "study.journal")
    run_trials(search, space, Landscape(space), most=2)
    conclude(search, space, Landscape(space), identity(space.plan, space.kernel), {})
    return len(list(attempts(search)))


@pytest.mark.parametrize("place", PLACES)
def test_what_may_lie_in_the_place_of_a_journal(place: str, space: Space, tmp_path: Path) -> None:
    PLACES[place](tmp_path / "study.journal")
    with pytest.raises(StudyDamaged, match=r"study\.journal is damaged: .*may be deleted"):
        read(tmp_path, space)


def changed(line: dict[str, object], **fields: object) -> dict[str, object]:
    return line | fields


@pytest.mark.parametrize(
    ("find", "change"),
    [
        ("intermediate_value", {"step": "1"}),
        ("intermediate_value", {"intermediate_value": "fast"}),
        ("intermediate_value", {"intermediate_value": -1.0}),
        ("values", {"values": []}),
        ("values", {"values": [0.5, 0.5]}),
        ("values", {"values": ["0.5"]}),
        ("values", {"values": [0]}),
        ("values", {"values": [float("nan")]}),
        ("param_value_internal", {"param_name": "no_such"}),
        ("param_value_internal", {"param_value_internal": 99}),
        ("param_value_internal", {"distribution": "none"}),
        ("user_attr", {"user_attr": {"refused x": 7}}),
        ("user_attr", {"user_attr": 7}),
        ("op_code", {"op_code": 77}),
        ("op_code", {"op_code": None}),
    ],
)
def test_a_line_that_no_run_writes_is_damage(
    good: bytes, space: Space, tmp_path: Path, find: str, change: dict[str, object]
) -> None:
    lines = [json.loads(line) for line in good.splitlines()]
    at = max(i for i, line in enumerate(lines) if line.get(find))
    lines[at] |= change
    (tmp_path / "study.journal").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StudyDamaged, match=r"study\.journal is damaged"):
        read(tmp_path, space)


def test_mutated_journals_are_read_or_damaged(good: bytes, space: Space, tmp_path: Path) -> None:
    """Bytes, tokens and structure of lines; nothing else is raised, and both happen."""
    told = set()
    lines = good.splitlines(keepends=True)
    for number in range(MUTATIONS):
        random = Random(f"journal {number}")
        if random.random() < 0.5:
            data = mutated(good, [good], random)
        else:
            at = random.randrange(len(lines))
            line = json.dumps(restructured(json.loads(lines[at]), random)).encode() + b"\n"
            data = b"".join([*lines[:at], line, *lines[at + 1 :]])
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "study.journal").write_bytes(data)
        try:
            read(folder, space)
            told.add("read")
        except (StudyDamaged, TuneInterrupted) as error:
            told.add(type(error).__name__)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {data[:2000]!r}") from error
    assert told == {"read", "StudyDamaged"}


def test_a_journal_without_end_is_not_read_to_its_end(space: Space, tmp_path: Path) -> None:
    with (tmp_path / "study.journal").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(StudyDamaged, match=f"more than {JOURNAL_BYTES} bytes"):
        read(tmp_path, space)


def test_a_damaged_journal_stops_its_kernel_only_and_is_set_aside(
    toy: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("mamba2_conv_step_32x4_50", "lookup_drafts")
    monkeypatch.setattr(running.Session, "evaluator", lambda self, kernel: Landscape(made_up(self.plan)))
    monkeypatch.setattr(Landscape, "evaluate", lambda self, values, report: self.decide(values))
    monkeypatch.setattr(Landscape, "decide", lambda self, values: Verdict(1.0, 0.001, {"scenes": {}}, MEASURED))
    task = Task(toy, "cpu", tmp_path, str(tmp_path / "studies"), kernels=names)
    assert len(list(run(task, 60.0))) == 2
    first = sorted((tmp_path / "studies").glob("*.journal"))[0]
    first.write_bytes(b"{}\n" + first.read_bytes())
    warned: list[str] = []
    assert len(list(run(task, 60.0, Progress(warn=warned.append)))) == 2
    (text,) = warned
    assert f"{first.name}.damaged" in text and "begun anew" in text
    assert {path.name for path in (tmp_path / "studies").glob("*.damaged")} == {f"{first.name}.damaged"}
    assert first.is_file()


def test_what_is_set_aside_is_no_study_any_more(tmp_path: Path) -> None:
    for content in ("one", "two"):
        (tmp_path / "study.journal").write_text(content)
        aside = set_aside(tmp_path / "study.journal")
        assert aside.read_text() == content
    assert sorted(os.listdir(tmp_path)) == ["study.journal.damaged", "study.journal.lock"]
