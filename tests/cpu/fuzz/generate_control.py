"""Random `if`, `for` and `while` statements, with values carried through and handed out, nested at most twice."""

from __future__ import annotations

from collections.abc import Callable

from tests.cpu.fuzz.builder import Builder
from tests.cpu.fuzz.dtypes import BOOL, FLOATS, I32, INTEGERS
from tests.cpu.fuzz.operations import OPERATIONS
from tests.cpu.fuzz.program import Stmt, Type

Step = Callable[[Builder], None]
MAX_DEPTH = 2


def control(g: Builder, step: Step) -> None:
    """`step` makes the statements inside."""
    if g.depth < MAX_DEPTH:
        g.rng.choice([branch, for_loop, for_loop, while_loop])(g, step)


def _steps(g: Builder, step: Step) -> None:
    for _ in range(g.rng.randrange(1, 4)):
        step(g)


def _value_of(g: Builder, type_: Type, avoid: str = "") -> str:
    """A value of a type; made of two that there are if there is no other."""
    found = [n for n in g.values(lambda t: t == type_) if n != avoid]
    if found and g.chance(0.8):
        return g.choose(found)
    if avoid and type_.dtype is not BOOL:
        other = g.operand((type_.dtype,), type_.shape)
        op = g.rng.choice(["add", "sub"]) if type_.dtype.is_float else g.rng.choice(["add", "mul", "xor"])
        return g.apply(op, avoid, other)
    return g.operand((type_.dtype,), type_.shape)


def branch(g: Builder, step: Step) -> None:
    condition = g.condition()
    types = [g.types[g.operand((*FLOATS, *INTEGERS, BOOL))] for _ in range(g.rng.choice([1, 1, 2]))]

    def arm() -> tuple[str, ...]:
        if g.chance(0.75):
            _steps(g, step)
        return tuple(_value_of(g, type_) for type_ in types)

    blocks = (g.block((), arm), g.block((), arm))
    _finish(g, Stmt("if", (condition,), (), {}, blocks), types)


def _finish(g: Builder, stmt: Stmt, types: list[Type]) -> None:
    """Results of a control statement: certain if everything that may become one is."""
    sources = list(zip(*(block.yields for block in stmt.blocks), strict=True))
    carried = stmt.args[-len(types) :] if stmt.op != "if" else ()
    results = []
    for k, type_ in enumerate(types):
        names = (*sources[k], *([carried[k]] if carried else []))
        results.append(g.fresh(type_, all(name in g.certain for name in names)))
    g.body.append(Stmt(stmt.op, stmt.args, tuple(results), stmt.attrs, stmt.blocks))
    g.visible += results


def _carried(g: Builder, head: tuple[str, ...]) -> list[str]:
    """Initial values. Triton's front end tells from the identity of values which names a loop changes, and drops a
    carried name that starts as another name for the same value (see the ledger): every name gets a value of its own."""
    initial: list[str] = []
    for _ in range(g.rng.choice([1, 1, 2, 3])):
        name = g.operand((*FLOATS, *INTEGERS))
        if name in (*initial, *head) or not _is_a_new_value(g, name):
            name = g.select(g.const(BOOL, True), name, name)
        initial.append(name)
    return initial


def _is_a_new_value(g: Builder, name: str) -> bool:
    makers = [stmt.op for stmt in g.body if name in stmt.results]
    return bool(makers) and (makers[0] in OPERATIONS or makers[0] in ("load", "const", "where", "cast", "dot", "scan"))


def _loop(g: Builder, op: str, head: tuple[str, ...], attrs: dict[str, int], step: Step) -> None:
    initial = _carried(g, head)
    types = [g.types[name] for name in initial]
    index = g.fresh(Type("i32", ()), True)
    # uncertain inside even where the initial value is certain: later rounds may bring an uncertain one
    params = tuple(g.fresh(type_, False) for type_ in types)

    def body() -> tuple[str, ...]:
        _steps(g, step)
        if len(params) > 1 and types[0] == types[1] and g.chance(0.4):  # swap: a parallel assignment
            return (params[1], params[0], *(_value_of(g, t, p) for t, p in zip(types[2:], params[2:], strict=True)))
        return tuple(_value_of(g, type_, param) for type_, param in zip(types, params, strict=True))

    block = g.block((index, *params), body)
    _finish(g, Stmt(op, (*head, *initial), (), attrs, (block,)), types)


def for_loop(g: Builder, step: Step) -> None:
    """Bounds are constants, arguments or loaded; a loop may run no round at all."""
    rounds, by = g.rng.choice([0, 1, 2, 3, 4, 5]), g.rng.choice([1, 1, 1, 2, 3])
    low = g.const(I32, 0) if g.chance(0.7) else g.const(I32, g.rng.randrange(4))
    start = next(s.attrs["value"] for s in reversed(g.body) if s.result == low)
    style = g.rng.random()
    if style < 0.4:
        high = g.const(I32, start + rounds * by)
    elif style < 0.75:
        high = g.emit("scalar", (), Type("i32", ()), True, scalar=g.scalar(start + rounds * by))
    else:
        high = g.index((), 4)
        high = g.cast(high, I32)
    _loop(g, "for", (low, high), {"step": by}, step)


def while_loop(g: Builder, step: Step) -> None:
    count = g.apply("add", g.cast(g.index((), 4), I32), g.const(I32, 0))
    _loop(g, "while", (count,), {}, step)
