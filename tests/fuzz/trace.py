"""Random traces of one engine: requests that share prefixes, join, leave, draft K tokens; compared with cold runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dsl.spec import Mamba2Spec
from runtime.engine import Engine
from runtime.package import Package, open_package
from runtime.request import Request
from tests.fuzz.corpus import Subject, lively_tokens
from tests.fuzz.lockstep import Lockstep

POOL = 12
MAX_NEW = 24


@dataclass(frozen=True)
class Question:
    """A prompt with its sampling options: what the bits of an answer may depend on."""

    prompt: tuple[int, ...]
    temperature: float
    seed: int


@dataclass
class Tally:
    """What was compared."""

    traces: int = 0
    requests: int = 0
    tokens: int = 0
    steps: int = 0
    restored: int = 0
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

    def _draft_counts(self) -> list[int]:
        return sorted({0, self.limits.max_drafts})

    def _engine(self, drafts: int) -> Engine:
        chunk = self.rng.randint(1, self.limits.prefill_chunk)
        engine = Engine(self.package, self.subject.weights, drafts=drafts, prefill_chunk=chunk)
        widths = [
            m.conv_width for m in (x.mixer for x in self.subject.spec.pattern_layers) if isinstance(m, Mamba2Spec)
        ]
        engine.scheduler.executor = Lockstep(engine.scheduler.executor, max(widths, default=1))
        return engine

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
            questions.append(Question(tuple(prompt), self.rng.choice([0.0, 0.8, 1.5]), self.rng.randrange(1 << 40)))
        return questions

    def answer(self, question: Question) -> list[int]:
        """The cold answer: eager, one token at a time, alone, without drafts; as long as any trace may ask for."""
        if question not in self.answers:
            result = self.cold.generate(
                list(question.prompt),
                max_new_tokens=MAX_NEW,
                temperature=question.temperature,
                seed=question.seed,
                stop_at_eos=False,
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
        """One trace: a few requests through one engine, with poison, changing K and cancellations in between."""
        engine = self.rng.choice(self.engines)
        lockstep = engine.scheduler.executor
        assert isinstance(lockstep, Lockstep)
        steps_before = lockstep.steps
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
        for question, request in running:
            self._compare(question, request)
        self.tally.traces += 1
        self.tally.steps += lockstep.steps - steps_before

    def _submit(self, engine: Engine) -> tuple[Question, Request]:
        question = self.rng.choice(self.questions)
        stops = self.rng.sample(lively_tokens(self.subject.spec), self.rng.choice([0, 0, 1]))
        request = engine.submit(
            list(question.prompt),
            max_new_tokens=self.rng.randint(1, MAX_NEW),
            temperature=question.temperature,
            seed=question.seed,
            stop_tokens=stops,
            stop_at_eos=self.rng.random() < 0.5,
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
            "kv": scheduler.pages.free_pages(),
            "checkpoint": scheduler.checkpoints.free_rows(),
        }
        engine.buffers.poison(engine.buffers.poisonable(), index)

    def _compare(self, question: Question, request: Request) -> None:
        expected = self.expected(question, request)
        if request.finish_reason == "cancelled":
            expected = expected[: len(request.output)]
        assert request.output == expected, (
            f"{self.subject.package}: prompt {list(question.prompt)}, temperature {question.temperature}, seed "
            f"{question.seed}: {request.output} differs from the cold {expected}"
        )
        self.tally.requests += 1
        self.tally.tokens += len(expected)
        self.tally.restored += request.restored_position > 0
        for counts in request.accepted.values():
            for accepted, count in enumerate(counts):
                if count:
                    self.tally.accepted[accepted] = self.tally.accepted.get(accepted, 0) + count
