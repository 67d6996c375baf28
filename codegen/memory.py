"""The memory table: what every buffer of a plan takes, grouped by role. The runtime allocates exactly this."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.plan import Plan, Role


def memory_table(plan: Plan) -> Mapping[Role, int]:
    """Bytes per role, in the order of Role."""
    return {role: sum(buffer.bytes for buffer in plan.buffers if buffer.role is role) for role in Role}


def total_bytes(plan: Plan) -> int:
    """Bytes of all buffers."""
    return sum(buffer.bytes for buffer in plan.buffers)
