"""The memory table: what every buffer of a plan takes, grouped by role. The runtime allocates exactly this."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.plan import Buffer, Plan, Role

ALIGNMENT = 64
WEIGHT_ALIGNMENT = 128


def memory_table(plan: Plan) -> Mapping[Role, int]:
    """Bytes per role, in the order of Role. Weights lie in one block, protocol buffers in another, each aligned."""
    return {role: sum(_allocated(buffer) for buffer in plan.buffers if buffer.role is role) for role in Role}


def _allocated(buffer: Buffer) -> int:
    step = {Role.WEIGHT: WEIGHT_ALIGNMENT, Role.PROTOCOL: ALIGNMENT}.get(buffer.role, 1)
    return -(-buffer.bytes // step) * step


def total_bytes(plan: Plan) -> int:
    """Bytes of all buffers."""
    return sum(memory_table(plan).values())
