"""What a run can do: each operation with its arguments, all of them small integers, and when it is possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.state import asking, keeping, running
from tests.state.bombs import POINTS
from tests.state.world import World

Possible = Callable[[World], bool]


@dataclass(frozen=True)
class Operation:
    """run: does it; ranges: of its arguments, both ends included, the low one the simplest; weight: when drawing."""

    run: Callable[..., None]
    ranges: Mapping[str, tuple[int, int]]
    possible: Possible = lambda _: True
    weight: int = 1


def _some(world: World) -> bool:
    return bool(world.tracks)


def _running(world: World) -> bool:
    return bool(world.running())


def _unfinished(world: World) -> bool:
    return bool(world.unfinished())


def _answered(world: World) -> bool:
    return bool(world.having(lambda request: bool(request.output)))


PICK = {"pick": (0, 7)}
OPERATIONS: dict[str, Operation] = {
    "submit": Operation(
        asking.submit,
        {
            "source": (0, 18), "cut": (0, 7), "tail": (0, 3), "sampling": (0, 3), "new": (1, 24), "stops": (0, 9),
            "priority": (0, 2), "client": (0, 1), "deadline": (0, 9), "asked": (0, 9), "logprobs": (0, 9),
        },
        weight=10,
    ),
    "step": Operation(running.step, {"times": (1, 4)}, _unfinished, weight=20),
    "cancel": Operation(asking.cancel, PICK, _unfinished, weight=2),
    "preempt": Operation(asking.preempt, PICK, _running, weight=5),
    "fork": Operation(asking.fork, {**PICK, "at": (0, 3), "seed": (0, 3), "new": (0, 9)}, _some, weight=4),
    "rewind": Operation(asking.rewind, {**PICK, "to": (0, 5), "seed": (0, 3)}, _answered, weight=4),
    "set_drafts": Operation(running.set_drafts, {"drafts": (0, 7)}, lambda world: world.setup.drafting, weight=3),
    "poison": Operation(running.poison, {"number": (0, 1)}, weight=4),
    "interrupt": Operation(
        running.interrupt,
        {"point": (0, len(POINTS) - 1), "number": (1, 4), "after": (0, 1), "during": (0, 5)},
        _some,
        weight=4,
    ),
    "inspect": Operation(running.inspect, PICK, weight=2),
    "look": Operation(running.look, PICK, _some),
    "evict": Operation(keeping.evict, {"times": (1, 4)}, weight=2),
    "clear": Operation(keeping.clear, {"pick": (0, 3)}),
    "pin": Operation(keeping.pin, PICK, _some, weight=2),
    "unpin": Operation(keeping.unpin, PICK, lambda world: bool(world.pins)),
    "save": Operation(keeping.save, {}),
    "load": Operation(keeping.load, {}, lambda world: world.archive is not None),
    "write": Operation(keeping.write, {"count": (1, 8)}, lambda world: world.writer is not None, weight=4),
    "reopen": Operation(keeping.reopen, {"kill": (0, 1), "change": (0, 7)}),
}  # fmt: skip


def apply(world: World, name: str, **arguments: int) -> bool:
    """Run an operation and check everything; False if it is not possible now."""
    operation = OPERATIONS[name]
    if not operation.possible(world):
        return False
    world.apply(name, operation.run, **arguments)
    return True
