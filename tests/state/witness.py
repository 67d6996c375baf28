"""An executor that tells a model what it is asked to do, and runs the protocol simulator along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsl.reference.protocol import ProtocolMachine
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.device_pool import DevicePool
from runtime.emission import Emitter
from runtime.engine import Engine
from runtime.executor import Chunk, Executor, Phase
from runtime.graphs import Graph
from runtime.plan import PAD_SLOT_ID
from runtime.request import Options
from runtime.seats import Seat
from tests.fuzz.lockstep import Lockstep
from tests.state.model import Model


class Witness(Lockstep):
    """Takes the place of an engine's executor. scratch: filled with NaN before every replay."""

    def __init__(self, inner: Executor, conv_width: int, pool: DevicePool, model: Model) -> None:
        super().__init__(inner, conv_width, pool)
        self.machine = ProtocolMachine(replace(self.machine.shape, max_slots=self.limits.max_slots + 1))
        self.model = model
        scratch = [self.buffers[buffer.name] for buffer in self.package.plan.role("scratch")]
        self.scratch = scratch if model.setup.scrub else []

    # What the engine does, told

    def admit(self, slot: int, text: Sequence[int], prompt_len: int, options: Options) -> None:
        self.model.admit(slot, self._request(slot))
        super().admit(slot, text, prompt_len, options)

    def _request(self, slot: int) -> object:
        return next(seat.request for seat in self.model.engine.scheduler.seats.all() if seat.slot == slot)

    def restore(self, slot: int, checkpoint: Checkpoint, pages: Sequence[int], copied: tuple[int, int] | None) -> None:
        self.model.restore(slot, checkpoint)
        self._have(checkpoint)
        super().restore(slot, checkpoint, pages, copied)

    def prefill(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.model.prefill(chunk.slot, chunk.start, chunk.tokens)
        super().prefill(chunks)
        for chunk in chunks:
            self.model.prefilled(chunk.slot, len(chunk.tokens))

    def begin(self, slots: Sequence[int], next_drafts: int) -> list[int]:
        tokens = super().begin(slots, next_drafts)
        for slot, token in zip(slots, tokens, strict=True):
            self.model.begin(slot, token)
        return tokens

    def save(self, slot: int, position: int, row: int) -> None:
        super().save(slot, position, row)
        self.model.saved(slot, position)

    def replay(self, graph: Graph) -> None:
        key = next(key for key, known in self.graphs.items() if known is graph)
        for tensor in self.scratch:
            tensor.fill_(float("nan"))
        if key[0] is Phase.STEP:
            self._step(graph, key[1])
        else:
            super().replay(graph)

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
    for part in (scheduler, scheduler.prefill, scheduler.emitter, scheduler.admission):
        part.executor = witness
    _observe_layout(scheduler.emitter, model)
    return witness


def _observe_layout(emitter: Emitter, model: Model) -> None:
    rows = emitter.rows

    def observed(seat: Seat, end: int) -> object:
        model.find_junction(seat.slot)
        emissions = rows(seat, end)
        model.laid_out(seat.slot, end)
        return emissions

    emitter.rows = observed
