"""Interleaved rounds: every side answers each figure's request once a round, one side at a time, in changing order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from runtime.bench.usage import SHORTEST_SECONDS, Usage, UsageClock

from .figures import ASKS, Figure, times_as_fast, value_of
from .models import OPENVINO
from .sides import Side, Worker

REST_SECONDS = SHORTEST_SECONDS  # between two measurements: longer than idle threads of OpenMP spin
AWAKE_CORES = 0.1  # more than this of a core, and a side is not asleep yet: vLLM's worker spins for a second
LONGEST_REST_SECONDS = 5.0
Progress = Callable[[str], None]


@dataclass
class Samples:
    """values: a figure of every side, one per round. bandwidth: bytes per second read beside our decode, per round.

    usage: of every measurement that was long enough to tell, by side. awake: cores that sides used which should have
    slept by then, before measurements that began nevertheless.
    """

    values: dict[Figure, dict[str, list[float]]] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)
    usage: dict[str, list[Usage]] = field(default_factory=dict)
    awake: list[float] = field(default_factory=list)
    step_bytes: int = 0
    read_bytes: int = 0

    @property
    def others(self) -> float:
        """Mean cores that the rest of the machine used, over all measurements."""
        found = [usage.others for usages in self.usage.values() for usage in usages]
        return sum(found) / len(found) if found else 0.0

    def median(self, figure: Figure, side: str) -> float | None:
        """Median over rounds, None if the side was not measured."""
        values = self.values.get(figure, {}).get(side)
        return median(values) if values else None

    def ratio(self, figure: Figure, ours: str, theirs: str) -> float | None:
        """Median over rounds of how many times as fast ours was in the same round."""
        sides = self.values.get(figure, {})
        if not (sides.get(ours) and sides.get(theirs)):
            return None
        pairs = zip(sides[ours], sides[theirs], strict=True)
        return median(times_as_fast(figure, mine, other) for mine, other in pairs)

    def share(self, side: str) -> float | None:
        """Median over rounds of decode's bytes per second over the bandwidth of that round.

        The bytes are those of our step with weights as the file stores them, whatever a side makes of them.
        """
        speeds = self.values.get(Figure.DECODE, {}).get(side)
        if not speeds or not self.bandwidth:
            return None
        return median(
            speed * self.step_bytes / bandwidth for speed, bandwidth in zip(speeds, self.bandwidth, strict=True)
        )

    def read_share(self, ours: str) -> float | None:
        """The same of the bytes that our step reads."""
        share = self.share(ours)
        return None if share is None else share * self.read_bytes / self.step_bytes


def measure(
    sides: Sequence[Side], meter: Worker, figures: Sequence[Figure], rounds: int, progress: Progress
) -> Samples:
    """Run every figure `rounds` times, after one run of each that does not count. The first side is ours.

    meter: reads the bandwidth just before and just after our decode.
    """
    found = Samples({figure: {side.name: [] for side in sides if can_answer(side, figure)} for figure in figures})
    found.step_bytes, found.read_bytes = (int(sides[0].about[name]) for name in ("step_bytes", "read_bytes"))
    for side in sides:
        progress(f"warming up {side.name}")
        for figure in figures:
            if can_answer(side, figure):
                side.ask(replace(ASKS[figure], seed=list(Figure).index(figure)))
    pids = [process.pid for process in (*sides, meter) if process.pid is not None]
    for number in range(rounds):
        for figure in figures:
            seed = (1 + number) * len(Figure) + list(Figure).index(figure)
            answering = [side for side in sides if can_answer(side, figure)]
            for side in answering[:: 1 if number % 2 == 0 else -1]:
                progress(f"round {number + 1} of {rounds}: {figure} of {side.name}")
                beside = figure is Figure.DECODE and side is sides[0]
                if (cores := rest(pids)) is not None:
                    found.awake.append(cores)
                before = _bandwidth(meter, found.step_bytes) if beside else 0.0
                _once(found, pids, side, figure, seed)
                if beside:
                    found.bandwidth.append((before + _bandwidth(meter, found.step_bytes)) / 2)
    return found


def can_answer(side: Side, figure: Figure) -> bool:
    """OpenVINO GenAI's pipeline for GGUF files takes one request."""
    return not (side.name == OPENVINO and figure is Figure.BATCH)


def _once(found: Samples, pids: Sequence[int], side: Side, figure: Figure, seed: int) -> None:
    """One measurement. pids: of all sides' processes."""
    clock = UsageClock(pids, side.pid)
    value = value_of(figure, side.ask(replace(ASKS[figure], seed=seed)))
    if (usage := clock.read()) is not None:
        found.usage.setdefault(side.name, []).append(usage)
    found.values[figure][side.name].append(value)


def rest(pids: Sequence[int]) -> float | None:
    """Wait until these processes sleep. If one never does: the cores that they still used in the last moment."""
    end = time.monotonic() + LONGEST_REST_SECONDS
    while True:
        clock = UsageClock(pids, None)
        time.sleep(REST_SECONDS)
        usage = clock.read()
        if usage is None or usage.idle <= AWAKE_CORES:
            return None
        if time.monotonic() > end:
            return usage.idle


def _bandwidth(meter: Worker, size: int) -> float:
    return float(meter.call({"operation": "bandwidth", "bytes": size})["bytes_per_second"])
