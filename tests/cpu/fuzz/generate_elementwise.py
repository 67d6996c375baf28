"""Random elementwise statements. What C, LLVM or Triton leave undefined is kept out, by operands that cannot be so:

* integer division by zero, and MIN / -1 (undefined in LLVM): divisors 0 and -1 become 7;
* shift amounts outside 0 .. bits - 1 (poison in LLVM): masked;
* float to integer out of range (poison in LLVM): replaced by 0 (`Builder.in_range`);
* tl.clamp with lower > upper or NaN bounds (undefined in Triton): constants in order.

The backend's own choices for these (docs/cpu-backend.md, "Numerics") have tests of their own.
"""

from __future__ import annotations

from tests.cpu.fuzz.builder import Builder, broadcasts
from tests.cpu.fuzz.dtypes import BF16, BOOL, DTYPES, F16, F32, FLOATS, INTEGERS
from tests.cpu.fuzz.operations import OPERATIONS, Operation
from tests.cpu.fuzz.program import Type

ARITHMETIC = ("add", "sub", "mul")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
LOGIC = ("and", "or", "xor")
DIVISIONS = ("idiv", "irem")
SHIFTS = ("shl", "shr")
EXTREMES = ("maximum", "minimum", "maximum_nan", "minimum_nan")
OTHERS = tuple(n for n in OPERATIONS if n not in (*ARITHMETIC, *COMPARISONS, *LOGIC, *DIVISIONS, *SHIFTS, *EXTREMES))


def elementwise(g: Builder) -> None:
    choices = [(arithmetic, 7), (other, 6), (compare, 2), (logic, 2), (division, 2), (shift, 2)]
    choices += [(choice, 2), (conversion, 4), (bits, 1), (clamp, 1), (multiply_add, 2), (extreme, 3)]
    rules, weights = zip(*choices, strict=True)
    g.rng.choices(rules, weights)[0](g)


def _operands(g: Builder, operation: Operation) -> list[str]:
    first = g.operand(operation.domain)
    dtype = g.types[first].dtype
    domain = operation.domain if operation.mixes and g.chance(0.3) else (dtype,)
    return [first, *(g.partner(first, domain) for _ in range(operation.arity - 1))]


def _apply(g: Builder, name: str) -> str:
    return g.apply(name, *_fitting(g, _operands(g, OPERATIONS[name])))


def _fitting(g: Builder, names: list[str]) -> list[str]:
    """Operands that each broadcast with the first may not with each other: repeat the first then."""
    if len(names) == 3 and not broadcasts(g.types[names[1]].shape, g.types[names[2]].shape):
        names[2] = names[1]
    return names


def arithmetic(g: Builder) -> None:
    _apply(g, g.rng.choice(ARITHMETIC))


def multiply_add(g: Builder) -> None:
    """What must be rounded twice, and may be a square."""
    a = g.operand((*FLOATS, *INTEGERS))
    dtype = g.types[a].dtype
    product = g.apply("mul", a, g.partner(a, (dtype,)) if g.chance(0.8) else a)
    g.apply(g.rng.choice(["add", "sub"]), *g.rng.sample([product, g.partner(product, (dtype,))], 2))


def other(g: Builder) -> None:
    kinds = {d.kind for d in g.dtypes}
    fitting = [n for n in OTHERS if n != "clamp" and any(d.kind in kinds for d in OPERATIONS[n].domain)]
    _apply(g, g.rng.choice(fitting))


def extreme(g: Builder) -> None:
    _apply(g, g.rng.choice(EXTREMES))


def compare(g: Builder) -> None:
    _apply(g, g.rng.choice(COMPARISONS))


def logic(g: Builder) -> None:
    _apply(g, g.rng.choice(LOGIC))


def division(g: Builder) -> None:
    a = g.operand(INTEGERS)
    b = g.partner(a, (g.types[a].dtype,))
    dtype = g.types[a].dtype
    bad = g.apply("eq", b, g.const(dtype, 0))
    if dtype.kind == "signed":
        bad = g.apply("or", bad, g.apply("eq", b, g.const(dtype, -1)))
    g.apply(g.rng.choice(DIVISIONS), a, g.select(bad, g.const(dtype, 7), b))


def shift(g: Builder) -> None:
    a = g.operand(INTEGERS)
    dtype = g.types[a].dtype
    amount = g.apply("and", g.partner(a, (dtype,)), g.const(dtype, dtype.bits - 1))
    g.apply(g.rng.choice(SHIFTS), a, amount)


def choice(g: Builder) -> None:
    a = g.operand((*FLOATS, *INTEGERS, BOOL))
    shape = g.types[a].shape
    conditions = g.values(lambda t: t.dtype is BOOL and t.shape in (shape, ()))
    condition = g.choose(conditions) if conditions else g.mask(shape)
    g.select(condition, a, g.operand((g.types[a].dtype,), shape))


def conversion(g: Builder) -> None:
    name = g.operand((*FLOATS, *INTEGERS, BOOL))
    source = g.types[name].dtype
    if source is F32 and g.chance(0.2):
        g.emit("cast", (name,), Type(g.rng.choice([BF16, F16]).name, g.types[name].shape), rtz=True)
        return
    own = [d for d in g.dtypes if d is not source]
    g.cast(name, g.rng.choice(own if own and g.chance(0.6) else [d for d in DTYPES.values() if d is not source]))


def bits(g: Builder) -> None:
    """A bit cast between types of one width. The bits of a NaN are open, so the result of a float is not certain."""
    name = g.operand((*FLOATS, *INTEGERS))
    source = g.types[name].dtype
    target = g.rng.choice([d for d in (*FLOATS, *INTEGERS) if d.bits == source.bits and d is not source] or [source])
    if target is not source:
        certain = name in g.certain and not source.is_float
        g.emit("bitcast", (name,), Type(target.name, g.types[name].shape), certain)


def clamp(g: Builder) -> None:
    name = g.operand(FLOATS)
    low = g.rng.choice([-2.0, -1.0, 0.0, 0.25])
    dtype = g.types[name].dtype
    g.apply("clamp", name, g.const(dtype, low), g.const(dtype, low + g.rng.choice([0.0, 1.0, 3.5])))
