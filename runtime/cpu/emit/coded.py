"""coded_bf16 of functions.py: decoded into an array, or left to the one packed dot that reads it (emit/dot.py)."""

from __future__ import annotations

from ..ttir.ir import CODED, Op
from .emitter import Emitter, emits


@emits(CODED)
def coded(e: Emitter, op: Op) -> None:
    if op.result in e.placement.stored:
        rows, columns, _ = op.result.type.dims
        source = e.fresh("coded")
        e.write(f"const cp_coded {source} = {coded_rows(e, op)};")
        e.write(f"cp_decode({rows}, {columns}, &{source}, {e.allocate(op.result)});")


def coded_rows(e: Emitter, op: Op) -> str:
    """C expression of the rows that a call decodes."""
    e.include("coded.h")
    return f"(cp_coded){{{', '.join(f'(const uint8_t *){e.scalar(pointer)}' for pointer in op.operands)}}}"
