"""The run: drawn inputs, what became of them, and what should not have."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter

from tests.hostile.subject import make_good
from tests.hostile.surfaces import Checkpoints, Packages, Specs, Surface, Tuned, Weights
from tests.hostile.watch import Hang, within

SECONDS = 10.0  # for one input


@dataclass(frozen=True)
class Finding:
    """An input that was not answered as it must be. `input` repeats it: (seed, number)."""

    surface: str
    input: tuple[int, int]
    what: str
    data: bytes


@dataclass
class Tally:
    """A run so far. codes: inputs by surface and code; an input with several mistakes counts for each code once."""

    inputs: Counter[str] = field(default_factory=Counter)
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slowest: float = 0.0


def fuzz(folder: Path, mutations: int, seed: int, progress: Callable[[int], None] = lambda done: None) -> Tally:
    """Feed `mutations` inputs; `folder` is an empty one for scratch files."""
    good = make_good(folder)
    surfaces: list[Surface] = [Specs(), Weights(good), Packages(good), Checkpoints(good), Tuned()]
    scratch = folder / "scratch"
    scratch.mkdir()
    tally = Tally()
    for number in range(mutations):
        random = Random(f"{seed} {number}")
        surface = random.choices(surfaces, [each.share for each in surfaces])[0]
        _feed(surface, scratch, (seed, number), surface.draw(random), tally)
        progress(number + 1)
    return tally


def _feed(surface: Surface, scratch: Path, key: tuple[int, int], data: bytes, tally: Tally) -> None:
    path = scratch / surface.name
    path.write_bytes(data)
    start, what = perf_counter(), ""
    try:
        with within(SECONDS):
            codes = surface.feed(path, data, key[1])
        tally.codes.update({(surface.name, code) for code in codes})
    except (Exception, Hang):
        what = traceback.format_exc(limit=-4)
    except BaseException as error:  # a Rust panic of pydantic or safetensors is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        what = traceback.format_exc(limit=-4)
    tally.slowest = max(tally.slowest, perf_counter() - start)
    tally.inputs[surface.name] += 1
    left = [other.name for other in scratch.iterdir() if other != path]
    if left:
        what += f"\nleft behind: {left}"
    if what:
        tally.findings.append(Finding(surface.name, key, what, data))
    path.unlink(missing_ok=True)
