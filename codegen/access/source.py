"""A kernel's Python text as syntax: signature, constants, and the device functions that it calls."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

from codegen.aot_worker import device_functions

Constant = int | float | bool | str


class NotUnderstood(Exception):
    """Kernel text that the interpretation does not cover; the message names the construct and the line."""


@dataclass(frozen=True)
class KernelSource:
    """functions: every function that the kernel may call, of its own module or of runtime/device*.py."""

    name: str
    text: str

    @cached_property
    def _module(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def function(self) -> ast.FunctionDef:
        """The kernel."""
        return _functions(self._module)[self.name]

    @cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef]:
        """Device functions by name."""
        return _device_functions() | _functions(self._module)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names in order, tiles included."""
        return tuple(argument.arg for argument in self.function.args.args)

    @cached_property
    def unspecialised(self) -> frozenset[str]:
        """Parameters that Triton is told not to specialise on."""
        names: set[str] = set()
        for decorator in self.function.decorator_list:
            for keyword in getattr(decorator, "keywords", []):
                if keyword.arg == "do_not_specialize":
                    names |= set(ast.literal_eval(keyword.value))
        return frozenset(names)

    @cached_property
    def constants(self) -> Mapping[str, Constant]:
        """`NAME = tl.constexpr(value)` of the module and of those of device functions."""
        return {**_device_constants(), **dict(_constants(self._module))}

    @cached_property
    def ordered_sums(self) -> frozenset[str]:
        """Operations whose order decides bits: device functions that hold one, and the kernel's own, as text."""
        reached = self._reached()
        helpers = {name for name in reached if any(_ordered(self.functions[name]))}
        return frozenset(helpers) | {ast.unparse(call) for call in _ordered(self.function)}

    def _reached(self) -> set[str]:
        """Device functions that the kernel calls, directly or not."""
        reached: set[str] = set()
        waiting = [self.function]
        while waiting:
            for name in _called(waiting.pop()):
                if name in self.functions and name not in reached:
                    reached.add(name)
                    waiting.append(self.functions[name])
        return reached


OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.LShift: operator.lshift,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
ORDERED = ("sum", "dot", "fma", "cumsum", "associative_scan", "reduce")


@lru_cache(maxsize=1024)
def read_source(name: str, text: str) -> KernelSource:
    """The kernel `name` of a generated module. Equal text gives the same object."""
    return KernelSource(name, text)


@cache
def _device_functions() -> dict[str, ast.FunctionDef]:
    modules = (ast.parse(path.read_text()) for path in device_functions())
    return {name: function for module in modules for name, function in _functions(module).items()}


def _functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


@cache
def _device_constants() -> dict[str, Constant]:
    return {name: value for path in device_functions() for name, value in _constants(ast.parse(path.read_text()))}


def _constants(module: ast.Module) -> Iterator[tuple[str, Constant]]:
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                yield target.id, _literal(node.value.args[0])


def _literal(node: ast.expr) -> Constant:
    """A constant's value: a literal, `float("inf")`, or arithmetic of literals. Raises NotUnderstood."""
    if isinstance(node, ast.Call):
        return float(ast.literal_eval(node.args[0]))
    compute = OPERATORS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if isinstance(node, ast.BinOp) and compute is not None:
        value: Constant = compute(_literal(node.left), _literal(node.right))
        return value
    try:
        value = ast.literal_eval(node)
    except ValueError as error:
        raise NotUnderstood(f"constant `{ast.unparse(node)}` is no literal") from error
    return value


def _called(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def _ordered(function: ast.FunctionDef) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ORDERED:
            yield node
