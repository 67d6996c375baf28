"""The elementwise operations as a table: how each is written in Triton, on which types, and what its result has."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cpu.fuzz.dtypes import BF16, BOOL, F32, F64, FLOATS, I32, I64, INTEGERS, SIGNED, U32, U64, DType, promote
from tests.cpu.fuzz.versions import BF16_WIDENS, holds


@dataclass(frozen=True)
class Operation:
    """`source` is a format over operand names. Operands of mixed types are promoted if `mixes`; what `compares`
    gives bool.

    `widens`: bf16 becomes f32 first; `divides`: every 16-bit float does."""

    source: str
    domain: tuple[DType, ...]
    arity: int = 2
    mixes: bool = False
    compares: bool = False
    widens: bool = False
    divides: bool = False

    def computes(self, operands: tuple[DType, ...]) -> DType:
        """Type in which the operation runs."""
        dtype = operands[0]
        for other in operands[1:]:
            dtype = promote(dtype, other, self.divides)
        if self.divides and len(operands) > 1:
            dtype = promote(dtype, dtype, True)
        return F32 if self.widens and dtype is BF16 else dtype

    def result(self, operands: tuple[DType, ...]) -> DType:
        return BOOL if self.compares else self.computes(operands)


MATH = (F32, F64)
WIDENS = holds(BF16_WIDENS)
BITS = (*INTEGERS, BOOL)
OPERATIONS: dict[str, Operation] = {
    "add": Operation("{} + {}", (*FLOATS, *INTEGERS), mixes=True),
    "sub": Operation("{} - {}", (*FLOATS, *INTEGERS), mixes=True),
    "mul": Operation("{} * {}", (*FLOATS, *INTEGERS), mixes=True),
    "div": Operation("{} / {}", FLOATS, mixes=True, divides=True),
    "fmod": Operation("{} % {}", FLOATS, divides=True),
    "div_rn": Operation("tl.div_rn({}, {})", (F32,)),
    "neg": Operation("-{}", (*FLOATS, *INTEGERS), 1),
    "abs": Operation("tl.abs({})", (*FLOATS, *SIGNED), 1),
    "fma": Operation("tl.fma({}, {}, {})", MATH, 3),
    "sqrt": Operation("tl.sqrt({})", MATH, 1),
    "sqrt_rn": Operation("tl.sqrt_rn({})", (F32,), 1),
    "maximum": Operation("tl.maximum({}, {})", (*FLOATS, *INTEGERS), widens=WIDENS),
    "minimum": Operation("tl.minimum({}, {})", (*FLOATS, *INTEGERS), widens=WIDENS),
    "maximum_nan": Operation("tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)", FLOATS, widens=WIDENS),
    "minimum_nan": Operation("tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)", FLOATS, widens=WIDENS),
    "clamp": Operation("tl.clamp({}, {}, {})", FLOATS, 3, widens=WIDENS),
    **{name: Operation(f"tl.{name}({{}})", MATH, 1) for name in ("floor", "ceil", "exp", "exp2", "log", "log2")},
    **{name: Operation(f"tl.{name}({{}})", MATH, 1) for name in ("sin", "cos", "erf", "rsqrt")},
    **{name: Operation(f"libdevice.{name}({{}})", MATH, 1) for name in ("trunc", "rint", "round")},
    **{name: Operation(f"libdevice.{name}({{}})", MATH, 1) for name in ("tanh", "log1p", "expm1")},
    "idiv": Operation("{} // {}", INTEGERS),
    "irem": Operation("{} % {}", INTEGERS),
    "umulhi": Operation("tl.umulhi({}, {})", (U32, U64)),
    "invert": Operation("~{}", BITS, 1),
    "and": Operation("{} & {}", BITS, mixes=True),
    "or": Operation("{} | {}", BITS, mixes=True),
    "xor": Operation("{} ^ {}", BITS, mixes=True),
    "shl": Operation("{} << {}", INTEGERS),
    "shr": Operation("{} >> {}", INTEGERS),
    **{
        name: Operation(f"{{}} {symbol} {{}}", (*FLOATS, *INTEGERS, BOOL), mixes=True, compares=True)
        for name, symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!="))
    },
}
#: Integers that atomics take.
ATOMIC_INTEGERS = (I32, I64, U32, U64)
