"""What becomes of a study: refused finalists make room, what the machine did is tried again, what stands stays."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure import Report, Verdict
from autotune.proof import Rejected
from autotune.run import Session, Task
from autotune.space import Order, Space, key
from autotune.study import Search, open_study
from autotune.tune import FINALISTS, attempts, conclude, run_trials
from codegen.errors import TuneInterrupted, TuneNotWritten, UntunedWrong
from codegen.plan import Plan
from codegen.tunables import Value
from codegen.tuned import MEASURED, Result, identity
from dsl import ModelSpec
from tests.autotune.searching import Landscape, everything, made_up


@pytest.fixture(scope="module")
def space(toy_plan: Plan) -> Space:
    return made_up(toy_plan)


class Picky(Landscape):
    """Refuses the first `refusals` finalists that it is shown, and remembers which it decided about."""

    def __init__(self, space: Space, refusals: int) -> None:
        super().__init__(space)
        self.refusals, self.decided = refusals, list[str]()

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        self.decided.append(key(values))
        if values and len(self.decided) <= self.refusals:
            raise Rejected(f"1.07 of the untuned time in batch, refusal {len(self.decided)}")
        return super().decide(values)


def searched(folder: Path, space: Space, landscape: Landscape) -> Search:
    search = Search(open_study(str(folder), "study"), space, everything(space))
    assert run_trials(search, space, landscape)
    return search


def ranked(search: Search, space: Space) -> list[str]:
    """What is faster than untuned by its trials, the best first."""
    done = [a for a in attempts(search) if a.state == "complete" and a.ratio is not None and a.ratio < 1]
    return [key(space.changed(a.values)) for a in sorted(done, key=lambda a: a.ratio or 0)]


def concluded(search: Search, space: Space, landscape: Landscape, stored: Result | None = None) -> Result:
    return conclude(search, space, landscape, identity(space.plan, space.kernel), {}, stored)


def test_refused_finalists_make_room_for_the_next(tmp_path: Path, space: Space) -> None:
    landscape = Picky(space, FINALISTS)
    search = searched(tmp_path, space, landscape)
    order = ranked(search, space)
    assert len(order) > 2 * FINALISTS
    found = concluded(search, space, landscape)
    assert landscape.decided == order[: 2 * FINALISTS], "as many are refused as are judged"
    assert key(found.values) == order[FINALISTS]
    states = {key(space.changed(search.order[key(t["values"])])): t for t in found.detail["trials"]}  # type: ignore[index]
    refused = [states[name] for name in order[:FINALISTS]]
    assert {trial["state"] for trial in refused} == {"rejected"}
    assert [trial["why"][-1] for trial in refused] == ["1", "2", "3"]


def test_whoever_was_refused_is_refused_in_every_later_run(tmp_path: Path, space: Space) -> None:
    first, second = Picky(space, FINALISTS), Picky(space, 0)
    search = searched(tmp_path, space, first)
    order = ranked(search, space)
    concluded(search, space, first)
    again = Search(open_study(str(tmp_path), "study"), space, everything(space))
    found = concluded(again, space, second)
    assert second.decided == order[FINALISTS : 2 * FINALISTS]
    assert key(found.values) == order[FINALISTS]
    assert sum(a.state == "rejected" for a in attempts(again)) == FINALISTS + 4


def test_what_nothing_new_was_tried_for_stays_as_it_is(tmp_path: Path, space: Space) -> None:
    search = searched(tmp_path, space, Landscape(space))
    stored = concluded(search, space, Landscape(space))
    idle = Picky(space, 0)
    assert concluded(search, space, idle, stored) is stored
    assert idle.decided == []


def test_a_stored_result_is_raced_beside_the_finalists(tmp_path: Path, space: Space) -> None:
    """One that was imported, and that no trial of this study is about: it wins if it is the best here as well."""
    best = {"BLOCK_N": 32, "row_tiles": (1, 2), "prefetch_bytes": 0}
    assert space.default["prefetch_bytes"] == 0
    some = [values for values in space if values["BLOCK_N"] != 32]
    search = Search(open_study(str(tmp_path), "study"), space, Order(tuple(some), {key(v): 1.0 for v in some}))
    landscape = Picky(space, 0)
    run_trials(search, space, landscape)
    stored = Result(identity(space.plan, space.kernel), space.changed(best), 0.5, MEASURED, {})
    found = concluded(search, space, landscape, stored)
    assert landscape.decided[0] == key(space.changed(best))
    assert found.values == space.changed(best)
    assert found.ratio == pytest.approx(Landscape(space).decide(best).ratio), "what was measured here"
    foreign = replace(stored, values={"BLOCK_N": 48})
    assert concluded(search, space, landscape, foreign).values.get("BLOCK_N") != 48


class Failing(Landscape):
    """Raises an error for the first trial, as the machine makes one fail."""

    def __init__(self, space: Space, error: Exception) -> None:
        super().__init__(space)
        self.errors = [error]

    def evaluate(self, values: Mapping[str, Value], report: Report) -> Verdict:
        if self.errors:
            raise self.errors.pop()
        return super().evaluate(values, report)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (MemoryError(), r"MemoryError\(\)"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "can't allocate"),
        (RuntimeError("gcc: fatal error: Killed signal terminated program cc1"), "Killed signal"),
        (TuneNotWritten(path="x", detail="Disk quota exceeded"), "Disk quota"),
    ],
)
def test_what_the_machine_made_fail_is_tried_again(tmp_path: Path, space: Space, error: Exception, told: str) -> None:
    landscape = Failing(space, error)
    search = Search(open_study(str(tmp_path), "study"), space, everything(space))
    with pytest.raises(TuneInterrupted, match=f"{told}.*the same command goes on"):
        run_trials(search, space, landscape)
    again = Search(open_study(str(tmp_path), "study"), space, everything(space))
    assert run_trials(again, space, landscape)
    assert key(space.default) in {key(a.values) for a in attempts(again) if a.state == "complete"}
    assert len(list(attempts(again))) == len(space)


def test_an_error_of_our_own_is_no_fault_of_the_machine(tmp_path: Path, space: Space) -> None:
    search = Search(open_study(str(tmp_path), "study"), space, everything(space))
    with pytest.raises(ZeroDivisionError):
        run_trials(search, space, Failing(space, ZeroDivisionError()))


class WrongUntuned(Landscape):
    """No candidate wins, and the untuned kernel is not right either."""

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        raise Rejected("y[0] is 1.0, not 2.0 (decode, 2 threads)")


def test_an_untuned_kernel_that_is_wrong_in_the_end_is_named(tmp_path: Path, space: Space) -> None:
    landscape = WrongUntuned(space)
    with pytest.raises(UntunedWrong, match=r"cannot be tuned.*y\[0\] is 1.0"):
        concluded(searched(tmp_path, space, landscape), space, landscape)


def test_other_allowed_values_are_another_study(
    toy: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version may allow other values: its study has room for them, and the old one is left as it is."""
    name = "matmul_20x50"
    session = Session(Task(toy, "cpu", tmp_path, str(tmp_path / "studies")))
    order = Order((session.space(name).default,), {key(session.space(name).default): 1.0})
    first = session.search(name, order)
    assert first.next() is not None
    assert session.search(name, order).study.study_name == first.study.study_name
    whole = Session.space

    def with_fewer(self: Session, kernel: str) -> Space:
        space = whole(self, kernel)
        tunables = [replace(t, values=tuple({t.default, t.values[0]})) for t in space.tunables]
        return replace(space, tunables=tuple(tunables))

    monkeypatch.setattr(Session, "space", with_fewer)
    assert len(session.space(name)) < len(whole(session, name))
    other = session.search(name, order)
    assert other.study.study_name != first.study.study_name
    assert other.next() is not None
