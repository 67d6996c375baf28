"""A process that searches a made-up landscape: `python -m tests.autotune.searching FOLDER NAME DELAY [LIMIT]`.

Prints the key of each trial when it is done, so that tests may kill it between two, or in the middle of one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from autotune.measure import GivenUp, Report, Verdict
from autotune.proof import Rejected
from autotune.space import Order, Space, key
from autotune.study import Search, open_study
from autotune.tune import Attempt, run_trials
from codegen.lower import lower
from codegen.plan import Kernel, Plan
from codegen.tunables import Tunable, Value
from codegen.tuned import MEASURED
from tests.cpu.engine.toys import toy_spec

WIDTHS, TILES, BYTES = (16, 32, 64, 128), ((1,), (1, 2), (1, 2, 4), (1, 2, 4, 8)), (0, 512, 1024)
WRONG = {"BLOCK_N": 16, "prefetch_bytes": 512}


def made_up(plan: Plan) -> Space:
    """48 candidates of a kernel of the toy."""
    kernel: Kernel = next(kernel for kernel in plan.kernels if kernel.template.endswith("/matmul.py.j2"))
    tunables = (
        Tunable("BLOCK_N", 64, WIDTHS, changes_bits=False),
        Tunable("row_tiles", (1, 2, 4, 8), TILES, changes_bits=False),
        Tunable("prefetch_bytes", 0, BYTES, changes_bits=False),
    )
    return Space(plan, kernel, tunables)


def everything(space: Space) -> Order:
    """All candidates, none promising more than another."""
    return Order(tuple(space), {key(values): 1.0 for values in space})


def ratio(values: Mapping[str, Value]) -> float:
    """The untuned kernel is at 1, the best of all at about 0.72; the tunables act on each other a little."""
    width, tiles, ahead = values["BLOCK_N"], values["row_tiles"], values["prefetch_bytes"]
    found = 1.0 + 0.06 * (WIDTHS.index(width) - 2) ** 2 - 0.16 * (width == 32)  # type: ignore[arg-type]
    found += 0.05 * (3 - TILES.index(tiles)) - 0.15 * (tiles == (1, 2))  # type: ignore[arg-type]
    found -= 0.04 * BYTES.index(ahead) * (1 if width == 32 else -1)  # type: ignore[arg-type]
    return found


class Landscape:
    """Evaluates by `ratio`; one corner is wrong, and candidates far from the best are given up."""

    kind = MEASURED

    def __init__(self, space: Space, delay: float = 0.0) -> None:
        self.space, self.delay = space, delay

    def evaluate(self, values: Mapping[str, Value], report: Report) -> Verdict:
        """As a bench does."""
        time.sleep(self.delay)
        full = self.space.default | dict(values)
        if all(full[name] == value for name, value in WRONG.items()):
            raise Rejected("y[0] is 1.0, not 2.0")
        found = ratio(full)
        if report(found, 0) or found > 1.3:
            raise GivenUp("slow")
        return Verdict(found, 0.001, {"scenes": {}}, MEASURED)

    def decide(self, values: Mapping[str, Value]) -> Verdict:
        """The same."""
        return Verdict(ratio(self.space.default | dict(values)), 0.001, {"scenes": {}}, MEASURED)


def main() -> None:
    """Search until everything is tried, or LIMIT trials are done."""
    folder, name, delay, *rest = sys.argv[1:]
    space = made_up(lower(toy_spec(), "cpu"))
    search = Search(open_study(folder, name), space, everything(space))

    def say(attempt: Attempt) -> None:
        print(key(attempt.values), flush=True)

    run_trials(search, space, Landscape(space, float(delay)), on_trial=say, most=int(rest[0]) if rest else None)


if __name__ == "__main__":
    main()
