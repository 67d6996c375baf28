"""What to write instead of operations that are not supported."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_INSTEAD = {
    "tt.elementwise_inline_asm": "inline assembly has no meaning here: write it with tl operations",
    "tt.dot_scaled": "scale the operands in the kernel and use tl.dot",
    "tt.call": "the callee is not in the module",
}
EIGHT_BIT_FLOATS = (
    "8-bit floats are not supported: convert on the host, or store them as uint8 and decode in the kernel"
)


def hint(name: str) -> str:
    """Reason of a refusal for an operation without a rule."""
    return _INSTEAD.get(name, "unknown operation: it needs a row in runtime/cpu/ttir/verify.py and an emitter")


def nearest(name: str, known: Iterable[str]) -> str:
    """`, nearest: a, b`, or nothing."""
    found = difflib.get_close_matches(name, sorted(known), 3)
    return f", nearest: {', '.join(found)}" if found else ""
