"""The emitter: names, scopes, storage, and the dispatch from operations to the functions that emit them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..analysis.affine import of_rows, uniform
from ..analysis.placement import Place, Placement
from ..analysis.tails import LANES
from ..errors import LocalMemoryExceeded
from ..ttir.ir import Block, Function, Op, Value, words
from .checks import Checks
from .ctypes import c_type, literal, size_of, widen
from .elementwise import array_function, expression, is_rounding_to_bf16
from .nest import ZERO, At, Index, Loop, Nest, flat
from .rows import store_row
from .split import split_loop

#: Arrays live on the stack, up to this size each and in total; others share a per-thread arena.
STACK_ARRAY_BYTES, STACK_BYTES = 64 << 10, 256 << 10
ARENA_LIMIT_BYTES = 64 << 20

#: `%row_3` and `%row` were both called row.
_SOURCE_NAME = re.compile(r"%([A-Za-z][A-Za-z0-9_]*?)(?:_\d+)?(?:#\d+)?")
_SILENT = words(
    "arith.constant tt.make_range tt.splat tt.broadcast tt.expand_dims tt.get_program_id tt.return scf.yield"
)

Emit = Callable[["Emitter", Op], None]
STATEMENTS: dict[str, Emit] = {}


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Register the function that emits the operations `names` as statements."""

    def register(function: Emit) -> Emit:
        STATEMENTS.update(dict.fromkeys(names, function))
        return function

    return register


class Emitter:
    """Emits one function. `place` and `names` describe where each value lives at this point of the program."""

    def __init__(self, function: Function, check: str = "") -> None:
        self.function = function
        self.checks = Checks(function, check) if check else None
        self.placement = Placement(function, keep_loads=bool(check))
        self.place: dict[Value, Place] = self.placement.place
        self.names: dict[Value, str] = {}
        self.in_place_accumulators: dict[Op, Value] = {}
        #: Where left operands of packed dots lie, in memory or copied: address and row stride; None of computed ones.
        self.rows_in_memory: dict[Value, tuple[str, str] | None] = {}
        #: Where the tile lies that a load reads in the next round, a C name (tiles.py).
        self.next_tile: dict[Op, str] = {}
        #: C condition of the first round, of loads whose tile is fetched at once then.
        self.first_round: dict[Op, str] = {}
        self.headers = ["kernel.h"]
        #: (location, message) of every device_assert; the kernel reports a failure by its number.
        self.assertions: list[tuple[str, str]] = []
        self.stack_bytes = self.arena_bytes = 0
        self.lines: list[str] = []
        #: The C scalar that all elements of a tensor equal where its mask ends (analysis/tails.py).
        self.beyond: dict[Value, str] = {}
        self._declarations: list[int] = [0]
        self._counter = 0
        self._mentioned = ""

    # ---- text

    def fresh(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, value: Value, prefix: str) -> str:
        """A fresh name that shows what the kernel's source calls `value`; `prefix` where the source has no name."""
        named = _SOURCE_NAME.fullmatch(value.name)
        return self.fresh(f"{named.group(1)}_" if named else prefix)

    def mention(self, op: Op) -> None:
        """A comment with the source line of what follows, when it is another one than before."""
        place = op.location.split(" <- ")[0].rsplit(":", 1)[0].rsplit("/", 1)[-1]
        if ":" in place and place != self._mentioned and "*/" not in place:
            self._mentioned = place
            self.write(f"/* {place} */")

    def write(self, *lines: str) -> None:
        self.lines.extend(lines)

    def include(self, header: str) -> None:
        if header not in self.headers:
            self.headers.append(header)

    def declare(self, line: str) -> None:
        """A declaration at the start of the innermost scope."""
        self.lines.insert(self._declarations[-1], line)

    @contextmanager
    def scope(self, header: str = "") -> Iterator[None]:
        """A C block; arrays declared inside share the stack with those of other blocks."""
        self.write(f"{header} {{".strip())
        self._declarations.append(len(self.lines))
        yield
        self._declarations.pop()
        self.write("}")

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Collect what is written, declarations first, instead of adding it to the program."""
        before, self.lines = self.lines, []
        self._declarations.append(0)
        yield self.lines
        self._declarations.pop()
        self.lines = before

    def apply(self, region: Block, arguments: list[str]) -> tuple[list[str], list[str]]:
        """Statements and results of a region of scalars, given a C expression per argument."""
        self.names.update(zip(region.args, arguments, strict=True))
        with self.captured() as statements:
            self.block(region, skip_terminator=True)
        return statements, [self.names[value] for value in region.terminator.operands]

    # ---- storage

    def array_of(self, value: Value) -> str:
        """A new array for the elements of `value`, named like it."""
        return self.array(value.type.elem, value.type.numel, self.name(value, "b"))

    def array(self, elem: str, numel: int, name: str = "") -> str:
        """Name of a new 64-byte aligned array in the innermost scope."""
        name, size = name or self.fresh("b"), max(numel, 1) * size_of(elem)
        if size <= STACK_ARRAY_BYTES and self.stack_bytes + size <= STACK_BYTES:
            self.stack_bytes += size
            self.declare(f"{c_type(elem)} {name}[{max(numel, 1)}] __attribute__((aligned(64)));")
            return name
        self.declare(f"{c_type(elem)} *const {name} = ({c_type(elem)} *)(cp_arena + {self.arena_bytes});")
        self.arena_bytes += -(-size // 64) * 64
        if self.arena_bytes > ARENA_LIMIT_BYTES:
            raise LocalMemoryExceeded(kernel=self.function.name, bytes=self.arena_bytes, limit=ARENA_LIMIT_BYTES)
        return name

    def allocate(self, value: Value) -> str:
        """Storage for a block argument or a stored result."""
        if value.type.is_tensor:
            self.names[value], self.place[value] = self.array_of(value), Place.ARRAY
        else:
            self.names[value], self.place[value] = self.name(value, "s"), Place.SCALAR
            self.declare(f"{c_type(value.type.elem)} {self.names[value]};")
        return self.names[value]

    def assign(self, target: Value, value: Value) -> None:
        """Store `value` where `target` lives."""
        if target.type.is_tensor:
            self.materialise(value, self.names[target])
        else:
            self.write(f"{self.names[target]} = {self.scalar(value)};")

    def scalar(self, value: Value) -> str:
        return self.names[value]

    def stored(self, value: Value) -> str:
        """Name of an array that holds `value`, materialised now unless it already is one."""
        if self.place[value] is not Place.ARRAY:
            name = self.array(value.type.elem, value.type.numel)
            self.materialise(value, name)
            return name
        return self.names[value]

    def materialise(self, value: Value, target: str, as_type: str | None = None) -> None:
        """target[row-major] = value, converted to the C type of `as_type` if given."""
        shape = value.type.dims
        if self.place[value] is Place.ARRAY and as_type in (None, value.type.elem):
            self.copy(target, self.names[value], value)
            return
        convert = as_type is not None and as_type != value.type.elem
        if not convert and self._by_array_function(value, target):
            return

        def build(nest: Nest, index: Index) -> None:
            code = nest.at(value, index).code
            code = widen(value.type.elem, code) if convert else code
            nest.levels[-1].append(f"{target}[{flat(shape, index)}] = {code};")

        self.loop_nest(shape, build, self.innermost(value))

    def _by_array_function(self, value: Value, target: str) -> bool:
        """Write target = value as a call of arrays.h, if there is a function for it."""
        if is_rounding_to_bf16(value) and self.place[value.op.operands[0]] is Place.ARRAY:
            self.include("arrays.h")
            self.write(f"cp_f32_bf16_array({target}, {self.names[value.op.operands[0]]}, {value.type.numel});")
            return True
        function = array_function(value)
        if function:
            self._whole_array(function, value.op.operands[0], target)
        return function is not None

    def _whole_array(self, function: str, argument: Value, target: str) -> None:
        """target = function(argument)."""
        self.include("arrays.h")
        if rows := self._scaled_and_shifted(argument):
            source, scale, shifts = rows
            count, columns = argument.type.dims
            self.write(f"{function}_rows({target}, {source}, {scale}, {shifts}, {count}, {columns});")
            return
        source, shift = self.shifted(argument) or (target, "0.0f")
        if source == target and shift == "0.0f":
            self.materialise(argument, target)
        self.write(f"{function}_array({target}, {source}, {shift}, {argument.type.numel});")

    def _scaled_and_shifted(self, argument: Value) -> tuple[str, str, str] | None:
        """Array, scalar, and array of a number per row, of `x * scale - shift[:, None]` or `x - shift[:, None]`."""
        if self.place[argument] is not Place.INLINE or argument.defining != "arith.subf":
            return None
        left, shifts = argument.op.operands[0], of_rows(argument.op.operands[1])
        if shifts is None or argument.type.dims[1] % LANES:
            return None
        scale = "1.0f"
        if self.place[left] is Place.INLINE and left.defining == "arith.mulf":
            left, factor = left.op.operands
            scalar = uniform(factor)
            if scalar is None or (scalar.type.is_tensor and scalar.defining != "arith.constant"):
                return None
            scale = literal(scalar.op) if scalar.type.is_tensor else self.names[scalar]
        return (self.names[left], scale, self.stored(shifts)) if self.place[left] is Place.ARRAY else None

    def shifted(self, argument: Value) -> tuple[str, str] | None:
        """Array and scalar whose difference `argument` is: array functions compute it on the way."""
        if self.place[argument] is Place.INLINE and argument.defining == "arith.subf":
            left, right = argument.op.operands
            scalar = uniform(right)
            if self.place[left] is Place.ARRAY and scalar is not None and self.place[scalar] is Place.SCALAR:
                return self.names[left], self.names[scalar]
        return None

    def copy(self, target: str, source: str, value: Value) -> None:
        """Copy an array of the type of `value`."""
        self.write(f"memcpy({target}, {source}, sizeof({c_type(value.type.elem)}) * {value.type.numel});")

    # ---- loop nests

    def versioned(
        self, depth: int, build: Callable[[Nest], list[str]], split: Callable[[Nest], list[str] | None] | None = None
    ) -> None:
        """Write the nest that `build` returns; twice if masks could be dropped when corner elements hold.

        `split` may return another form of the general version."""
        general = Nest(self, depth)
        slow = build(general)
        if not general.corners and not general.wraps:
            self.write("{", *slow, "}")
            return
        slow = (split(general) if split is not None else None) or slow
        statements, condition = self.assumptions(general)
        fast = build(Nest(self, depth, frozenset(general.corners), unwrapped=frozenset(general.wraps)))
        self.write("{", *statements, f"if (cp_likely({condition})) {{")
        self.write(*fast, "} else {", *slow, "}", "}")

    def assumptions(self, general: Nest) -> tuple[list[str], str]:
        """Statements and a C condition: do all corners and remainders that a nest came across allow to assume them?"""
        test = Nest(self, 0)
        conditions = [self._corner(test, value) for value in general.corners]
        conditions += [self._same_quotient(test, value) for value in general.wraps]
        return test.levels[0], " & ".join(conditions) or "1"

    def _corner(self, nest: Nest, comparison: Value) -> str:
        last = self.placement.corners.deciding(comparison) == "last"
        index = tuple(At(str(size - 1), 0) if last else ZERO for size in comparison.type.dims)
        return nest.at(comparison, index).code

    def _same_quotient(self, nest: Nest, remainder: Value) -> str:
        offsets, divisor = remainder.op.operands
        last = tuple(At(str(size - 1), 0) for size in offsets.type.dims)
        first, final = nest.at(offsets, tuple(ZERO for _ in last)).code, nest.at(offsets, last).code
        return f"cp_same_quotient({first}, {final}, {nest.at(uniform(divisor), ()).code})"

    def loop_nest(
        self, shape: Sequence[int], build: Callable[[Nest, Index], None], innermost: int | None = None
    ) -> None:
        """One loop per dimension, `innermost` last; `build` adds the body to the deepest level."""
        order = list(range(len(shape)))
        if innermost is not None and order:
            order.append(order.pop(innermost))

        names = [self.fresh("i") for _ in shape]

        def text(nest: Nest) -> list[str]:
            build(nest, tuple(At(name, order.index(d) + 1) for d, name in enumerate(names)))
            return nest.loops([Loop(names[d], shape[d]) for d in order])

        self.versioned(len(shape), text, lambda general: split_loop(general, shape, names, order, build))

    def innermost(self, value: Value) -> int | None:
        """Dimension with unit stride of the first load inside `value`; None for the last one."""
        if self.checks or self.place[value] is not Place.INLINE or not value.type.is_tensor:
            return None
        op = value.op
        if op.name == "tt.load":
            dim = self.placement.strides.innermost(op.operands[0])
            return dim if dim >= 0 else None
        if op.name == "tt.trans":
            source = self.innermost(op.operands[0])
            return op.attrs["order"].index(source) if source is not None else None
        same_rank = [o for o in op.operands if o.type.is_tensor and len(o.type.dims) == len(value.type.dims)]
        if op.name == "tt.reshape" or any(o.type.dims != value.type.dims for o in same_rank):
            return None
        return next((dim for o in same_rank if (dim := self.innermost(o)) is not None), None)

    # ---- operations

    def block(self, block: Block, skip_terminator: bool = False) -> None:
        for op in block.ops[:-1] if skip_terminator else block.ops:
            self.operation(op)

    def operation(self, op: Op) -> None:
        if op.name not in _SILENT:
            self.mention(op)
        if emit := STATEMENTS.get(op.name):
            emit(self, op)
            return
        for result in op.results:
            if self.place[result] is Place.INLINE:
                if result in self.placement.stored:
                    self.store_inline(result)
            else:
                self.scalar_result(op, result)

    def store_inline(self, value: Value) -> None:
        if value in self.placement.tails.deferred:
            return
        name = self.home(value)
        if value in self.placement.tails.mask:
            store_row(self, value, name)
        else:
            self.materialise(value, name)
        self.names[value], self.place[value] = name, Place.ARRAY

    def home(self, value: Value) -> str:
        """The array in which `value` is to be stored: that of a tensor it replaces, or a new one."""
        predecessor = self.placement.updates.get(value) or self.placement.inherits(value)
        return self.names[predecessor] if predecessor is not None else self.array_of(value)

    def scalar_result(self, op: Op, result: Value) -> None:
        args = [self.names[operand] for operand in op.operands]
        self.define(result, expression(op, args, result in self.placement.addresses))
        if self.checks:
            self.write(*self.checks.follow(op, self.names, self.fresh("x")))

    def define(self, result: Value, code: str) -> None:
        """A new C scalar holding `code`."""
        self.names[result] = self.name(result, "s")
        self.write(f"{c_type(result.type.elem)} const {self.names[result]} = {code};")
