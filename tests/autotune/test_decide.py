"""What becomes of a study: refused finalists make room, what the machine did is tried again, what stands stays."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.finale import FINALISTS, conclude
from autotune.measure import GivenUp, Report, Verdict
from autotune.proof import Rejected
from autotune.run import Session, Task
from autotune.space import Order, Space, key
from autotune.study import Search, open_study
from autotune.tables import results_table
from autotune.tune import attempts, run_trials
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
    assert landscape.decided[: 2 * FINALISTS] == order[: 2 * FINALISTS], "as many are refused as are judged"
    assert landscape.decided[2 * FINALISTS :] == order[FINALISTS : FINALISTS + 1], "the winner, in a race of its own"
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
    assert second.decided[:FINALISTS] == order[FINALISTS : 2 * FINALISTS]
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


class Scripted(Landscape):
    """Gives verdicts by what is decided about, one race after the other: a ratio, or an error; noise of 1 %."""

    def __init__(self, space: Space, script: Mapping[str, list[float | Exception]], noise: float = 0.01) -> None:
        super().__init__(space)
        self.script, self.noise = {name: list(races) for name, races in script.items()}, noise

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        races = self.script.get(key(values), [])
        told = races.pop(0) if races else 1.0
        if isinstance(told, Exception):
            raise told
        return Verdict(told, self.noise, {"scenes": {}}, MEASURED)


def test_a_candidate_must_win_in_a_second_race_as_well(tmp_path: Path, space: Space) -> None:
    search = searched(tmp_path, space, Landscape(space))
    first, second, third = ranked(search, space)[:FINALISTS]
    lucky = {first: [0.7, 0.99], second: [0.8, 0.85], third: [0.9, 0.9]}
    found = concluded(search, space, Scripted(space, lucky))
    assert key(found.values) == second
    assert found.ratio == 0.85, "of the race that it was not chosen by"
    nobody = {first: [0.7, 1.0], second: [0.8, GivenUp("1.10 of the untuned time in batch")], third: [1.0]}
    assert concluded(search, space, Scripted(space, nobody)).values == {}
    states = {key(space.changed(a.values)): a.state for a in attempts(search)}
    assert (states[first], states[second]) == ("complete", "slow")


@pytest.mark.parametrize(
    ("races", "kept"),
    [
        ([1.0, 0.85], True),
        ([GivenUp("slow once"), 0.85], True),
        ([0.85, 1.0], True),
        ([1.0, 1.0], False),
        ([GivenUp("slow"), GivenUp("slow")], False),
        ([Rejected("y[0] is 1.0, not 2.0")], False),
        ([0.85, Rejected("y[0] is 1.0, not 2.0")], False),
    ],
)
def test_noise_takes_nothing_away_that_was_won(
    tmp_path: Path, space: Space, races: list[float | Exception], kept: bool
) -> None:
    """A stored win goes if it is wrong, or if it wins in none of two races; one race is no reason."""
    search = searched(tmp_path, space, Landscape(space))
    won = space.changed(search.order[key(space.default | {"BLOCK_N": 32, "row_tiles": (1, 2)})])
    stored = Result(identity(space.plan, space.kernel), won, 0.8, MEASURED, {"noise": 0.01, "trials": []})
    found = concluded(search, space, Scripted(space, {key(won): races}), stored)
    assert (dict(found.values), found.ratio) == ((won, 0.8) if kept else ({}, 1.0))
    assert len(found.detail["trials"]) == len(space), "what was tried since is told either way"


@pytest.mark.parametrize(("noise", "ratio"), [(0.005, 0.82), (0.05, 0.8)])
def test_of_two_results_with_the_same_values_the_less_noisy_one_stays(
    tmp_path: Path, space: Space, noise: float, ratio: float
) -> None:
    search = searched(tmp_path, space, Landscape(space))
    won = {"BLOCK_N": 32}
    detail = {"noise": 0.01, "scenes": {"decode": {"tuned": 8e-6, "untuned": 1e-5, "ratio": 0.8}}}
    stored = Result(identity(space.plan, space.kernel), won, 0.8, MEASURED, detail)
    found = concluded(search, space, Scripted(space, {key(won): [0.82, 0.82]}, noise), stored)
    assert (found.values, found.ratio) == (won, ratio)
    assert bool(found.detail["scenes"]) == (ratio == 0.8), "ratio and scenes are of one race"


def test_what_is_slower_is_not_called_wrong(tmp_path: Path, space: Space) -> None:
    search = searched(tmp_path, space, Landscape(space))
    name = ranked(search, space)[0]
    found = concluded(search, space, Scripted(space, {name: [GivenUp("1.10 of the untuned time in batch")]}))
    (trial,) = (t for t in found.detail["trials"] if t["why"].endswith("in batch"))
    assert trial["state"] == "slow"
    table = results_table("x", [found])
    cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
    assert (cells["slower"], cells["refused"]) == (str(sum(t["state"] == "slow" for t in found.detail["trials"])), "4")


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
