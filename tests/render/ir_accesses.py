"""Which parameters a kernel loads from and stores to, as its Triton IR says: what reading its text must agree with."""

from __future__ import annotations

import re

OPERATION = re.compile(r"\s*(?:(%[\w.-]+)(?::\d+)? = )?\"?(tt\.\w+|arith\.select)\"? ([^:]*)")
MAKES_POINTERS = ("tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape")
LOADS, STORES = ("tt.load", "tt.atomic_rmw", "tt.atomic_cas"), ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")


def ir_accesses(ttir: str) -> tuple[set[str], set[str]]:
    """(parameters loaded from, parameters stored to). Raises KeyError for a pointer that it cannot follow."""
    signature = next(line for line in ttir.splitlines() if "tt.func public" in line)
    origins = {name: {name[1:]} for name in re.findall(r"(%\w+): !tt\.ptr", signature)}
    loaded: set[str] = set()
    stored: set[str] = set()
    for line in ttir.splitlines():
        found = OPERATION.match(line)
        if found is None or "!tt.ptr" not in line:
            continue
        result, op, rest = found.groups()
        operands = re.findall(r"%[\w.-]+", rest)
        if op in MAKES_POINTERS:
            origins[result] = origins[operands[0]]
        elif op == "arith.select":
            origins[result] = origins[operands[1]] | origins[operands[2]]
        if op in LOADS:
            loaded |= origins[operands[0]]
        if op in STORES:
            stored |= origins[operands[0]]
    return loaded, stored
