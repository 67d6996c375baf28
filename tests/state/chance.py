"""Runs by chance: a setup and operations from a seed, some operations rarer or absent in each run."""

from __future__ import annotations

from random import Random

from tests.state.operations import OPERATIONS
from tests.state.setup import Setup
from tests.state.world import World

CHOICES: dict[str, tuple[object, ...]] = {
    "drafts": (0, 1, 2, 3, 3, 5, 7),
    "drafting": (True, True, True, True, False),
    "slots": (1, 2, 3, 4),
    "interval": (8, 0, 5, None),
    "prefill_chunk": (16, 16, 7, 3),
    "prefill_budget": (None, None, 5, 20),
    "rows": (24, 24, 24, 7, 5, 0),
    "spare_pages": (64, 6, 0, 0),
    "host_rows": (0, 0, 3, 8),
    "files": (False, True),
    "files_bytes": (None, None, 100_000),
    "max_queue": (1024, 1024, 3),
    "scrub": (False, True),
    "eager": (False,) * 19 + (True,),
}
# Few pages for many requests: what is held has to be given up.
TIGHT: dict[str, tuple[object, ...]] = {
    "slots": (1, 1, 2),
    "spare_pages": (0, 0, 2),
    "rows": (24, 12, 6),
    "max_queue": (1024,),
}
TIGHT_SHARE = 0.25
LIKELINESS = (0.0, 0.3, 1.0, 1.0, 1.0, 2.0)
NEEDED = ("submit", "step")


def draw_setup(random: Random) -> Setup:
    """Options of a run's engines."""
    choices = CHOICES | (TIGHT if random.random() < TIGHT_SHARE else {})
    return Setup(**{name: random.choice(values) for name, values in choices.items()})


def draw_weights(random: Random) -> dict[str, float]:
    """How often each operation is drawn in a run."""
    return {
        name: operation.weight * (1.0 if name in NEEDED else random.choice(LIKELINESS))
        for name, operation in OPERATIONS.items()
    }


def draw_operation(random: Random, world: World, weights: dict[str, float]) -> tuple[str, dict[str, int]]:
    """One that is possible now."""
    possible = [name for name, operation in OPERATIONS.items() if operation.possible(world)]
    (name,) = random.choices(possible, [weights[name] for name in possible])
    return name, {argument: random.randint(*ends) for argument, ends in OPERATIONS[name].ranges.items()}
