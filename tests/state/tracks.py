"""What a run knows of each request, independently of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from runtime.request import Request
from tests.state.cold import Cold
from tests.state.differences import holds, same

REASONS = ("stop", "limit", "cancelled", "deadline", "error")


@dataclass(eq=False)
class Track:
    """One request. base: its text when its present seed began to count; seen: tokens so far, as handed out.

    asked, junctions: positions beyond grid and prompt end; emitted: over its whole life, those rewound over too;
    scored_from: position of the first token with logprobs; scored: none was lost in an interruption; ended: the reason
    that it has to have, if it is not its answer's; expired: its deadline has passed already; checked: tokens compared.
    """

    request: Request
    base: tuple[int, ...]
    temperature: float
    seed: int
    stops: frozenset[int]
    limit_len: int
    asked: frozenset[int]
    logprobs: int | None
    scored_from: int
    expired: bool = False
    scored: bool = True
    seen: list[int] = field(default_factory=list)
    junctions: set[int] = field(default_factory=set)
    emitted: int = 0
    prefilled: int = 0
    recomputed: int = 0
    restored: int = 0
    preempted: int = 0
    ended: str | None = None
    checked: int = 0

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return self.request.prompt_len

    def handed_out(self, tokens: list[int]) -> None:
        """A step returned these."""
        self.seen += tokens
        self.emitted += len(tokens)

    def back_to(self, position: int, seed: int | None) -> None:
        """It was rewound; a deadline that had passed is dropped."""
        self.expired = False
        self.seen, self.base = self.seen[:position], tuple(self.seen[:position])
        self.seed = self.seed if seed is None else seed
        self.ended, self.checked = None, min(self.checked, position)

    # Comparing

    def whole(self, cold: Cold) -> list[int]:
        """All its tokens, once it has finished."""
        return [*self.base, *self.expected(cold)[0]]

    def expected(self, cold: Cold) -> tuple[list[int], str]:
        """The whole answer after `base`, and why it ends."""
        out: list[int] = []
        for token in cold.answer(self.base, self.temperature, self.seed, self.limit_len - len(self.base)):
            out.append(token)
            if token in self.stops:
                return out, "stop"
        return out, "limit"

    def check(self, cold: Cold) -> int:
        """Tokens, reason, counters and logprobs so far. Returns how many tokens were compared for the first time."""
        request = self.request
        same(f"tokens of request {request.id}", request.tokens, self.seen)
        same(f"seed of request {request.id}", request.seed, self.seed)
        out, reason = self.expected(cold)
        whole = [*self.base, *out]
        same(f"text of request {request.id}", self.seen, whole[: len(self.seen)])
        self._check_end(len(self.seen) - len(self.base) == len(out), reason)
        self._check_counters()
        self._check_logprobs(cold, whole)
        new, self.checked = len(self.seen) - self.checked, len(self.seen)
        return max(0, new)

    def _check_end(self, complete: bool, reason: str) -> None:
        request, wanted = self.request, self.ended or (reason if complete else None)
        same(f"finish reason of request {request.id}", request.finish_reason, wanted)
        same(f"request {request.id} has finished", request.finished, wanted is not None)

    def _check_counters(self) -> None:
        request = self.request
        accepted = sum(n * count for counts in request.accepted.values() for n, count in enumerate(counts))
        same(f"accepted + drawn of request {request.id}", accepted + request.drawn, self.emitted)
        same(f"prefilled tokens of request {request.id}", request.prefilled_tokens, self.prefilled)
        same(f"recomputed tokens of request {request.id}", request.recomputed_tokens, self.recomputed)
        same(f"restored position of request {request.id}", request.restored_position, self.restored)
        same(f"preemptions of request {request.id}", request.preemptions, self.preempted)
        for drafts, counts in request.accepted.items():
            holds(len(counts) == drafts + 2 and not counts[0], f"accepted[{drafts}] of request {request.id}: {counts}")

    def _check_logprobs(self, cold: Cold, whole: list[int]) -> None:
        found, request = self.request.logprobs, self.request
        if not self.scored:
            return
        if self.logprobs is None:
            same(f"logprobs of request {request.id}", found, [])
            return
        same(f"number of logprobs of request {request.id}", len(found), len(self.seen) - self.scored_from)
        first = max(self.checked, self.scored_from)
        states = cold.states(whole[:-1], False) if len(self.seen) > first else None
        for at in range(first, len(self.seen)):
            entry = found[at - self.scored_from]
            same(f"token of the logprobs at {at} of request {request.id}", entry.token, self.seen[at])
            logits = states.logits[at]
            rows = torch.log_softmax(logits.double(), -1)
            best = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))[: self.logprobs]
            same(f"logprob at {at} of request {request.id}", entry.logprob, float(rows[entry.token]))
            same(f"likely tokens at {at} of request {request.id}", entry.top, tuple((i, float(rows[i])) for i in best))
