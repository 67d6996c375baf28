"""Who used the processor meanwhile: of Linux's books, in seconds of one core."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICK = 1.0 / os.sysconf("SC_CLK_TCK")
SHORTEST_SECONDS = 0.5
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal of the first line of /proc/stat


@dataclass(frozen=True)
class Usage:
    """Mean cores used during a measurement. idle: by sides with nothing to do; others: by the rest of the machine."""

    idle: float
    others: float


class UsageClock:
    """Notes usage from its making to `read`. workers: pids of the sides' processes; active: the one that works, if any.

    What this process does itself, and programs that it runs and waits for, count as active.
    """

    def __init__(self, workers: Iterable[int], active: int | None) -> None:
        self._workers, self._active = tuple(workers), active
        self._begun = time.perf_counter()
        self._busy, self._used = machine_seconds(), self._seconds()

    def read(self) -> Usage | None:
        """Usage since the clock was made; None if that is too short for books that count in hundredths of a second."""
        wall = time.perf_counter() - self._begun
        if wall < SHORTEST_SECONDS:
            return None
        busy = machine_seconds() - self._busy
        used = {pid: seconds - self._used[pid] for pid, seconds in self._seconds().items()}
        idle = sum(used[pid] for pid in self._workers if pid != self._active)
        return Usage(max(0.0, idle / wall), max(0.0, (busy - sum(used.values())) / wall))

    def _seconds(self) -> dict[int, float]:
        """CPU seconds of every worker with its descendants, and of this process with its other ones."""
        me = os.getpid()
        family = descendants((*self._workers, me))
        family[me] -= set().union(*(family[pid] for pid in self._workers))
        return {pid: sum(map(process_seconds, members)) for pid, members in family.items()}


def machine_seconds() -> float:
    """Seconds that all cores together have been busy."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[index]) for index in BUSY_FIELDS) * TICK


def process_seconds(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for; 0 of one that is gone."""
    return sum(int(field) for field in _stat(pid)[11:15]) * TICK


def descendants(roots: Iterable[int]) -> dict[int, set[int]]:
    """Every root with itself and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: dict[int, set[int]] = {}
    for root in roots:
        family, todo = set(), [root]
        while todo:
            pid = todo.pop()
            family.add(pid)
            todo += children.get(pid, [])
        found[root] = family
    return found


def peak_bytes(root: int) -> int:
    """Peak resident memory of a process and its living descendants, summed."""
    return sum(_high_water(pid) for pid in descendants([root])[root])


def _high_water(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the name, state first; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
