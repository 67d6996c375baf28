"""What is verified: a package, its spec and weights, the cases, and the runs made of them so far."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from codegen.package import spec_of
from codegen.verify.cases import Case, grid, junction
from codegen.verify.content import Content, Part, live_content, parts
from codegen.verify.errors import CannotVerify
from codegen.verify.modes import Answers, Mode, Session, Trace, poisoner
from codegen.verify.probe import Replay
from dsl import ModelSpec
from dsl.reference.weights import random_weights
from runtime.engine import Engine
from runtime.executor import Phase
from runtime.package import Package
from runtime.tokenizer import ByteTokenizer
from runtime.weights import check_weights, open_weights

MOST_THREADS = 8
COLD = Mode("cold", eager=True, drafting=True, prefill_chunk=1, one_thread=True)


@dataclass(frozen=True)
class Cold:
    """A cold run of one case. answer: its tokens and one more; hidden: by position, before the final norm.

    logits: of the row at a position; contents: of a slot, by committed_len.
    """

    trace: Trace
    answer: tuple[int, ...]
    hidden: dict[int, Tensor]
    logits: dict[int, Tensor]
    contents: dict[int, Content]


@dataclass
class Subject:
    """One package on one machine. Runs are made when first asked for, and kept. buckets: seen by modes that batch."""

    package: Package
    spec: ModelSpec
    weights: Mapping[str, Tensor]
    cases: list[Case]
    _answers: dict[Mode, Answers] = field(default_factory=dict)
    buckets: dict[Mode, set[int]] = field(default_factory=dict)

    @cached_property
    def threads(self) -> int:
        """Threads of every mode that is not asked for one."""
        return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0))))

    @property
    def drafting(self) -> bool:
        """Whether there are drafts to be looked at."""
        return self.package.plan.limits.max_drafts > 0

    @property
    def parts(self) -> list[Part]:
        """What a cold slot holds."""
        return parts(self.package.plan, self.package.plan.has_drafter)

    def engine(self, mode: Mode) -> Engine:
        """A fresh engine."""
        package = self.package
        if mode.checkpoints:
            limits = replace(package.plan.limits, checkpoint_interval=grid(package.plan.limits))
            package = replace(package, plan=replace(package.plan, limits=limits))
        drafts = max((mode.drafts, *mode.schedule))
        drafting = mode.drafting if self.drafting else False
        return Engine(
            package,
            self.weights,
            drafts=drafts,
            drafting=drafting,
            threads=1 if mode.one_thread else self.threads,
            eager=mode.eager,
            checkpoints=mode.checkpoints,
            prefill_chunk=mode.prefill_chunk,
        )

    def session(self, mode: Mode) -> Session:
        """A fresh engine, watched."""
        session = Session(mode, self.engine(mode))
        if mode.poison:
            session.engine.buffers.poison(session.engine.buffers.poisonable())
            session.probe.before.append(poisoner(session))
        return session

    def answers(self, mode: Mode) -> Answers:
        """The traces of all cases in a mode. Raises RunFailed."""
        if mode not in self._answers:
            with self.session(mode) as session:
                self._answers[mode] = session.answer(self.cases)
                self.buckets[mode] = session.buckets
        return self._answers[mode]

    @cached_property
    def cold(self) -> list[Cold]:
        """Cold runs of all cases, with the contents wherever a checkpoint may be."""
        runs: list[Cold] = []
        for i, case in enumerate(self.cases):
            before = [processed(self.cases[j], run.trace) for j, run in enumerate(runs)]
            runs.append(self.run_cold(i, self.marks(case, before)))
        return runs

    @cached_property
    def drafts(self) -> list[dict[int, tuple[int, ...]]]:
        """Per case, by length of the prefix they follow, as many drafts as the package makes: eagerly, alone."""
        mode = Mode("drafting", self.package.plan.limits.max_drafts, eager=True, unverified=True)
        with self.session(mode) as session:
            traces = [session.ask(case.longer(1), i) for i, case in enumerate(self.cases)]
        return [{step.after: step.drafts for step in trace.steps} for trace in traces]

    def marks(self, case: Case, before: Sequence[Sequence[int]]) -> set[int]:
        """Positions where a checkpoint of the case, or of its extension, may be.

        On the grid, where prompts and answers end, and where the prompt leaves a text processed before it.
        """
        step, end = grid(self.package.plan.limits), len(case.prompt)
        ends = {end, end + extension(case), end + case.new_tokens - 1, end + case.new_tokens}
        leaves = junction(case.prompt, before)
        return {*range(step, end + case.new_tokens + 1, step), *ends, *([] if leaves is None else [leaves])}

    def run_cold(self, index: int, marks: set[int] | None) -> Cold:
        """One case, cold, one token more than asked for. marks: positions to keep contents of, None: all."""
        session = self._cold_session
        case, recorder = self.cases[index], ColdRecorder(self, session, marks)
        session.probe.after[:] = [recorder]
        _clear(session)
        trace = session.ask(case.longer(1), index)
        tokens = trace.tokens[: case.new_tokens]
        return Cold(replace(trace, tokens=tokens), trace.tokens, recorder.hidden, recorder.logits, recorder.contents)

    @cached_property
    def _cold_session(self) -> Session:
        return self.session(COLD)


def _clear(session: Session) -> None:
    """Make an engine without requests as good as new: all that requests leave behind is zero again."""
    buffers = session.engine.buffers
    for buffer in buffers.plan.role("state", "ring", "kv", "checkpoint", "scratch"):
        buffers[buffer.name].zero_()


class ColdRecorder:
    """Keeps what a cold run holds: hidden states and logits of every row, contents where they are wanted."""

    def __init__(self, subject: Subject, session: Session, marks: set[int] | None) -> None:
        self.subject, self.session, self.marks = subject, session, marks
        self.hidden: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}
        self.contents: dict[int, Content] = {}

    def __call__(self, replay: Replay) -> None:
        """After each replay."""
        buffers, (slot,), (position,) = self.session.engine.buffers, replay.slots, replay.positions
        if replay.phase in (Phase.PREFILL, Phase.STEP):
            ring = buffers.plan.limits.ring
            self.hidden[position] = buffers["hidden_ring"][slot, position % ring].clone()
        if replay.phase in (Phase.BEGIN, Phase.STEP):
            row = position - (replay.phase is Phase.BEGIN)
            self.logits[row] = buffers["logits"][0].clone()
        folded = position + (replay.phase is Phase.PREFILL)
        if replay.phase in (Phase.PREFILL, Phase.STEP) and (self.marks is None or folded in self.marks):
            self.contents[folded] = live_content(buffers, self.subject.parts, slot, folded)


def processed(case: Case, trace: Trace) -> tuple[int, ...]:
    """The text that a case leaves behind: the last token of an answer is sampled, not processed."""
    return case.prompt + trace.tokens[:-1]


def extension(case: Case) -> int:
    """How many tokens of its answer a case is extended by."""
    return max(1, case.new_tokens // 2)


def read_spec(directory: Path) -> ModelSpec:
    """The spec that `build` left in the package. Raises CannotVerify."""
    try:
        return spec_of(directory)
    except ValueError as error:
        raise CannotVerify(detail=error) from error


def read_weights(package: Package, spec: ModelSpec, path: Path | None, seed: int) -> tuple[dict[str, Tensor], str]:
    """The weights and what they are called. Raises RuntimeStateError."""
    if path is None:
        return random_weights(spec, seed), f"random, seed {seed}"
    check_weights(package.plan, open_weights(path))
    return load_file(path), str(path)


def encode(package: Package, prompts: Sequence[str | bytes | Sequence[int]]) -> list[list[int]]:
    """Prompts as token ids, as the engine would read them."""
    tokenizer = ByteTokenizer(package.plan.specials)
    return [tokenizer.encode(p) if isinstance(p, (str, bytes)) else list(p) for p in prompts]
