"""Values of a kernel's expressions, over ranges; every load and store that they hold is noted."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from codegen.access import functions
from codegen.access.arithmetic import BINARY, COMPARISON
from codegen.access.source import KernelSource, NotUnderstood
from codegen.access.values import BOOL, INT, Keys, Range, Value, fitted, join, known

Result = Value | tuple[Value, ...] | None
Environment = dict[str, Value]
NAMESPACES = ("tl", "triton", "libdevice")


@dataclass(frozen=True)
class Arguments:
    """What a launch passes. pointers: parameter -> range of an integer buffer's contents and its bits, None for floats;
    scalars: parameter -> range; programs: of each grid axis. Hashable, as interpretations are kept.
    """

    pointers: tuple[tuple[str, tuple[Range, int] | None], ...]
    scalars: tuple[tuple[str, Range], ...]
    tiles: tuple[tuple[str, int], ...]
    programs: tuple[int, ...]


@dataclass(frozen=True)
class Access:
    """A load or a store. offset: equal ones are the same expression. value: range of an integer that is stored.

    certain: neither under a mask nor after or inside a branch. seat: at the index of the first grid axis, no more.
    wrapped: what 32-bit arithmetic may have spoilt the offset, in words.
    """

    parameter: str
    store: bool
    offset: int
    text: str
    value: Range | None
    certain: bool
    seat: bool
    wrapped: str


class Expressions(ABC):
    """Evaluates expressions of one kernel for one launch. certain: whether the code at hand surely runs."""

    def __init__(self, source: KernelSource, arguments: Arguments) -> None:
        self.source, self.arguments = source, arguments
        self.keys = Keys()
        self.found: list[Access] = []
        self.contents = dict(arguments.pointers)
        self.certain = True
        self.depth = 0
        self.constants = {name: known(self.keys, value) for name, value in source.constants.items()}

    @abstractmethod
    def block(self, body: list[ast.stmt], env: Environment) -> Result:
        """Run statements; what the last `return` of them gives."""

    def value(self, node: ast.expr, env: Environment) -> Value:
        found = self.any(node, env)
        if not isinstance(found, Value):
            raise self.unclear(node)
        return found

    def any(self, node: ast.expr, env: Environment) -> Result:
        if isinstance(node, ast.Constant):
            return known(self.keys, node.value)
        if isinstance(node, ast.Name):
            return self.name(node, env)
        if isinstance(node, ast.Tuple):
            return tuple(self.value(element, env) for element in node.elts)
        if isinstance(node, ast.BinOp):
            return self.binary(node, env)
        if isinstance(node, ast.UnaryOp):
            return self.unary(node, env)
        if isinstance(node, ast.Compare):
            return self.compare(node, env)
        if isinstance(node, ast.BoolOp):
            parts = [self.value(part, env) for part in node.values]
            return Value(self.keys.of(type(node.op).__name__, *(part.key for part in parts)), BOOL)
        if isinstance(node, ast.Subscript):
            inner = self.value(node.value, env)
            return replace(inner, key=self.keys.of("index", inner.key, ast.unparse(node.slice)))
        if isinstance(node, ast.Attribute):  # tl.float32, state.shape
            return Value(self.keys.of("attribute", ast.unparse(node)), constant=True)
        if isinstance(node, ast.IfExp):
            condition = self.value(node.test, env)
            if condition.range in (Range(0, 0), Range(1, 1)):
                return self.value(node.body if condition.range == Range(1, 1) else node.orelse, env)
            sides = [self.value(side, env) for side in (node.body, node.orelse)]
            return join(self.keys.of("either", condition.key, *(side.key for side in sides)), *sides)
        if isinstance(node, ast.Call):
            return self.call(node, env)
        raise self.unclear(node)

    def name(self, node: ast.Name, env: Environment) -> Value:
        found = env.get(node.id, self.constants.get(node.id))
        if found is None:
            raise self.unclear(node)
        return found

    def binary(self, node: ast.BinOp, env: Environment) -> Value:
        left, right = self.value(node.left, env), self.value(node.right, env)
        key = self.keys.of(type(node.op).__name__, left.key, right.key)
        wrapped = left.wrapped or right.wrapped
        pointers = left.pointers | right.pointers
        if pointers:
            offset = left if right.pointers else right
            if not isinstance(node.op, ast.Add | ast.Sub) or (offset.range is None and not offset.pointers):
                raise self.unclear(node)
            return Value(key, wrapped=wrapped, pointers=pointers)
        operation = BINARY.get(type(node.op))
        if left.range is None or right.range is None or operation is None:
            return Value(key, constant=left.constant and right.constant)
        bits = max(left.bits, right.bits)
        result = Value(key, operation(left.range, right.range, bits), bits, left.constant and right.constant, wrapped)
        return fitted(result, ast.unparse(node))

    def unary(self, node: ast.UnaryOp, env: Environment) -> Value:
        inner = self.value(node.operand, env)
        key = self.keys.of(type(node.op).__name__, inner.key)
        if inner.range is None:
            return replace(inner, key=key)
        if isinstance(node.op, ast.USub):
            return fitted(replace(inner, key=key, range=Range(-inner.range.high, -inner.range.low)), ast.unparse(node))
        if isinstance(node.op, ast.Not) or inner.range.within(BOOL):
            return replace(inner, key=key, range=BOOL)
        return replace(inner, key=key, range=Range(-inner.range.high - 1, -inner.range.low - 1))

    def compare(self, node: ast.Compare, env: Environment) -> Value:
        left, right = self.value(node.left, env), self.value(node.comparators[0], env)
        key = self.keys.of(type(node.ops[0]).__name__, left.key, right.key)
        decide = COMPARISON.get(type(node.ops[0]))
        if len(node.ops) == 1 and decide and left.range is not None and right.range is not None:
            return Value(key, decide(left.range, right.range))
        return Value(key, BOOL)

    # Calls

    def call(self, node: ast.Call, env: Environment) -> Result:
        if isinstance(node.func, ast.Name):
            return self.device_function(node.func.id, node, env)
        if not isinstance(node.func, ast.Attribute):
            raise self.unclear(node)
        if isinstance(node.func.value, ast.Name) and node.func.value.id in NAMESPACES:
            return self.language(node.func.attr, node, env)
        return self.method(node.func.attr, self.value(node.func.value, env), node, env)

    def device_function(self, name: str, node: ast.Call, env: Environment) -> Result:
        function = self.source.functions.get(name)
        if function is None and name == "float":
            return Value(self.keys.of("constant", ast.unparse(node)), constant=True)
        if function is None:
            raise self.unclear(node)
        names = [argument.arg for argument in function.args.args]
        inner: Environment = dict(zip(names, (self.value(argument, env) for argument in node.args), strict=False))
        for keyword in node.keywords:
            if keyword.arg is not None:
                inner[keyword.arg] = self.value(keyword.value, env)
        for argument, default in zip(reversed(names), reversed(function.args.defaults), strict=False):
            if argument not in inner:
                inner[argument] = self.value(default, {})
        before = self.certain
        self.depth += 1
        result = self.block(function.body, inner)
        self.depth -= 1
        self.certain = before
        return result

    def method(self, name: str, inner: Value, node: ast.Call, env: Environment) -> Result:
        """`x.to(dtype)`, or a function of triton.language written behind its first operand."""
        if name != "to":
            assert isinstance(node.func, ast.Attribute)
            return self.language(name, ast.Call(node.func, [node.func.value, *node.args], node.keywords), env)
        dtype = ast.unparse(node.args[0])
        key = self.keys.of("to", inner.key, dtype)
        bits = functions.int_bits(dtype)
        if bits is None or inner.range is None:
            return Value(key, INT[bits] if bits else None, bits or 32)
        return fitted(replace(inner, key=key, bits=bits, constant=False), ast.unparse(node))

    def language(self, name: str, node: ast.Call, env: Environment) -> Result:
        """A function of triton.language; one that is not known may not be handed a pointer."""
        if name == "load":
            return self.load(node, env)
        if name == "store" or name.startswith("atomic_"):
            return self.store(name, node, env)
        given = [self.any(argument, env) for argument in node.args]
        named = {str(keyword.arg): self.any(keyword.value, env) for keyword in node.keywords}
        values = [value for value in (*given, *named.values()) if isinstance(value, Value)]
        key = self.keys.of(name, repr(given), repr(named))
        if name in ("program_id", "num_programs"):
            return self.program(name, values[0], node)
        if name == "arange":
            return functions.arange(key, *(self.integer(value, node) for value in values[:2]))
        if name == "next_power_of_2":
            return functions.next_power_of_2(key, values[0], self.integer(values[0], node))
        if name == "where":
            return join(key, *values[1:3])
        if name in ("minimum", "maximum"):
            return functions.extreme(min if name == "minimum" else max, key, values[0], values[1])
        if name in ("zeros", "full"):
            return functions.filled(self.keys, key, name, node, given)
        if name == "philox":
            return tuple(Value(self.keys.of(key, i), INT[32]) for i in range(4))
        if any(value.pointers for value in values) and name not in functions.PASSED_ON:
            raise self.unclear(node)
        return functions.other(name, key, values)

    def program(self, name: str, axis: Value, node: ast.Call) -> Value:
        at = self.integer(axis, node).low
        count = max(1, self.arguments.programs[at] if at < len(self.arguments.programs) else 1)
        if name == "program_id":
            return Value(self.keys.of("program", at), Range(0, count - 1))
        return Value(self.keys.of("programs", at), Range(1, count))

    # Memory

    def load(self, node: ast.Call, env: Environment) -> Value:
        pointer = self.value(node.args[0], env)
        named = dict(zip(("mask", "other"), (self.value(argument, env) for argument in node.args[1:]), strict=False))
        named |= {str(keyword.arg): self.value(keyword.value, env) for keyword in node.keywords}
        self.note(pointer, False, None, self.certain and "mask" not in named, node)
        key = self.keys.of("load", pointer.key, repr(named))
        held = [self.contents[name] for name in sorted(pointer.pointers)]
        integers = [contents for contents in held if contents is not None]
        if len(integers) != len(held):
            return Value(key)
        read = join(key, *(Value(key, contents, bits) for contents, bits in integers))
        instead = named.get("other")
        if instead is None or instead.range is None or read.range is None:
            return read
        return replace(read, range=read.range.join(instead.range))

    def store(self, name: str, node: ast.Call, env: Environment) -> Value:
        pointer = self.value(node.args[0], env)
        stored = self.value(node.args[1], env)
        masked = len(node.args) > 2
        for keyword in node.keywords:
            if self.any(keyword.value, env) is not None and keyword.arg == "mask":
                masked = True
        if name != "store":
            self.note(pointer, False, None, False, node)
        self.note(pointer, True, stored.range, name == "store" and self.certain and not masked, node)
        return Value(self.keys.of(name, pointer.key, stored.key), stored.range and INT[stored.bits], stored.bits)

    def note(self, pointer: Value, store: bool, value: Range | None, certain: bool, node: ast.Call) -> None:
        if not pointer.pointers:
            raise self.unclear(node)
        for name in sorted(pointer.pointers):
            base = self.keys.of("parameter", name)
            seat = pointer.key == self.keys.of("Add", base, self.keys.of("program", 0))
            text = ast.unparse(node.args[0])
            self.found.append(Access(name, store, pointer.key, text, value, certain, seat, pointer.wrapped))

    # Help

    def integer(self, value: Value, node: ast.AST) -> Range:
        if value.range is None:
            raise self.unclear(node)
        return value.range

    def unclear(self, node: ast.AST) -> NotUnderstood:
        return NotUnderstood(
            f"{self.source.name}: cannot follow `{ast.unparse(node)}`; see codegen/access/interpret.py"
        )
