"""An executor that tells a model what it is asked to do, runs the protocol simulator along, and can be interrupted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsl.reference.protocol import ProtocolMachine
from runtime.checkpoints.cache import Checkpoint
from runtime.checkpoints.device_pool import DevicePool
from runtime.emission import Emitter
from runtime.engine import Engine
from runtime.executor import Executor, Phase
from runtime.graphs import Graph
from runtime.plan import PAD_SLOT_ID
from runtime.seats import Seat
from tests.fuzz.lockstep import Lockstep
from tests.state.model import Model

INTERRUPTED = ("prefill", "begin", "replay", "save", "restore", "admit", "arm", "disarm", "set_pages", "score")


@dataclass
class Bomb:
    """Raises KeyboardInterrupt once, at the `number`-th call of `method`, before or after its work."""

    method: str
    number: int
    after: bool
    calls: int = 0
    gone_off: bool = False

    def tick(self, method: str, after: bool) -> None:
        """A call begins or ends."""
        if self.gone_off or method != self.method:
            return
        self.calls += not after
        if self.calls == self.number and after is self.after:
            self.gone_off = True
            raise KeyboardInterrupt


class Witness(Lockstep):
    """Takes the place of an engine's executor. bomb: what will interrupt it, if anything; scratch: to be scrubbed."""

    def __init__(self, inner: Executor, conv_width: int, pool: DevicePool, model: Model) -> None:
        super().__init__(inner, conv_width, pool)
        self.machine = ProtocolMachine(replace(self.machine.shape, max_slots=self.limits.max_slots + 1))
        self.model, self.bomb = model, None
        scratch = [self.buffers[buffer.name] for buffer in self.package.plan.role("scratch")]
        self.scratch = scratch if model.setup.scrub else []

    def _tick(self, method: str, after: bool = False) -> None:
        if self.bomb is not None:
            self.bomb.tick(method, after)

    # What the engine does, told

    def admit(self, slot: int, limit_len: int, temperature: float, seed: int, stops: Sequence[int]) -> None:
        request = self._request(slot)
        self.model.ever_admitted.add(request.id)
        self._tick("admit")
        self.model.admit(slot, request)
        super().admit(slot, limit_len, temperature, seed, stops)
        self._tick("admit", after=True)

    def _request(self, slot: int) -> object:
        return next(seat.request for seat in self.model.engine.scheduler.seats.all() if seat.slot == slot)

    def restore(self, slot: int, checkpoint: Checkpoint, pages: Sequence[int], copied: tuple[int, int] | None) -> None:
        self._tick("restore")
        self.model.restore(slot, checkpoint)
        self._have(checkpoint)
        super().restore(slot, checkpoint, pages, copied)
        self._tick("restore", after=True)

    def prefill(self, slot: int, start: int, tokens: Sequence[int], rows: Mapping[int, int]) -> None:
        self._tick("prefill")
        self.model.prefill(slot, start, tokens)
        super().prefill(slot, start, tokens, rows)
        self.model.prefilled(slot, len(tokens))
        self._tick("prefill", after=True)

    def begin(self, slot: int, next_drafts: int) -> int:
        self._tick("begin")
        token = super().begin(slot, next_drafts)
        self.model.begin(slot, token)
        self._tick("begin", after=True)
        return token

    def save(self, slot: int, position: int, row: int) -> None:
        self._tick("save")
        super().save(slot, position, row)
        self.model.saved(slot, position)
        self._tick("save", after=True)

    def arm(self, slot: int, position: int, row: int) -> None:
        self._tick("arm")
        super().arm(slot, position, row)
        self._tick("arm", after=True)

    def disarm(self, slot: int) -> None:
        self._tick("disarm")
        super().disarm(slot)
        self._tick("disarm", after=True)

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        self._tick("set_pages")
        super().set_pages(slot, first, pages)
        self._tick("set_pages", after=True)

    def score(self, slot: int, positions: Sequence[int]) -> object:
        self._tick("score")
        scores = super().score(slot, positions)
        self._tick("score", after=True)
        return scores

    def replay(self, graph: Graph) -> None:
        self._tick("replay")
        key = next(key for key, known in self.graphs.items() if known is graph)
        for tensor in self.scratch:
            tensor.fill_(float("nan"))
        if key[0] is Phase.STEP:
            self._step(graph, key[1])
        else:
            super().replay(graph)
        self._tick("replay", after=True)

    def _step(self, graph: Graph, bucket: int) -> None:
        views, width = self.views, self.limits.max_rows
        slots = [slot for slot in views["slot_idx"][:bucket] if slot != PAD_SLOT_ID]
        emitted = {slot: at for slot in slots if (at := views["emit_position"][slot]) >= 0}
        self.model.step(slots)
        super().replay(graph)
        tokens = views["out_tokens"]
        accepted = {slot: tokens[slot * width :][: views["num_accepted"][slot]].tolist() for slot in slots}
        self.model.stepped(accepted, emitted)
        for slot in slots:
            self.model.tally.hit(f"accepted {len(accepted[slot])}")

    # The simulator's checkpoints

    def _have(self, checkpoint: Checkpoint) -> None:
        """Make the simulator's checkpoint of a prefix that another engine has processed, and put into a file."""
        if checkpoint.key not in self.known:
            tokens, spare = checkpoint.tokens[: checkpoint.position], self.limits.max_slots
            self.machine.admit(spare, len(tokens) + 1)
            rows = [None] * (len(tokens) - 1) + [len(tokens)]
            (self.known[checkpoint.key],) = self.machine.prefill(spare, tokens, rows).checkpoints
            self.machine.release(spare)


def watch(engine: Engine, model: Model, conv_width: int) -> Witness:
    """Put a witness in the place of an engine's executor."""
    scheduler = engine.scheduler
    witness = Witness(scheduler.executor, conv_width, scheduler.tiers.device, model)
    scheduler.executor = scheduler.emitter.executor = scheduler.admission.executor = witness
    _observe_layout(scheduler.emitter, model)
    return witness


def _observe_layout(emitter: Emitter, model: Model) -> None:
    rows = emitter.rows

    def observed(seat: Seat, end: int) -> object:
        model.find_junction(seat.slot)
        return rows(seat, end)

    emitter.rows = observed
