"""The typed IR the backend works on: functions of blocks of operations over SSA values.

Mirrors MLIR with less: a `Type` is an element type plus an optional shape, attributes are strings, numbers or lists.
Nothing here knows about C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

#: An operation of this backend: a call of coded_bf16 of functions.py that hand-written C stands for.
CODED = "cpu.coded_bf16"
POINTER_PREFIX = "!tt.ptr<"
FLOATS = ("bf16", "f16", "f32", "f64")
INTEGERS = ("i1", "i8", "i16", "i32", "i64", "index")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64}


def words(*lines: str) -> frozenset[str]:
    """A set of names from lines of text: how tables of operations are written here."""
    return frozenset(name for line in lines for name in line.split())


@dataclass(frozen=True)
class Type:
    """Element type (`f32`, `i1`, `!tt.ptr<bf16>`) and shape; shape None is a scalar."""

    elem: str
    shape: tuple[int, ...] | None = None

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None

    @property
    def is_pointer(self) -> bool:
        return self.elem.startswith(POINTER_PREFIX)

    @property
    def is_float(self) -> bool:
        return self.elem in FLOATS

    @property
    def pointee(self) -> str:
        """Element type a pointer points at, without the address space."""
        return self.elem[len(POINTER_PREFIX) : -1].split(",")[0].strip()

    @property
    def dims(self) -> tuple[int, ...]:
        """Shape, () for scalars."""
        return self.shape or ()

    @property
    def numel(self) -> int:
        product = 1
        for size in self.dims:
            product *= size
        return product

    def with_elem(self, elem: str) -> Type:
        return Type(elem, self.shape)

    def __str__(self) -> str:
        return self.elem if self.shape is None else f"tensor<{'x'.join(map(str, self.shape))}x{self.elem}>"


@dataclass(eq=False, repr=False)
class Value:
    """An SSA value: result `index` of `op`, or argument `index` of `block` when op is None."""

    name: str
    type: Type
    op: Op | None = None
    index: int = 0
    block: Block | None = None
    uses: list[tuple[Op, int]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    @property
    def defining(self) -> str | None:
        """Name of the defining operation, None for block arguments."""
        return self.op.name if self.op else None


@dataclass(eq=False, repr=False)
class Op:
    """One operation; `regions` hold one block each, `successors` are (block, number of operands) of branches."""

    name: str
    operands: list[Value] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    attrs: dict = field(default_factory=dict)
    regions: list[Block] = field(default_factory=list)
    successors: list[tuple[Block, int]] = field(default_factory=list)
    block: Block | None = None
    position: int = 0
    location: str = "unknown"

    def __repr__(self) -> str:
        return f"{self.results} = {self.name}{self.operands} {self.attrs}"

    @property
    def result(self) -> Value:
        return self.results[0]

    def walk(self) -> Iterator[Op]:
        """This operation and all nested ones, outside in."""
        yield self
        for region in self.regions:
            for op in region.ops:
                yield from op.walk()


@dataclass(eq=False, repr=False)
class Block:
    """Arguments and operations; `parent` is the operation whose region this is, None at function level."""

    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    parent: Op | None = None

    @property
    def terminator(self) -> Op | None:
        return self.ops[-1] if self.ops else None

    def append(self, op: Op) -> Op:
        """Add `op` at the end and register its uses."""
        op.block, op.position = self, len(self.ops)
        self.ops.append(op)
        for k, operand in enumerate(op.operands):
            operand.uses.append((op, k))
        return op


@dataclass(eq=False, repr=False)
class Function:
    """A kernel (or a noinline device function): function-level blocks, the first of which holds the arguments."""

    name: str
    blocks: list[Block]
    is_public: bool = True

    @property
    def args(self) -> list[Value]:
        return self.blocks[0].args

    def walk(self) -> Iterator[Op]:
        for block in self.blocks:
            for op in block.ops:
                yield from op.walk()
