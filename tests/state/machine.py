"""The operations as the one rule of a hypothesis state machine: a second driver, which shrinks in its own way."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.state.chance import CHOICES
from tests.state.contents import Contents
from tests.state.operations import OPERATIONS
from tests.state.setup import Setup
from tests.state.subject import toy
from tests.state.tally import Tally
from tests.state.world import World

CONTENTS = Contents()


class Machine(RuleBasedStateMachine):
    """A run."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(options=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()}))
    def begin(self, options: dict[str, object]) -> None:
        """An engine."""
        self.world = World(toy(), Setup(**options), CONTENTS, Tally())

    @precondition(lambda self: self.world is not None)
    @rule(data=st.data())
    def operate(self, data: st.DataObject) -> None:
        """One of the operations that are possible now. One rule for all: hypothesis leaves out rules in some runs."""
        names = [name for name, known in OPERATIONS.items() if known.possible(self.world) for _ in range(known.weight)]
        name = data.draw(st.sampled_from(names))
        ranges = OPERATIONS[name].ranges.items()
        self.world.apply(name, OPERATIONS[name].run, **{key: data.draw(st.integers(*ends)) for key, ends in ranges})

    def teardown(self) -> None:
        """Let it run out, and check the end, unless something differed already."""
        if self.world is not None:
            try:
                if not self.world.differed:
                    self.world.finish()
            finally:
                self.world.close()
