"""What the host knows of a slot in use, and of all of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from runtime.checkpoints.checkpoint import Emission
from runtime.checkpoints.retention import NEVER
from runtime.checkpoints.tree import Place
from runtime.request import Request


@dataclass(eq=False, slots=True)
class Seat:
    """A slot that a request sits in. The lengths mirror the device's.

    text: the request's tokens, as they come; target_len: how many of them to process before it decodes; pages: of its
    KV entries in order; room: KV entries they hold, or NEVER once the request cannot need more; next_due: the first
    retained position that is not written; emit: armed for the next step; near: in the tree, of
    the checkpoint that it was restored from or wrote last.
    """

    slot: int
    request: Request
    committed_len: int = 0
    state_len: int = 0
    text: array[int] = field(default_factory=lambda: array("i"))
    target_len: int = 0
    pages: list[int] = field(default_factory=list)
    room: int = 0
    next_due: int = NEVER
    emit: Emission | None = None
    near: Place | None = None


class Seats:
    """Seats by slot. `prefilling` and `decoding` are in order of admission."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.clear()

    def clear(self) -> None:
        """Every slot is free."""
        self.free = list(range(self.slots - 1, -1, -1))
        self.prefilling: list[Seat] = []
        self.decoding: list[Seat] = []

    @property
    def active(self) -> int:
        """Number of slots in use."""
        return self.slots - len(self.free)

    def all(self) -> list[Seat]:
        """Every seat in use."""
        return [*self.prefilling, *self.decoding]

    def by_priority(self) -> list[Seat]:
        """The prefilling seats, the highest priority first, in order of admission."""
        return sorted(self.prefilling, key=lambda seat: -seat.request.priority)

    def lowest(self, below: int) -> Seat | None:
        """The seat of the lowest priority, if that is less than `below`; of several the one admitted last."""
        lower = [seat for seat in self.all() if seat.request.priority < below]
        return min(lower, key=lambda seat: (seat.request.priority, -(seat.request.admitted_at or 0.0)), default=None)

    def admit(self, request: Request) -> Seat:
        """Seat a request in a free slot, to be prefilled."""
        seat = Seat(self.free.pop(), request)
        self.prefilling.append(seat)
        return seat

    def begin_decoding(self, seat: Seat) -> None:
        """From now on the seat takes part in decode steps."""
        self.decoding.append(seat)
        self.prefilling.remove(seat)

    def leave(self, seat: Seat) -> None:
        """Free the slot."""
        (self.prefilling if seat in self.prefilling else self.decoding).remove(seat)
        self.free.append(seat.slot)

    def of(self, request: Request) -> Seat | None:
        """The seat of a request, if it has one."""
        return next((seat for seat in self.all() if seat.request is request), None)
