"""Interprets a kernel's text over ranges: every load and store, its parameter, its offset as an expression, its bounds.

Sound for what it is used for: a loop's variables and whatever a branch may assign are joined, and text that is not
understood is an error, never ignored. Masks and branches are taken to be possible, not to hold.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from codegen.access.expressions import Access, Arguments, Environment, Expressions, Result
from codegen.access.source import KernelSource
from codegen.access.values import INT, Range, Value, join, known

UNROLLED = 64  # longer static loops are followed like any other


@lru_cache(maxsize=4096)
def accesses(source: KernelSource, arguments: Arguments) -> tuple[Access, ...]:
    """Every load and store of a launch. Raises NotUnderstood."""
    run = _Interpreter(source, arguments)
    run.kernel()
    return tuple(run.found)


def stored_contents(found: tuple[Access, ...]) -> Mapping[str, Range]:
    """What each parameter's buffer holds at the seats of the launch afterwards, where that is certain."""
    return {
        access.parameter: access.value
        for access in found
        if access.store and access.certain and access.seat and access.value is not None
    }


class _Interpreter(Expressions):
    def kernel(self) -> None:
        env: Environment = {}
        for name, _ in self.arguments.pointers:
            env[name] = Value(self.keys.of("parameter", name), pointers=frozenset({name}))
        for name, given in self.arguments.scalars:
            env[name] = Value(self.keys.of("parameter", name), given)
        for name, tile in self.arguments.tiles:
            env[name] = known(self.keys, tile)
        self.block(self.source.function.body, env)

    def block(self, body: list[ast.stmt], env: Environment) -> Result:
        """Run statements; what the last `return` of them gives."""
        result: Result = None
        for statement in body:
            given = self.statement(statement, env)
            result = given if given is not None else result
            if isinstance(statement, ast.Return):
                break
        return result

    def statement(self, node: ast.stmt, env: Environment) -> Result:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.assign(node.targets[0], self.any(node.value, env), env)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            operation = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
            env[node.target.id] = self.value(ast.copy_location(operation, node), env)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(node.target, self.any(node.value, env), env)
        elif isinstance(node, ast.Return):
            return self.any(node.value, env) if node.value is not None else None
        elif isinstance(node, ast.If):
            return self.branch(node, env)
        elif isinstance(node, ast.For):
            self.loop(node, env)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):  # a docstring
                self.any(node.value, env)
        elif not isinstance(node, ast.Pass):
            raise self.unclear(node)
        return None

    def assign(self, target: ast.expr, value: Result, env: Environment) -> None:
        if isinstance(target, ast.Name) and isinstance(value, Value):
            env[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(target.elts) == len(value):
            for element, part in zip(target.elts, value, strict=True):
                self.assign(element, part, env)
        else:
            raise self.unclear(target)

    def branch(self, node: ast.If, env: Environment) -> Result:
        """Both ways, unless the condition is decided; what follows an early return is not certain."""
        condition = self.value(node.test, env)
        if condition.range in (Range(0, 0), Range(1, 1)):
            return self.block(node.body if condition.range == Range(1, 1) else node.orelse, env)
        before, self.certain = self.certain, False
        taken, other = dict(env), dict(env)
        results = [self.block(node.body, taken), self.block(node.orelse, other)]
        self.certain = before
        returned = [bool(body) and isinstance(body[-1], ast.Return) for body in (node.body, node.orelse)]
        if any(returned):
            self.certain = False
        ways = [way for way, gone in zip((taken, other), returned, strict=True) if not gone] or [env]
        for name in sorted({name for way in ways for name in way}):
            values = [way[name] for way in ways if name in way]
            env[name] = join(self.keys.of("either", condition.key, *(v.key for v in values)), *values)
        return next((result for result in results if result is not None), None)

    def loop(self, node: ast.For, env: Environment) -> None:
        """The body, once nothing of what it changes is taken for known."""
        if not isinstance(node.target, ast.Name) or not isinstance(node.iter, ast.Call) or node.orelse:
            raise self.unclear(node)
        ends = [self.value(argument, env) for argument in node.iter.args]
        counted = self.counted(ends, node)
        if counted is None:
            return
        static = ast.unparse(node.iter.func) == "tl.static_range" and all(end.constant for end in ends)
        if static and counted.high - counted.low < UNROLLED:
            self.unrolled(node, node.target.id, ends, env)
            return
        at = self.keys.of("loop", node.lineno, node.col_offset, self.depth, *(end.key for end in ends))
        before, self.certain = self.certain, False
        head = env | {node.target.id: Value(at, counted, max(end.bits for end in ends))}
        kept = len(self.found)
        while True:
            after = dict(head)
            self.block(node.body, after)
            changed = self.changed(head, after, at)
            if not changed:
                break
            head |= changed
            del self.found[kept:]
        self.certain = before
        env |= after | head

    def unrolled(self, node: ast.For, name: str, ends: list[Value], env: Environment) -> None:
        """The body once for each value, as Triton compiles it."""
        for number in range(*(self.integer(end, node).low for end in ends)):
            env[name] = known(self.keys, number)
            self.block(node.body, env)

    def changed(self, head: Environment, after: Environment, at: int) -> Environment:
        """Values that the body changes beyond what is taken for possible at its head: from then on anything is.

        They keep their type, the parameters that they may point into, and that they may have wrapped.
        """
        wider: Environment = {}
        for name, value in head.items():
            found = after[name]
            if found.key == value.key or self.covers(value, found, name, at):
                continue
            joined = join(self.keys.of("carried", name, at), value, found)
            wider[name] = joined if joined.range is None else replace(joined, range=INT[joined.bits])
        return wider

    def covers(self, value: Value, found: Value, name: str, at: int) -> bool:
        """Whether a carried value already stands for `found`."""
        ranges = value.range == found.range or (
            value.range is not None and found.range is not None and found.range.within(value.range)
        )
        return (
            value.key == self.keys.of("carried", name, at)
            and ranges
            and value.bits >= found.bits
            and bool(value.wrapped) >= bool(found.wrapped)
            and found.pointers <= value.pointers
        )

    def counted(self, ends: list[Value], node: ast.For) -> Range | None:
        """Values of a loop variable that counts up, None if the loop never runs."""
        first = self.integer(ends[0], node) if len(ends) > 1 else Range(0, 0)
        last = self.integer(ends[min(1, len(ends) - 1)], node)
        if len(ends) == 3 and self.integer(ends[2], node).low <= 0:
            raise self.unclear(node)
        return Range(first.low, last.high - 1) if last.high > first.low else None
