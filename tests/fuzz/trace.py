"""Random traces of one engine: requests that share prefixes, join, leave, draft K tokens; compared with cold runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from dsl.spec import Mamba2Spec
from runtime.checkpoints.host_pool import host_pool_bytes
from runtime.checkpoints.image import image_layout
from runtime.engine import Engine
from runtime.package import Package, open_package
from runtime.request import Request
from tests.fuzz.corpus import Subject, lively_tokens
from tests.fuzz.lockstep import Lockstep

POOL = 12
MAX_NEW = 24
FEW_ROWS = 3


@dataclass(frozen=True)
class Question:
    """A prompt with its sampling options: what the bits of an answer may depend on."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    more: tuple[tuple[str, float], ...] = ()

    def options(self) -> dict[str, Any]:
        """As `submit` takes them."""
        return {"temperature": self.temperature, "seed": self.seed, **dict(self.more)}


MORE: dict[str, tuple[float, ...]] = {
    "top_k": (1, 3, 20),
    "top_p": (0.3, 0.9),
    "min_p": (0.05, 0.5),
    "repetition_penalty": (0.8, 1.3),
    "presence_penalty": (-0.5, 1.0),
    "frequency_penalty": (0.25,),
}


@dataclass
class Tally:
    """What was compared."""

    traces: int = 0
    requests: int = 0
    tokens: int = 0
    steps: int = 0
    saves: int = 0
    restored: int = 0
    preempted: int = 0
    promoted: int = 0
    scored: int = 0
    accepted: dict[int, int] = field(default_factory=dict)


class Fuzz:
    """Traces over one subject. Cold answers are computed once per question."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject, self.rng, self.tally = subject, random.Random(seed), Tally()
        self.package: Package = open_package(subject.package)
        self.limits = self.package.plan.limits
        self.cold = Engine(
            self.package, subject.weights, eager=True, drafts=0, prefill_chunk=1, checkpoints=False, slots=1
        )
        self.answers: dict[Question, list[int]] = {}
        self.questions = self._questions()
        self.engines = [self._engine(drafts) for drafts in self._draft_counts()]
        self.engines.append(self._small_engine(self.limits.max_drafts))

    def _draft_counts(self) -> list[int]:
        return sorted({0, self.limits.max_drafts})

    def _engine(self, drafts: int, package: Package | None = None, **options: int) -> Engine:
        chunk = self.rng.randint(1, self.limits.prefill_chunk)
        engine = Engine(package or self.package, self.subject.weights, drafts=drafts, prefill_chunk=chunk, **options)
        widths = [
            m.conv_width for m in (x.mixer for x in self.subject.spec.pattern_layers) if isinstance(m, Mamba2Spec)
        ]
        scheduler = engine.scheduler
        lockstep = Lockstep(scheduler.executor, max(widths, default=1), scheduler.tiers.device)
        for part in (scheduler, scheduler.prefill, scheduler.emitter, scheduler.admission):
            part.executor = lockstep
        return engine

    def _small_engine(self, drafts: int) -> Engine:
        """One with so few checkpoint rows that most of what is kept goes through a host pool not much larger."""
        rows = min(FEW_ROWS, self.limits.checkpoint_slots)
        limits = replace(self.limits, checkpoint_slots=rows)
        package = replace(self.package, plan=replace(self.package.plan, limits=limits))
        layout = image_layout(package.plan, "", drafting=drafts > 0)
        pages = -(-limits.num_pages // rows) if layout.page else 0
        room = host_pool_bytes(layout, 2 * rows, 2 * rows * pages)
        return self._engine(drafts, package, host_pool=room, prefill_budget=self.limits.prefill_chunk)

    def _questions(self) -> list[Question]:
        """Prompts of 1 token to 3 chunks; some extend others, some are an answer's own beginning."""
        longest = min(3 * self.limits.prefill_chunk, self.limits.max_context - 2)
        alphabet = [*lively_tokens(self.subject.spec), *range(97, 107)]
        questions: list[Question] = []
        for _ in range(POOL):
            prompt = [self.rng.choice(alphabet) for _ in range(self.rng.randint(1, longest))]
            if questions and self.rng.random() < 0.5:
                base = self.rng.choice(questions)
                grown = [*base.prompt, *self.answer(base)[: self.rng.randint(0, 8)], *prompt]
                prompt = grown[: self.rng.randint(1, min(longest, len(grown)))]
            names = self.rng.sample(sorted(MORE), self.rng.choice([0, 0, 1, 3]))
            more = tuple((name, self.rng.choice(MORE[name])) for name in names)
            temperature, seed = self.rng.choice([0.0, 0.8, 1.5]), self.rng.randrange(1 << 40)
            questions.append(Question(tuple(prompt), temperature, seed, more))
        return questions

    def answer(self, question: Question) -> list[int]:
        """The cold answer: eager, one token at a time, alone, without drafts; as long as any trace may ask for."""
        if question not in self.answers:
            result = self.cold.generate(
                list(question.prompt),
                max_new_tokens=MAX_NEW,
                stop_at_eos=False,
                **question.options(),
            )
            self.answers[question] = list(result.tokens)
        return self.answers[question]

    def expected(self, question: Question, request: Request) -> list[int]:
        """The cold answer, cut where the request has to end."""
        out: list[int] = []
        for token in self.answer(question)[: request.limit_len - request.prompt_len]:
            out.append(token)
            if token in request.stops:
                break
        return out

    def trace(self) -> None:
        """One trace: a few requests through one engine, with poison, changing K, preemptions and cancellations."""
        engine = self.rng.choice(self.engines)
        lockstep = engine.scheduler.executor
        assert isinstance(lockstep, Lockstep)
        steps, saves, promoted = lockstep.steps, lockstep.saves, engine.scheduler.cache.counts.promoted
        wanted = self.rng.randint(1, 6)
        running: list[tuple[Question, Request]] = []
        while wanted or engine.busy:
            if wanted and (not engine.busy or self.rng.random() < 0.5):
                running.append(self._submit(engine))
                wanted -= 1
            if self.rng.random() < 0.3:
                self._poison(engine)
            if self.rng.random() < 0.2 and lockstep.drafting:
                engine.set_drafts(self.rng.randint(0, self.limits.max_drafts))
            engine.step()
            if running and self.rng.random() < 0.03:
                engine.cancel(self.rng.choice(running)[1])
            if engine.scheduler.seats.active and self.rng.random() < 0.05:
                engine.preempt(self.rng.choice(engine.scheduler.seats.all()).request)
        for question, request in running:
            self._compare(question, request)
        self.tally.traces += 1
        self.tally.steps += lockstep.steps - steps
        self.tally.saves += lockstep.saves - saves
        self.tally.promoted += engine.scheduler.cache.counts.promoted - promoted

    def _submit(self, engine: Engine) -> tuple[Question, Request]:
        question = self.rng.choice(self.questions)
        stops = self.rng.sample(lively_tokens(self.subject.spec), self.rng.choice([0, 0, 1]))
        request = engine.submit(
            list(question.prompt),
            max_new_tokens=self.rng.randint(1, MAX_NEW),
            **question.options(),
            stop_tokens=stops,
            stop_at_eos=self.rng.random() < 0.5,
            priority=self.rng.choice([0, 0, 0, 1]),
            checkpoints=self.rng.choice([(), (), (-1,), (2, -3, len(question.prompt) + 2)]),
            logprobs=self.rng.choice([None, None, 1]),
        )
        return question, request

    def _poison(self, engine: Engine) -> None:
        """NaN into everything that no live bit may depend on: free slots, free pages, free checkpoints, scratch."""
        scheduler = engine.scheduler
        free = [
            slot for slot in range(self.limits.max_slots) if slot not in {seat.slot for seat in scheduler.seats.all()}
        ]
        index = {
            "state": free,
            "ring": free,
            "kv": scheduler.cache.pages.free_pages(),
            "checkpoint": scheduler.cache.free_rows(),
        }
        engine.buffers.poison(engine.buffers.poisonable(), index)

    def _compare(self, question: Question, request: Request) -> None:
        expected = self.expected(question, request)
        if request.finish_reason == "cancelled":
            expected = expected[: len(request.output)]
        assert request.output == expected, (
            f"{self.subject.package}: prompt {list(question.prompt)}, {question.options()}: "
            f"{request.output} differs from the cold {expected}"
        )
        if request.options.logprobs is not None:
            self._compare_scores(question, request)
        self.tally.requests += 1
        self.tally.preempted += request.preemptions
        self.tally.tokens += len(expected)
        self.tally.restored += request.restored_position > 0
        for counts in request.accepted.values():
            for accepted, count in enumerate(counts):
                if count:
                    self.tally.accepted[accepted] = self.tally.accepted.get(accepted, 0) + count

    def _compare_scores(self, question: Question, request: Request) -> None:
        """One per token of the output; the most likely token is what a greedy request says."""
        assert [score.token for score in request.logprobs] == request.output
        assert all(score.logprob <= score.top[0][1] for score in request.logprobs)
        if question.temperature == 0.0 and not question.more:
            assert [score.top[0][0] for score in request.logprobs] == request.output
        self.tally.scored += len(request.output)
