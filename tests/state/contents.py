"""What checkpoints and slots hold: the same bits for the same prefix, for ever, and those of a cold engine."""

from __future__ import annotations

import array

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.engine import Engine
from runtime.seats import Seat
from tests.state.bits import Bits
from tests.state.cold import Cold, Text
from tests.state.differences import holds, same


class Contents:
    """Digests of everything ever seen, by prefix, over all engines of one package. proven: compared with cold ones."""

    def __init__(self) -> None:
        self.seen: dict[tuple[bool, bytes], bytes] = {}
        self.proven: set[tuple[bool, bytes]] = set()

    def check(self, engine: Engine, bits: Bits) -> None:
        """Every checkpoint on the device holds what any other of its prefix held, at any time."""
        for checkpoint in engine.scheduler.cache.all():
            if checkpoint.index is not None:
                found = bits.checkpoint(checkpoint.index, checkpoint.pages, checkpoint.position)
                expected = self.seen.setdefault((bits.drafting, name_of(checkpoint)), found)
                name = f"the checkpoint at {checkpoint.position}"
                holds(found == expected, f"{name} has changed, or is not as others of its prefix were")

    def prove(self, cold: Cold, drafting: bool, text: Text) -> int:
        """What was seen of a prefix is what a cold engine holds. Returns 1 if that was not known before."""
        name = (drafting, array.array("i", text).tobytes())
        if name in self.proven or name not in self.seen:
            return 0
        expected = cold.states(text, drafting).checkpoint(len(text))
        holds(self.seen[name] == expected, f"the checkpoint at {len(text)} is not the cold state after {list(text)}")
        self.proven.add(name)
        return 1

    def forget(self) -> None:
        """Start again: what was seen may have been wrong."""
        self.seen.clear()
        self.proven.clear()


def name_of(checkpoint: Checkpoint) -> bytes:
    """Its prefix."""
    return array.array("i", checkpoint.tokens[: checkpoint.position]).tobytes()


def check_slot(engine: Engine, bits: Bits, cold: Cold, seat: Seat, whole: list[int]) -> None:
    """State, rings and KV of a slot in use are those of a cold engine. whole: its text, with what is to come."""
    drafting = bits.drafting
    if not seat.committed_len:
        return
    states = cold.states(whole[: cold.limits.max_context - 1], drafting)
    decoding = seat in engine.scheduler.seats.decoding
    if seat.state_len:
        _check_parts(bits, seat, states.parts[seat.state_len])
    drafted = seat.committed_len if decoding else seat.committed_len - 1
    drafted = min(drafted, len(states.text) - 1)
    found = bits.entries(seat.pages, seat.committed_len, drafted)
    holds(found == states.entries(seat.committed_len, drafted), f"KV of slot {seat.slot} is not the cold one")
    if decoding and drafting:
        _check_drafts(engine, cold, seat)


def _check_parts(bits: Bits, seat: Seat, expected: bytes) -> None:
    found = bits.of_slot(seat.slot, seat.state_len)
    holds(found == expected, f"the state of slot {seat.slot} at {seat.state_len} is not the cold one")


def _check_drafts(engine: Engine, cold: Cold, seat: Seat) -> None:
    """The drafts are those of a drafter run afresh over the accepted text."""
    request, width = seat.request, engine.package.plan.limits.max_rows
    count = 1 + engine.scheduler.drafted
    found = tuple(engine.scheduler.executor.views["tokens"][seat.slot * width :][:count].tolist())
    text = request.tokens[: seat.committed_len]
    same(f"drafts of slot {seat.slot}", found, cold.drafts(text, request.temperature, request.seed)[:count])
