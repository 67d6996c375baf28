"""The memory table: what every buffer of a plan takes, grouped by role. The runtime allocates exactly this."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.plan import Buffer, Plan, Role

ALIGNMENT = 64


def memory_table(plan: Plan) -> Mapping[Role, int]:
    """Bytes per role, in the order of Role. The protocol buffers lie in one block, each at a multiple of ALIGNMENT."""
    return {role: sum(_allocated(buffer) for buffer in plan.buffers if buffer.role is role) for role in Role}


def _allocated(buffer: Buffer) -> int:
    return buffer.bytes if buffer.role is not Role.PROTOCOL else -(-buffer.bytes // ALIGNMENT) * ALIGNMENT


def total_bytes(plan: Plan) -> int:
    """Bytes of all buffers."""
    return sum(memory_table(plan).values())
