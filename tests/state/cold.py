"""Cold truths: what a fresh eager engine says that runs one request alone, its prompt fed one token at a time.

Everything is a function of a prefix (and of temperature and seed), so it is computed once and kept over all runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from runtime.engine import Engine
from runtime.package import Package
from tests.state.bits import Bits, Pages, digest

Text = tuple[int, ...]
Sampling = tuple[float, int]
PASSES = 512
ANSWER = 24


def sampling(temperature: float, seed: int) -> Sampling:
    """What an answer depends on: greedy ones have no noise."""
    return temperature, seed if temperature else 0


@dataclass
class Pass:
    """States after every prefix of one text. parts[p], logits[p]: after p tokens; pages: KV of all of it, in order."""

    bits: Bits
    text: Text = ()
    parts: dict[int, bytes] = field(default_factory=dict)
    logits: dict[int, Tensor] = field(default_factory=dict)
    pages: Pages = field(default_factory=dict)

    def checkpoint(self, position: int) -> bytes:
        """Digest of a checkpoint at `position`."""
        return digest(self.parts[position] + self.entries(position, position - 1))

    def entries(self, target: int, drafter: int) -> bytes:
        """The leading KV entries."""
        return self.bits.join(self.pages, target, drafter)


class Cold:
    """Answers, states, logits and drafts of cold engines."""

    def __init__(self, package: Package, weights: dict[str, Tensor]) -> None:
        self.package, self.weights = package, weights
        self.limits = package.plan.limits
        self._next: dict[int, int] = {}
        self._passes: OrderedDict[tuple[Text, bool], Pass] = OrderedDict()
        self._drafts: dict[tuple[Text, Sampling], tuple[int, ...]] = {}
        self.runs = 0

    def engine(self, drafting: bool = False) -> Engine:
        """A fresh one."""
        self.runs += 1
        return Engine(
            self.package, self.weights, eager=True, drafts=0, drafting=drafting, prefill_chunk=1, checkpoints=False,
            slots=1, threads=1,
        )  # fmt: skip

    # Answers

    def answer(self, base: Sequence[int], temperature: float, seed: int, count: int) -> list[int]:
        """The first `count` tokens after `base`, or as many as fit the context. Stop tokens do not end it."""
        base, how, room = tuple(base), sampling(temperature, seed), self.limits.max_context - len(base)
        text = list(base)
        while len(text) < len(base) + min(count, room):
            token = self._next.get(hash((how, tuple(text))))
            if token is None:
                self._learn(base, how, min(max(count, ANSWER), room))
            else:
                text.append(token)
        return text[len(base) :]

    def _learn(self, base: Text, how: Sampling, count: int) -> None:
        answer = self._run(base, how, count, drafting=False)
        for length, token in enumerate(answer):
            self._next[hash((how, base + answer[:length]))] = token

    # States

    def states(self, text: Sequence[int], drafting: bool) -> Pass:
        """States after every prefix of `text`; the pass may be over a longer one."""
        text = tuple(text)
        while True:
            for (known, drafted), found in reversed(self._passes.items()):
                if drafted is drafting and known[: len(text)] == text and len(text) in found.parts:
                    self._passes.move_to_end((known, drafted))
                    return found
            self._run(text, (0.0, 0), 1, drafting)

    def logits(self, text: Sequence[int]) -> Tensor:
        """fp32 [vocab_size]: what the token after `text` is chosen from."""
        return self.states(text, False).logits[len(text)]

    def _run(self, prompt: Text, how: Sampling, count: int, drafting: bool) -> Text:
        """One request; its answer. Its states are kept as a pass."""
        with self.engine(drafting) as engine:
            asked = {"temperature": how[0], "seed": how[1], "stop_at_eos": False}
            request = engine.submit(list(prompt), max_new_tokens=count, **asked)
            found, done = Pass(Bits(engine)), 0
            while engine.busy:
                engine.step()
                done = self._note(engine, found, done)
            found.text = tuple(request.tokens[:done])
            self._take_pages(engine, found)
        self._passes[found.text, drafting] = found
        while len(self._passes) > PASSES:
            self._passes.popitem(last=False)
        return tuple(request.output)

    def _note(self, engine: Engine, found: Pass, done: int) -> int:
        """What the slot holds after a step. Returns how many tokens it has processed."""
        executor = engine.scheduler.executor
        folded, processed = executor.views["state_len"][0], executor.views["committed_len"][0]
        found.parts[folded] = found.bits.of_slot(0, folded)
        for at, row in zip(range(done, processed), executor.score(0, range(done, processed)), strict=True):
            found.logits[at + 1] = row
        return processed

    def _take_pages(self, engine: Engine, found: Pass) -> None:
        count = -(-len(found.text) // self.limits.page_size)
        table = engine.scheduler.executor.views["page_table"][:count].tolist()
        found.pages = {name: np.array(cache[table]) for name, cache in found.bits.caches.items()}
        found.bits.arrays, found.bits.caches = {}, {}

    # Drafts

    def drafts(self, text: Sequence[int], temperature: float, seed: int) -> tuple[int, ...]:
        """The token after `text`, and all drafts that a drafter run afresh over it proposes."""
        key = tuple(text), sampling(temperature, seed)
        if key not in self._drafts:
            self._drafts[key] = self._draft(*key)
        return self._drafts[key]

    def _draft(self, text: Text, how: Sampling) -> tuple[int, ...]:
        with self.engine(drafting=True) as engine:
            engine.set_drafts(self.limits.max_drafts)
            engine.submit(list(text), max_new_tokens=1, temperature=how[0], seed=how[1], stop_at_eos=False)
            while engine.busy:
                engine.step()
            return tuple(engine.scheduler.executor.views["tokens"][: 1 + self.limits.max_drafts].tolist())
