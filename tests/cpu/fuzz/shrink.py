"""Makes a program that shows a difference small: drop whatever the difference does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.cpu.fuzz.program import EFFECTS, Block, Program, Stmt, walk

Body = tuple[Stmt, ...]


def shrink(program: Program, fails: Callable[[Program], bool], tries: int = 200) -> Program:
    """The smallest program found that still `fails`, within `tries` calls of it."""
    program, left = program.without_dead_code(), tries
    progress = True
    while progress and left > 0:
        progress = False
        for candidate in candidates(program):
            if left == 0:
                break
            left -= 1
            smaller = candidate.without_dead_code()
            if _size(smaller) < _size(program) and fails(smaller):
                program, progress = smaller, True
                break
    return program


def _size(program: Program) -> tuple[int, int, int]:
    """Fewer statements first; then fewer that are not constants, masks and arguments; then a smaller grid."""
    statements = list(program.walk())
    weight = sum(stmt.op != "const" for stmt in statements)
    extras = sum(stmt.attrs.get("mask_arg") is not None for stmt in statements)
    return (weight * 2 + extras + len(statements), program.programs, len(program.buffers))


def candidates(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the boldest first."""
    effects = [stmt for stmt in program.body if stmt.has_effect]
    for kept in effects:
        if len(effects) > 1:
            yield replace(program, body=tuple(s for s in program.body if s is kept or not s.has_effect))
    if program.programs > 1:
        yield replace(program, grid=(1, 1))
    for stmt in reversed(list(program.walk())):
        yield from _without(program, stmt)


def _without(program: Program, stmt: Stmt) -> Iterator[Program]:
    """Programs that do without one statement."""
    if stmt.op in EFFECTS and not stmt.results:
        yield _replaced(program, stmt, ())
        if stmt.attrs.get("mask_arg") is not None and stmt.op == "store":
            attrs = {k: v for k, v in stmt.attrs.items() if k != "mask_arg"}
            yield _replaced(program, stmt, (replace(stmt, args=stmt.args[:1], attrs=attrs),))
        return
    if stmt.blocks:
        for block in stmt.blocks:
            yield _replaced(program, stmt, _inlined(stmt, block))
    if stmt.op == "const":
        return
    for arg in stmt.args:
        if len(stmt.results) == 1 and program.types[arg] == program.types[stmt.result]:
            yield _renamed(_replaced(program, stmt, ()), {stmt.result: arg})
    yield _replaced(program, stmt, tuple(_constant(program, name) for name in stmt.results))


def _constant(program: Program, name: str) -> Stmt:
    one = {"float": 1.0, "bool": True}.get(program.types[name].dtype.kind, 1)
    return Stmt("const", (), (name,), {"value": one})


def _inlined(stmt: Stmt, block: Block) -> Body:
    """The statements of an arm, or of one round of a loop (at index 1), with the results' names."""
    names: dict[str, str] = {}
    first: list[Stmt] = []
    if block.params:
        index, *carried = block.params
        first.append(Stmt("const", (), (index,), {"value": 1}))
        names = dict(zip(carried, stmt.args[-len(carried) :], strict=True)) if carried else {}
    body = tuple(_rename(inner, names) for inner in block.body)
    results = dict(zip(stmt.results, (names.get(y, y) for y in block.yields), strict=True))
    return (*first, *body, *(Stmt("alias", (source,), (name,)) for name, source in results.items()))


def _replaced(program: Program, stmt: Stmt, by: Body) -> Program:
    return _resolved(replace(program, body=_replace_in(program.body, stmt, by)))


def _replace_in(body: Body, stmt: Stmt, by: Body) -> Body:
    out: list[Stmt] = []
    for inner in body:
        if inner is stmt:
            out += by
        elif inner.blocks and any(s is stmt for block in inner.blocks for s in walk(block.body)):
            blocks = tuple(replace(block, body=_replace_in(block.body, stmt, by)) for block in inner.blocks)
            out.append(replace(inner, blocks=blocks))
        else:
            out.append(inner)
    return tuple(out)


def _resolved(program: Program) -> Program:
    """Without the `alias` statements that inlining leaves."""
    aliases = {stmt.result: stmt.args[0] for stmt in program.walk() if stmt.op == "alias"}
    if not aliases:
        return program
    final = {name: _end(name, aliases) for name in aliases}
    return _renamed(replace(program, body=_drop_aliases(program.body)), final)


def _end(name: str, aliases: dict[str, str]) -> str:
    while name in aliases:
        name = aliases[name]
    return name


def _drop_aliases(body: Body) -> Body:
    return tuple(
        replace(stmt, blocks=tuple(replace(b, body=_drop_aliases(b.body)) for b in stmt.blocks))
        for stmt in body
        if stmt.op != "alias"
    )


def _renamed(program: Program, names: dict[str, str]) -> Program:
    return replace(program, body=tuple(_rename(stmt, names) for stmt in program.body))


def _rename(stmt: Stmt, names: dict[str, str]) -> Stmt:
    blocks = tuple(
        Block(b.params, tuple(_rename(s, names) for s in b.body), tuple(names.get(y, y) for y in b.yields))
        for b in stmt.blocks
    )
    return replace(stmt, args=tuple(names.get(a, a) for a in stmt.args), blocks=blocks)
