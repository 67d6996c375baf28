"""An executor that runs every operation on the protocol simulator as well, and compares the buffers after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from dsl.reference.protocol import Checkpoint as ModelCheckpoint
from dsl.reference.protocol import Phase as SlotPhase
from dsl.reference.protocol import ProtocolMachine, ProtocolShape, SeatResult, Supplied
from runtime.checkpoints.checkpoint import Checkpoint, Key
from runtime.checkpoints.device_pool import DevicePool
from runtime.drafter import Drafter
from runtime.executor import Chunk, Executor, Phase
from runtime.graphs import Graph
from runtime.plan import PAD_SLOT_ID
from runtime.request import Options

OF_A_SLOT = ("committed_len", "state_len", "num_accepted", "tokens", "out_tokens", "limit_len", "page_table")


class Lockstep(Executor):
    """Takes the place of an engine's executor. `steps` counts the decode steps compared, `saves` the saves.

    rows: the prefix that each checkpoint row must hold; known: the simulator's checkpoint of every prefix so far. What
    `pool` loads into a row was written by this executor once, and must be the same.
    """

    def __init__(self, inner: Executor, conv_width: int, pool: DevicePool) -> None:
        super().__init__(inner.package, inner.buffers, inner.drafter, inner.eager)
        limits = self.limits
        shape = ProtocolShape(
            max_slots=limits.max_slots,
            max_drafts=limits.max_rows - 1 if self.drafter is not Drafter.NONE else 0,
            conv_width=conv_width,
            page_size=limits.page_size,
            ring=limits.ring,
            drafter_kv_offset=0,
        )
        self.machine = ProtocolMachine(shape)
        self.rows: dict[int, Key] = {}
        self.known: dict[Key, ModelCheckpoint] = {}
        self.steps = self.saves = 0
        self._watch(pool)

    def _watch(self, pool: DevicePool) -> None:
        load = pool.load

        def watched(image, row, pages):
            load(image, row, pages)
            self.rows[row] = (image.position, image.digest)

        vars(pool)["load"] = watched

    # What the engine does, on both sides

    def admit(self, slot: int, text: Sequence[int], prompt_len: int, options: Options) -> None:
        super().admit(slot, text, prompt_len, options)
        if self.machine.slots[slot].phase is not SlotPhase.FREE:
            self.machine.release(slot)
        self.machine.admit(slot, options.limit_len, options.stops)

    def prefill(self, chunks: Sequence[Chunk]) -> None:
        super().prefill(chunks)
        for chunk in chunks:
            self._prefilled(*chunk)

    def _prefilled(self, slot: int, start: int, tokens: Sequence[int], rows: Mapping[int, int]) -> None:
        wanted = [start + i + 1 if start + i + 1 in rows else None for i in range(len(tokens))]
        result = self.machine.prefill(slot, tokens, wanted)
        for checkpoint in result.checkpoints:
            self._keep(rows[checkpoint.position], checkpoint)
        self._compare("committed_len", slot, result.committed_len)
        self._compare("state_len", slot, result.committed_len)

    def begin(self, slots: Sequence[int], next_drafts: int) -> list[int]:
        tokens = super().begin(slots, next_drafts)
        drafts = next_drafts if self.drafter is not Drafter.NONE else 0
        for slot, token in zip(slots, tokens, strict=True):
            self._compare_seat(self.machine.begin(slot, drafts, Supplied((token,), self._drafts(slot, drafts))))
        return tokens

    def save(self, slot: int, position: int, row: int) -> None:
        committed = self.views["committed_len"][slot]
        super().save(slot, position, row)
        self._keep(row, self.machine.save(slot, position))
        self._compare("state_len", slot, position)
        self._compare("committed_len", slot, committed)
        self.saves += 1

    def restore(self, slot: int, checkpoint: Checkpoint, pages: Sequence[int], copied: tuple[int, int] | None) -> None:
        super().restore(slot, checkpoint, pages, copied)
        found = self.rows[checkpoint.index]
        assert found == checkpoint.key, f"row {checkpoint.index} holds {found}, not {checkpoint.key}"
        self.machine.restore(slot, self.known[checkpoint.key])
        self._compare("committed_len", slot, checkpoint.position)
        self._compare("state_len", slot, checkpoint.position)

    def score(self, slot: int, positions: Sequence[int]) -> Tensor:
        """Nothing of any slot changes."""
        before = {name: self.views[name].tolist() for name in OF_A_SLOT}
        logits = super().score(slot, positions)
        assert {name: self.views[name].tolist() for name in OF_A_SLOT} == before
        return logits

    def replay(self, graph: Graph) -> None:
        key = next(key for key, known in self.graphs.items() if known is graph)
        if key[0] is not Phase.STEP:
            super().replay(graph)
            return
        _, bucket, verify_drafts, next_drafts = key
        seats = [slot for slot in self.views["slot_idx"][:bucket] if slot != PAD_SLOT_ID]
        emit = {slot: self.views["emit_position"][slot] for slot in seats if self.views["emit_position"][slot] >= 0}
        rows = {slot: self.views["emit_checkpoint"][slot] for slot in emit}
        super().replay(graph)
        supplied = {slot: self._supplied(slot, next_drafts) for slot in seats}
        for result in self.machine.step(seats, verify_drafts, next_drafts, emit=emit, supplied=supplied):
            self._compare_seat(result)
            if result.checkpoint is not None:
                self._keep(rows[result.slot], result.checkpoint)
        self.steps += 1

    # Comparing

    def _supplied(self, slot: int, next_drafts: int) -> Supplied:
        at = slot * self.limits.max_rows
        emitted = self.views["out_tokens"][at : at + self.views["num_accepted"][slot]].tolist()
        return Supplied(tuple(emitted), self._drafts(slot, next_drafts))

    def _drafts(self, slot: int, count: int) -> tuple[int, ...]:
        at = slot * self.limits.max_rows
        return tuple(self.views["tokens"][at + 1 : at + 1 + count].tolist())

    def _keep(self, row: int, checkpoint: ModelCheckpoint) -> None:
        key = self.rows[row] = checkpoint.key
        if key in self.known:
            assert checkpoint.state == self.known[key].state, f"two states of the prefix of {key[0]} tokens"
            self.machine.evict(self.known[key])
        self.known[key] = checkpoint

    def _compare_seat(self, result: SeatResult) -> None:
        self._compare("committed_len", result.slot, result.committed_len)
        self._compare("state_len", result.slot, result.state_len)
        self._compare("num_accepted", result.slot, max(result.num_accepted, 1))
        next_token = self.views["tokens"][result.slot * self.limits.max_rows]
        assert next_token == result.next_token, (
            f"slot {result.slot}: next token {next_token}, {result.next_token} expected"
        )

    def _compare(self, name: str, slot: int, expected: int) -> None:
        found = self.views[name][slot]
        assert found == expected, f"{name}[{slot}] is {found}, the protocol says {expected}"
