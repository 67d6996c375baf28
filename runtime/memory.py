"""How much memory there is, and how much a plan takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from runtime.errors import DoesNotFit
from runtime.plan import Buffer, Plan

MIB = 1 << 20
ALIGNMENT = 64
WEIGHT_ALIGNMENT = 128  # a line of a GPU's cache, two of a CPU's
ROLES = ("weight", "table", "state", "ring", "kv", "checkpoint", "protocol", "scratch")
CGROUP = Path("/sys/fs/cgroup")


def memory_table(plan: Plan) -> dict[str, int]:
    """Bytes by role, as allocated. Weights lie in one block and protocol buffers in another, each of them aligned."""
    return {role: sum(_allocated(buffer) for buffer in plan.role(role)) for role in ROLES}


def _allocated(buffer: Buffer) -> int:
    steps = {"weight": WEIGHT_ALIGNMENT, "protocol": ALIGNMENT}
    return aligned(buffer.bytes, steps.get(buffer.role, 1))


def aligned(size: int, step: int = ALIGNMENT) -> int:
    """Bytes rounded up to a multiple of `step`."""
    return -(-size // step) * step


def _fields(file: Path) -> dict[str, int]:
    """`name value` lines of a /proc or cgroup file; empty if it cannot be read."""
    try:
        lines = [line.replace(":", " ").split() for line in file.read_text().splitlines()]
        return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
    except OSError:
        return {}


def _cgroup_room(folder: Path) -> int | None:
    """Bytes until the memory limit of the control group, page cache counted as free; None without a limit."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return max(0, limit - used + _fields(folder / "memory.stat").get("inactive_file", 0))


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can be allocated on `device` now; None if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    room = [kib * 1024 for name, kib in _fields(Path("/proc/meminfo")).items() if name == "MemAvailable"]
    group = _cgroup_room(CGROUP)
    return min([*room, *([] if group is None else [group])], default=None)


def check_both_fit(plan: Plan, table: Mapping[str, int], on_host: Mapping[str, int], device: torch.device) -> None:
    """Raise DoesNotFit unless the device has room for `table` and the host for `on_host`, or one of them for both."""
    if device.type == "cpu":
        check_fits(plan, {**table, **on_host}, available_bytes(device))
        return
    check_fits(plan, table, available_bytes(device))
    check_fits(plan, on_host, available_bytes(torch.device("cpu")))


def check_fits(plan: Plan, table: Mapping[str, int], available: int | None) -> None:
    """Raise DoesNotFit, naming the largest role, unless the table's sum is at most `available` bytes."""
    needed = sum(table.values())
    if available is None or needed <= available:
        return
    role, size = max(table.items(), key=lambda item: item[1])
    raise DoesNotFit(
        model=plan.name,
        needed=f"{needed / MIB:.1f}",
        available=f"{available / MIB:.1f}",
        largest=f"largest: {role}, {size / MIB:.1f} MiB",
    )
