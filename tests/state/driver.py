"""Runs, one by one, and what becomes of the first that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from tests.state.chance import draw_operation, draw_setup, draw_weights
from tests.state.contents import Contents
from tests.state.operations import OPERATIONS, apply
from tests.state.setup import Setup
from tests.state.subject import Subject
from tests.state.tally import Tally
from tests.state.world import World

Story = Sequence[tuple[str, dict[str, int]]]


@dataclass(frozen=True)
class Failure:
    """A run in which something differs. error: what was raised last."""

    seed: int
    setup: Setup
    story: Story
    error: Exception

    def as_json(self) -> str:
        """What `from_json` reads."""
        return json.dumps({"setup": vars(self.setup), "operations": self.story})


def from_json(text: str) -> tuple[Setup, Story]:
    """The arguments of `Driver.replay`."""
    data = json.loads(text)
    return Setup(**data["setup"]), [(name, arguments) for name, arguments in data["operations"]]


class Driver:
    """Runs over one subject. contents: what was seen of any prefix in any of them."""

    def __init__(self, subject: Subject, tally: Tally | None = None) -> None:
        self.subject, self.tally, self.contents = subject, tally or Tally(), Contents()

    @contextmanager
    def _world(self, setup: Setup) -> Iterator[World]:
        world = World(self.subject, setup, self.contents, self.tally)
        try:
            yield world
        finally:
            world.close()

    def run(self, seed: int, operations: int) -> Failure | None:
        """One run of so many operations, then until everything has finished."""
        random = Random(seed)
        setup, weights = draw_setup(random), draw_weights(random)
        with self._world(setup) as world:
            try:
                for _ in range(operations):
                    name, arguments = draw_operation(random, world, weights)
                    apply(world, name, **arguments)
                world.finish()
            except Exception as error:
                return Failure(seed, setup, tuple(world.history), error)
        return None

    def replay(self, setup: Setup, story: Story) -> Exception | None:
        """Run these operations, without those that are not possible, and the end."""
        self.contents = Contents()
        with self._world(setup) as world:
            try:
                for name, arguments in story:
                    apply(world, name, **arguments)
                world.finish()
            except Exception as error:
                return error
        return None

    # Making small

    def shrink(self, failure: Failure) -> Failure:
        """Fewer operations, smaller arguments, a plainer setup, as long as it fails with the same kind of error."""
        found = Shrinking(Driver(self.subject), failure)
        found.shorten()
        found.simplify()
        found.shorten()
        found.plain()
        return found.best


class Shrinking:
    """The smallest failure so far. It need not be the same difference; any of its kind will do."""

    def __init__(self, driver: Driver, failure: Failure) -> None:
        self.driver, self.best = driver, failure

    def _fails(self, setup: Setup, story: Story) -> bool:
        error = self.driver.replay(setup, story)
        if type(error) is not type(self.best.error):
            return False
        self.best = Failure(self.best.seed, setup, tuple(story), error)
        return True

    def shorten(self) -> None:
        """Leave out operations, many at once first."""
        size = len(self.best.story)
        while size := (size + 1) // 2 if size > 1 else 0:
            at = 0
            while at < len(self.best.story):
                shorter = [*self.best.story[:at], *self.best.story[at + size :]]
                at += 0 if self._fails(self.best.setup, shorter) else size

    def simplify(self) -> None:
        """Make arguments small."""
        for number, (name, arguments) in enumerate(self.best.story):
            for argument, value in arguments.items():
                low = OPERATIONS[name].ranges[argument][0]
                any(self._with(number, argument, smaller) for smaller in range(low, value))

    def _with(self, number: int, argument: str, value: int) -> bool:
        story = list(self.best.story)
        if number >= len(story) or argument not in story[number][1]:
            return False
        story[number] = (story[number][0], {**story[number][1], argument: value})
        return self._fails(self.best.setup, story)

    def plain(self) -> None:
        """As many defaults as possible."""
        for name, value in vars(Setup()).items():
            if vars(self.best.setup)[name] != value:
                self._fails(Setup(**{**vars(self.best.setup), name: value}), self.best.story)
