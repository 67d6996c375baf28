"""Tuning of a whole plan: which kernels, in what order, for how long, by how many processes."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from autotune.faults import brief
from autotune.finale import conclude
from autotune.forge import Forge
from autotune.journal import journal, set_aside
from autotune.measure import Bench, Disturbed
from autotune.predict import Model
from autotune.roofline import machine_here, roofline, working_set
from autotune.scenes import CONTEXT
from autotune.space import Machine, Order, Space, space_of
from autotune.study import Search, is_database, open_study
from autotune.tune import Attempt, Evaluator, attempts, run_trials
from codegen.aot_worker import end_with_parent
from codegen.cost import Shape, step_costs
from codegen.errors import StudyDamaged, StudyUnusable, TuneNotWritten
from codegen.lower import lower
from codegen.machine import device
from codegen.plan import Plan
from codegen.predict.accelerators import by_driver_name
from codegen.tuned import KEEP, PREDICTED, Identity, Result, identity
from codegen.tuned_store import RESULTS, Results
from dsl import ModelSpec

LAUNCH_SECONDS = 5e-6  # of a kernel that moves next to nothing
BUSY_CORES = 0.15
LEAST_SHARE = 0.02  # of the budget, for kernels that a plain step does not launch


@dataclass(frozen=True)
class Task:
    """What is asked of a run.

    storage: a folder of studies or a database URL. kernels: names to tune, or all. trials: of each in this process, at
    most. busy: cores that others may use on average while finalists are raced.
    """

    spec: ModelSpec
    target: str
    folder: Path
    storage: str
    numerics: str = KEEP
    jobs: int = 1
    kernels: tuple[str, ...] = ()
    trials: int | None = None
    busy: float = BUSY_CORES


@dataclass(frozen=True)
class Progress:
    """Called while a run goes on.

    kernel(name, position, of how many, candidates) when it begins; trial(name, what came of it); missed(name): there
    was no time for it; warn(text): something went wrong that stops nothing.
    """

    kernel: Callable[[str, int, int, int], None] = lambda name, number, total, candidates: None
    trial: Callable[[str, Attempt], None] = lambda name, attempt: None
    missed: Callable[[str], None] = lambda name: None
    warn: Callable[[str], None] = lambda text: None
    begun: Callable[[], None] = lambda: None  # of the kernel at hand, once its study is open


Helpers = Callable[[str, Order, float], list[Future[None]]]


@dataclass
class Session:
    """What a process keeps for a task: the forge, and benches of the kernels that it has met."""

    task: Task
    plan: Plan = field(init=False)
    forge: Forge = field(init=False)

    def __post_init__(self) -> None:
        self.plan = lower(self.task.spec, self.task.target)
        self.forge = Forge(self.task.spec, self.task.target, self.task.folder / "kernels")
        self._evaluators: dict[str, Evaluator] = {}

    @property
    def device(self) -> torch.device | None:
        """Where kernels of the target run here; None: nowhere, they are predicted."""
        return device_of(self.task.target)

    def identity(self, kernel: str) -> Identity:
        """What the result of a kernel is for: of this device, or predicted where the target does not run."""
        where = PREDICTED if self.device is None else None
        return identity(self.plan, self.plan.kernel(kernel), self.task.numerics, where)

    @property
    def machine(self) -> Machine:
        """What the roofline is drawn from."""
        if self.task.target == "cpu":
            return machine_here(working_set(self.plan))
        gpu = by_driver_name(self.task.target, device(self.task.target) or "")
        return Machine(gpu.bandwidth, gpu.bf16, gpu.multiprocessors)

    def space(self, kernel: str) -> Space:
        """Candidates of a kernel."""
        return space_of(self.forge.untuned, self.forge.untuned.kernel(kernel), self.task.numerics)

    def search(self, kernel: str, order: Order) -> Search:
        """The study of a kernel, which others may be at as well; another space of values has another one."""
        space = self.space(kernel)
        name = hashlib.sha256(f"{self.identity(kernel).digest} {space.text}".encode()).hexdigest()
        where = self.task.storage if is_database(self.task.storage) else journal(Path(self.task.storage), name)
        return Search(open_study(self.task.storage, name, seed=os.getpid()), space, order, where)

    def evaluator(self, kernel: str) -> Evaluator:
        """A bench on the device that is here, or a model of one that is not; the last one is kept."""
        if kernel not in self._evaluators:
            self._evaluators.clear()
            self._evaluators[kernel] = self._made(kernel)
        return self._evaluators[kernel]

    def _made(self, kernel: str) -> Evaluator:
        if self.device is None:
            return Model(self.forge, kernel, self.task.folder / "compiled", self.task.numerics)
        size, numerics = working_set(self.plan), self.task.numerics
        return Bench(
            self.forge, kernel, self.device, working_set=size, numerics=numerics, measuring=self._turn(),
            busy=self.task.busy,
        )  # fmt: skip

    def _turn(self) -> AbstractContextManager[Any]:
        """Processes of this machine time one after the other; they prove and compile side by side."""
        path = self.task.folder / "measuring.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise TuneNotWritten(path=path, detail=error.strerror) from error
        return FileLock(path)


def device_of(target: str) -> torch.device | None:
    """Where kernels of a target run on this machine, if they do."""
    if target == "cpu":
        return torch.device("cpu")
    return torch.device("cuda") if device(target) and torch.cuda.is_available() else None


def shares(plan: Plan, numerics: str, machine: Machine, wanted: tuple[str, ...] = ()) -> dict[str, float]:
    """Kernels that have something to tune and their part of a plain step's time, the largest first; 1 in all."""
    names = [k.name for k in plan.kernels if space_of(plan, k, numerics).tunables and (not wanted or k.name in wanted)]
    seconds = dict.fromkeys(names, 0.0)
    for cost in step_costs(plan, Shape(1, 0, min(CONTEXT, plan.limits.max_context))):
        if cost.kernel in seconds:
            seconds[cost.kernel] += cost.count * (cost.bytes / machine.bandwidth + LAUNCH_SECONDS)
    total = sum(seconds.values()) or 1.0
    parts = {name: max(LEAST_SHARE, value / total) for name, value in seconds.items()}
    whole = sum(parts.values())
    return dict(sorted(((name, part / whole) for name, part in parts.items()), key=lambda item: -item[1]))


def run(task: Task, seconds: float, progress: Progress | None = None) -> Iterator[Result]:
    """Tune every kernel within `seconds` together, the costly ones longest; yields and stores each result.

    What a study already knows is not tried again, so a run that was killed goes on where it was, and one that is
    repeated spends its time on what is left; kernels without a result come first. When the time is over, the finalists
    of the kernel at hand are still raced; results of kernels that were not reached stay as they are. A journal that is
    damaged is set aside, and its kernel begun anew.
    """
    progress = progress or Progress()
    session, results = Session(task), Results(task.folder / RESULTS)
    parts = shares(session.plan, task.numerics, session.machine, task.kernels)
    known = {name: results.find(session.identity(name)) for name in parts}
    parts = dict(sorted(parts.items(), key=lambda part: _explored(known[part[0]])))
    end, left = time.monotonic() + seconds, 1.0
    with _helpers(task) as helpers:
        for number, (name, part) in enumerate(parts.items()):
            remaining = max(0.0, end - time.monotonic())
            until = time.monotonic() + remaining * min(1.0, part / left)
            left = max(1e-9, left - part)
            order = session.space(name).promising(session.machine)
            begun = partial(progress.kernel, name, number, len(parts), len(order))
            if time.monotonic() >= until:
                progress.missed(name)
                continue
            before = results.find(session.identity(name))
            tune = partial(_tune, session, name, order, until, replace(progress, begun=begun), helpers, before)
            try:
                result = _anew_if_damaged(tune, task, name, progress)
            except Disturbed as error:
                progress.warn(f"{name} is not decided: {error}; run again when the machine is idle, or with --busy")
                continue
            if result is None:
                progress.missed(name)
                continue
            if result != before:
                results.write(result)
            yield result


def _explored(result: Result | None) -> float:
    """Which part of its candidates a result knows of."""
    if result is None:
        return -1.0
    return float(result.detail.get("explored", 0) / max(1, result.detail.get("candidates", 1)))


def _anew_if_damaged(tune: Callable[[], Result | None], task: Task, name: str, progress: Progress) -> Result | None:
    """tune(), once more if the journal is damaged. Raises StudyDamaged for one in a database, or if that is no use."""
    try:
        return tune()
    except StudyDamaged as error:
        if is_database(task.storage):
            raise
        path = Path(str(error.fields["path"]))
        try:
            aside = set_aside(path)
        except OSError as reason:
            raise StudyUnusable(place=path, detail=brief(reason)) from reason
        progress.warn(f"{name} is begun anew: {error.fields['detail']}; its study lies in {aside} now, to be deleted")
        return tune()


def _tune(
    session: Session,
    name: str,
    order: Order,
    until: float,
    progress: Progress,
    helpers: Helpers,
    before: Result | None,
) -> Result | None:
    """The result of a kernel, None if nothing was tried. before: the one that is stored."""
    space, search = session.space(name), session.search(name, order)
    progress.begun()
    evaluator = session.evaluator(name)
    helping = helpers(name, order, until)
    run_trials(search, space, evaluator, until, lambda attempt: progress.trial(name, attempt), session.task.trials)
    for future in helping:
        future.result()
    if not list(attempts(search)):
        return None
    about = roofline(session.forge.untuned, session.forge.untuned.kernel(name), session.machine)
    about["launches"] = _launches(session.plan, name)
    return conclude(search, space, evaluator, session.identity(name), about, before)


def _launches(plan: Plan, name: str) -> int:
    """How often a plain step launches a kernel."""
    return sum(cost.count for cost in step_costs(plan, Shape(1, 0, 1)) if cost.kernel == name)


@contextlib.contextmanager
def _helpers(task: Task) -> Iterator[Helpers]:
    """Further processes that take trials of the kernel at hand. They end with this one, and when it is interrupted."""
    if task.jobs < 2:
        yield lambda name, order, until: []
        return
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with ProcessPoolExecutor(task.jobs - 1, context, _begin_to_help, (os.getpid(),)) as pool:
        try:
            yield lambda name, order, until: [
                pool.submit(help_with, task, name, order, until) for _ in range(task.jobs - 1)
            ]
        except BaseException:  # nobody waits for what they are at: its values are tried again
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            raise


def _begin_to_help(parent: int) -> None:
    """In a helper: Ctrl-C is for the parent, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def help_with(task: Task, name: str, order: Order, until: float) -> None:
    """Take trials of one kernel in this process until a time of time.monotonic(), which all processes share."""
    session = _session(task)
    run_trials(session.search(name, order), session.space(name), session.evaluator(name), until, most=task.trials)


_sessions: dict[str, Session] = {}


def _session(task: Task) -> Session:
    """The session of a helper, kept from kernel to kernel."""
    if repr(task) not in _sessions:
        _sessions.clear()
        _sessions[repr(task)] = Session(task)
    return _sessions[repr(task)]
