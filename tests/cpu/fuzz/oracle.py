"""Runs a program on numpy, one program of the grid after the other, with an error bound on every number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.cpu.fuzz import oracle_tensor as tensors
from tests.cpu.fuzz.bounds import SLACK, Value, exact, growth
from tests.cpu.fuzz.data import fill
from tests.cpu.fuzz.dtypes import DType, compared, summed
from tests.cpu.fuzz.operations import OPERATIONS
from tests.cpu.fuzz.oracle_elementwise import ELEMENTWISE, bitcast, convert, towards_zero, where
from tests.cpu.fuzz.program import Block, Program, Stmt, Type

Results = Value | tuple[Value, ...] | None


@dataclass
class Memory:
    """A buffer while the oracle runs. `sizes` collects sum |x| of float atomic additions, `adds` their number."""

    data: np.ndarray
    error: np.ndarray
    sizes: np.ndarray
    adds: np.ndarray


def expected(program: Program) -> dict[str, Value]:
    """What every buffer holds after the launch."""
    memory = {buffer.name: _memory(fill(program, buffer)) for buffer in program.buffers}
    with np.errstate(all="ignore"):
        for y in range(program.grid[1]):
            for x in range(program.grid[0]):
                Run(program, memory, x + y * program.grid[0]).block(program.body, {})
    for buffer in program.buffers:
        if buffer.dtype.is_float:
            _settle_additions(buffer.dtype, memory[buffer.name])
    return {name: Value(m.data, m.error) for name, m in memory.items()}


def _memory(data: np.ndarray) -> Memory:
    zeros = np.zeros(len(data))
    return Memory(data, zeros.copy(), zeros.copy(), zeros.copy())


def _settle_additions(dtype: DType, memory: Memory) -> None:
    """Atomic additions come in any order: m of them to an element err by at most m u sum |x|, as any sum."""
    with np.errstate(all="ignore"):
        grown = 2 * growth(dtype, memory.adds) * (memory.sizes + memory.error)
        bound = (memory.error + grown + memory.adds * dtype.step) * SLACK
        bound = np.where(memory.sizes + bound < dtype.largest, bound, np.inf)
    memory.error = np.where(memory.adds > 0, bound, memory.error)


class Run:
    """One program of the grid."""

    def __init__(self, program: Program, memory: dict[str, Memory], pid: int) -> None:
        self.program, self.memory, self.pid = program, memory, pid

    def block(self, body: tuple[Stmt, ...], values: dict[str, Value]) -> dict[str, Value]:
        """Run statements; `values` gains their results."""
        for stmt in body:
            results = self.statement(stmt, values)
            for name, value in zip(stmt.results, results if isinstance(results, tuple) else (results,), strict=True):
                values[name] = _typed(value, self.program.types[name])
        return values

    def statement(self, stmt: Stmt, values: dict[str, Value]) -> Results:
        args = [values[name] for name in stmt.args]
        dtypes = tuple(self.program.types[name].dtype for name in stmt.args)
        if stmt.op in OPERATIONS:
            operation = OPERATIONS[stmt.op]
            dtype = operation.computes(dtypes)
            return ELEMENTWISE[stmt.op](dtype, *(convert(a, d, dtype) for a, d in zip(args, dtypes, strict=True)))
        if stmt.op in ("if", "for", "while"):
            return {"if": self.branch, "for": self.for_loop, "while": self.while_loop}[stmt.op](stmt, args, values)
        return RULES[stmt.op](self, stmt, args, dtypes)

    # ---- control

    def branch(self, stmt: Stmt, args: list[Value], values: dict[str, Value]) -> Results:
        return self.arm(stmt.blocks[0 if args[0].data else 1], [], values)

    def for_loop(self, stmt: Stmt, args: list[Value], values: dict[str, Value]) -> Results:
        bounds, carried = args[:2], args[2:]
        low, high = (int(bound.data) for bound in bounds)
        for i in range(low, high, stmt.attrs["step"]):
            carried = list(self.arm(stmt.blocks[0], [exact(np.int32(i)), *carried], values))
        return tuple(carried)

    def while_loop(self, stmt: Stmt, args: list[Value], values: dict[str, Value]) -> Results:
        count, carried = int(args[0].data), args[1:]
        while count > 0:
            carried = list(self.arm(stmt.blocks[0], [exact(np.int32(count)), *carried], values))
            count -= 1
        return tuple(carried)

    def arm(self, block: Block, params: list[Value], values: dict[str, Value]) -> tuple[Value, ...]:
        inner = self.block(block.body, {**values, **dict(zip(block.params, params, strict=True))})
        return tuple(inner[name] for name in block.yields)

    # ---- memory

    def place(self, stmt: Stmt, args: list[Value]) -> tuple[np.ndarray, np.ndarray]:
        """Element numbers and where they are accessed."""
        attrs, shape = stmt.attrs, tuple(stmt.attrs["shape"])
        if attrs["mode"] == "index":
            at = args[attrs["index_arg"]].data.astype(np.int64)
        elif attrs["mode"] == "strided":
            rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
            at = self.pid * shape[0] * attrs["stride"] + rows * attrs["stride"] + columns
        else:
            flat = np.arange(int(np.prod(shape))).reshape(shape)
            at = flat + (0 if attrs["mode"] == "shared" else self.pid * flat.size)
        allowed = np.ones(shape, bool)
        if attrs.get("limit"):
            allowed &= at < self.program.scalars[attrs["limit"]]
        if attrs.get("columns"):
            allowed &= np.arange(shape[1])[None, :] < self.program.scalars[attrs["columns"]]
        if attrs.get("mask_arg") is not None:
            allowed &= args[attrs["mask_arg"]].data
        return np.broadcast_to(at, shape), allowed


def _typed(value: Value, type_: Type) -> Value:
    """Checks the oracle itself: shape and storage of every value are those the generator declared."""
    data = np.asarray(value.data)
    assert data.shape == type_.shape, (data.shape, type_)
    assert data.dtype == np.dtype(type_.dtype.storage), (data.dtype, type_)
    return Value(data, np.broadcast_to(np.asarray(value.error, np.float64), data.shape))


Rule = Callable[[Run, Stmt, list[Value], tuple[DType, ...]], Results]
RULES: dict[str, Rule] = {}


def _rule(name: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES[name] = rule
        return rule

    return register


def _result(run: Run, stmt: Stmt) -> Type:
    return run.program.types[stmt.result]


@_rule("const")
def _const(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    type_ = _result(run, stmt)
    return exact(np.full(type_.shape, stmt.attrs["value"], type_.dtype.storage))


@_rule("arange")
def _arange(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    return exact(np.arange(*stmt.attrs["range"], dtype=np.int32))


@_rule("pid")
def _pid(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    return exact(np.int32(run.pid))


@_rule("scalar")
def _scalar(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    return exact(np.int32(run.program.scalars[stmt.attrs["scalar"]]))


@_rule("where")
def _where(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    target = _result(run, stmt).dtype
    return where(args[0], convert(args[1], dtypes[1], target), convert(args[2], dtypes[2], target))


@_rule("cast")
def _cast(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    target = _result(run, stmt).dtype
    return towards_zero(args[0], target) if stmt.attrs.get("rtz") else convert(args[0], dtypes[0], target)


@_rule("bitcast")
def _bitcast(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    return bitcast(args[0], dtypes[0], _result(run, stmt).dtype)


RULES["reshape"] = lambda run, stmt, args, dtypes: tensors.reshape(args[0], _result(run, stmt).shape)
RULES["broadcast"] = lambda run, stmt, args, dtypes: tensors.broadcast(args[0], _result(run, stmt).shape)
RULES["trans"] = lambda run, stmt, args, dtypes: tensors.transpose(args[0], stmt.attrs["order"])
RULES["expand_dims"] = lambda run, stmt, args, dtypes: tensors.expand_dims(args[0], stmt.attrs["axis"])
RULES["flip"] = lambda run, stmt, args, dtypes: tensors.flip(args[0], stmt.attrs["axis"])
RULES["join"] = lambda run, stmt, args, dtypes: tensors.join(*args)
RULES["split"] = lambda run, stmt, args, dtypes: tensors.split(args[0])
RULES["cat"] = lambda run, stmt, args, dtypes: tensors.cat(*args)
RULES["gather"] = lambda run, stmt, args, dtypes: tensors.gather(*args, stmt.attrs["axis"])
RULES["sort"] = lambda run, stmt, args, dtypes: tensors.sort(args[0], stmt.attrs["descending"])
RULES["histogram"] = lambda run, stmt, args, dtypes: tensors.histogram(
    args[0], stmt.attrs["bins"], args[1] if len(args) > 1 else None
)


@_rule("reduce")
def _reduce(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    kind, axis, value = stmt.attrs["kind"], stmt.attrs["axis"], args[0]
    if axis is None:
        value, axis = tensors.reshape(value, (value.data.size,)), 0
    if kind in ("argmax", "argmin"):
        result = tensors.extreme_index(kind, value, axis)
    else:
        dtype = summed(dtypes[0]) if kind == "sum" else compared(dtypes[0]) if kind in ("max", "min") else dtypes[0]
        result = tensors.reduce(kind, dtype, convert(value, dtypes[0], dtype), axis)
    return tensors.reshape(result, _result(run, stmt).shape) if stmt.attrs["keep_dims"] else result


@_rule("scan")
def _scan(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    kind, dtype = stmt.attrs["kind"], _result(run, stmt).dtype
    converted = [convert(a, d, dtype) for a, d in zip(args, dtypes, strict=True)]
    if kind == "affine":
        return tensors.affine_scan(dtype, *converted, stmt.attrs["axis"], stmt.attrs["reverse"])
    return tensors.scan(kind, dtype, converted[0], stmt.attrs["axis"], stmt.attrs["reverse"])


@_rule("dot")
def _dot(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    return tensors.dot(dtypes[0], _result(run, stmt).dtype, args[0], args[1], args[2] if len(args) > 2 else None)


# ---- memory


@_rule("load")
def _load(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    memory, dtype = run.memory[stmt.attrs["buffer"]], _result(run, stmt).dtype
    at, allowed = run.place(stmt, args)
    inside = np.where(allowed, at, 0)
    other = stmt.attrs.get("other")
    otherwise = np.asarray(0 if other is None else other).astype(dtype.storage)
    data = np.where(allowed, memory.data[inside], otherwise)
    return Value(data, np.where(allowed, memory.error[inside], np.inf if other is None else 0.0))


@_rule("store")
def _store(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    memory = run.memory[stmt.attrs["buffer"]]
    at, allowed = run.place(stmt, args)
    value = Value(np.broadcast_to(args[0].data, at.shape), np.broadcast_to(args[0].error, at.shape))
    memory.data[at[allowed]], memory.error[at[allowed]] = value.data[allowed], value.error[allowed]
    return ()


@_rule("atomic")
def _atomic(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    """Elements in order. The old values are used only where every lane has an address of its own."""
    memory, dtype = run.memory[stmt.attrs["buffer"]], run.program.buffer(stmt.attrs["buffer"]).dtype
    at, allowed = run.place(stmt, args)
    operand = np.broadcast_to(args[0].data, at.shape)
    unknown = np.broadcast_to(args[0].error, at.shape)
    old = np.where(allowed, memory.data[np.where(allowed, at, 0)], np.zeros((), dtype.storage))
    error = np.where(allowed, memory.error[np.where(allowed, at, 0)], 0.0)
    if stmt.attrs["kind"] == "add" and dtype.is_float:
        _add_floats(memory, dtype, at[allowed], operand[allowed], unknown[allowed])
    else:
        for k, x, e in zip(at[allowed], operand[allowed], unknown[allowed], strict=True):
            memory.data[k] = _combined(stmt.attrs["kind"], memory.data[k], x)
            memory.error[k] = max(memory.error[k], e)
    return Value(old, error) if stmt.results else ()


def _combined(kind: str, old: np.generic, x: np.generic) -> np.generic:
    return {
        "add": lambda: old + x, "max": lambda: max(old, x), "min": lambda: min(old, x), "and": lambda: old & x,
        "or": lambda: old | x, "xor": lambda: old ^ x, "xchg": lambda: x,
    }[kind]()  # fmt: skip


def _add_floats(memory: Memory, dtype: DType, at: np.ndarray, operand: np.ndarray, errors: np.ndarray) -> None:
    for k, x, e in zip(at, operand, errors, strict=True):
        if memory.adds[k] == 0:
            memory.sizes[k] = abs(float(memory.data[k]))
        memory.data[k] = np.asarray(memory.data[k].astype(np.float64) + float(x)).astype(dtype.storage)
        memory.sizes[k] += abs(float(x)) if np.isfinite(x) else np.inf
        memory.adds[k] += 1
        memory.error[k] += e


@_rule("cas")
def _cas(run: Run, stmt: Stmt, args: list[Value], dtypes: tuple[DType, ...]) -> Results:
    """atomic_cas(pointer, compare, value) where every lane has an address of its own."""
    memory = run.memory[stmt.attrs["buffer"]]
    at, _ = run.place(stmt, args)
    old, error = memory.data[at].copy(), memory.error[at].copy()
    swapped = old == args[0].data
    memory.data[at] = np.where(swapped, args[1].data, old)
    memory.error[at] = np.where(swapped, args[1].error, error)
    return Value(old, error)
