"""Affine facts about integer and pointer tensors: constants, uniform values, strides per dimension."""

from __future__ import annotations

from collections.abc import Mapping

from ..ttir.ir import Op, Value

#: A stride that is the same everywhere but only known at run time.
RUNTIME = "runtime"
Stride = int | str | None

_SPREADING = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "arith.extsi", "arith.extui")


def constant_text(op: Op) -> str:
    """The literal of an arith.constant, `dense<...>` removed."""
    text = op.attrs["value"]
    return text[len("dense<") : -1] if text.startswith("dense<") else text


def constant_int(value: Value) -> int | None:
    """The integer every element of `value` equals, if known at compile time."""
    while value.op is not None and value.defining in _SPREADING:
        value = value.op.operands[0]
    if value.defining == "arith.constant" and not value.type.is_float:
        text = constant_text(value.op)
        return {"true": 1, "false": 0}.get(text) if text in ("true", "false") else _parse_int(text)
    if value.defining in ("arith.muli", "arith.addi"):
        a, b = (constant_int(operand) for operand in value.op.operands)
        if a is not None and b is not None:
            return a * b if value.defining == "arith.muli" else a + b
    return None


def _parse_int(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdigit() else None


def uniform(value: Value) -> Value | None:
    """The scalar (or splat constant) that every element of `value` equals, if there is one."""
    while value.op is not None and value.type.is_tensor:
        if value.defining == "arith.constant":
            return value
        if value.defining not in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"):
            return None
        value = value.op.operands[0]
    return None if value.type.is_tensor else value


def of_rows(value: Value) -> Value | None:
    """The tensor [M] of which every row of `value` [M, N] repeats an element, if there is one."""
    if value.defining != "tt.broadcast" or len(value.type.dims) != 2:
        return None
    column = value.op.operands[0]
    is_column = column.defining == "tt.expand_dims" and int(column.op.attrs["axis"]) == 1
    return column.op.operands[0] if is_column and column.type.dims[0] == value.type.dims[0] else None


def is_positive_zero(value: Value) -> bool:
    """Is every element the float 0.0, whose sign is positive?"""
    same = uniform(value)
    if same is None or same.defining != "arith.constant" or not same.type.is_float:
        return False
    text = constant_text(same.op)
    return not text.startswith(("-", "0x")) and float(text) == 0.0


class Strides:
    """Difference between neighbours along one dimension. `inits` maps induction values to their initial tensors.

    `unwrapped`: what holds where remainders do not wrap (`Placement.wraps`)."""

    def __init__(self, inits: Mapping[Value, Value], unwrapped: bool = False) -> None:
        self._inits, self._unwrapped = inits, unwrapped
        self._memo: dict[tuple[Value, int], Stride] = {}

    def of(self, value: Value, dim: int) -> Stride:
        """An int, RUNTIME, or None when the value is not affine in that dimension."""
        key = (value, dim)
        if key not in self._memo:
            self._memo[key] = self._compute(value, dim)
        return self._memo[key]

    def _compute(self, value: Value, dim: int) -> Stride:
        if value in self._inits:
            return self.of(self._inits[value], dim)
        if value.op is None or not value.type.is_tensor:
            return None if value.type.is_tensor else 0
        rule = getattr(self, "_" + value.defining.replace(".", "_"), None)
        return rule(value, value.op.operands, dim) if rule else None

    def _arith_constant(self, value: Value, operands: list[Value], dim: int) -> Stride:
        return 0

    _tt_splat = _arith_constant

    def _tt_make_range(self, value: Value, operands: list[Value], dim: int) -> Stride:
        return 1

    def _tt_broadcast(self, value: Value, operands: list[Value], dim: int) -> Stride:
        source = operands[0]
        return 0 if source.type.dims[dim] == 1 else self.of(source, dim)

    def _tt_expand_dims(self, value: Value, operands: list[Value], dim: int) -> Stride:
        axis = int(value.op.attrs["axis"])
        return 0 if dim == axis else self.of(operands[0], dim - (dim > axis))

    def _tt_trans(self, value: Value, operands: list[Value], dim: int) -> Stride:
        return self.of(operands[0], value.op.attrs["order"][dim])

    def _tt_reshape(self, value: Value, operands: list[Value], dim: int) -> Stride:
        """Only along a 1-D source: splitting a range is affine, merging dimensions need not be."""
        if len(operands[0].type.dims) != 1:
            return None
        step, inner = self.of(operands[0], 0), 1
        for size in value.type.dims[dim + 1 :]:
            inner *= size
        return step * inner if isinstance(step, int) else step

    def _arith_addi(self, value: Value, operands: list[Value], dim: int) -> Stride:
        a, b = (self.of(operand, dim) for operand in operands)
        if a is None or b is None:
            return None
        return a + b if isinstance(a, int) and isinstance(b, int) else RUNTIME

    _tt_addptr = _arith_addi

    def _arith_subi(self, value: Value, operands: list[Value], dim: int) -> Stride:
        a, b = (self.of(operand, dim) for operand in operands)
        if a is None or b is None:
            return None
        return a - b if isinstance(a, int) and isinstance(b, int) else RUNTIME

    def _arith_extsi(self, value: Value, operands: list[Value], dim: int) -> Stride:
        return self.of(operands[0], dim)

    def _arith_remsi(self, value: Value, operands: list[Value], dim: int) -> Stride:
        return self.of(operands[0], dim) if self._unwrapped else None

    def _arith_muli(self, value: Value, operands: list[Value], dim: int) -> Stride:
        strides = [self.of(operand, dim) for operand in operands]
        if strides == [0, 0]:
            return 0
        for stride, factor in ((strides[0], operands[1]), (strides[1], operands[0])):
            if stride is not None and uniform(factor) is not None:
                known = constant_int(factor)
                return stride * known if isinstance(stride, int) and known is not None else RUNTIME
        return None

    def injective(self, pointers: Value) -> bool:
        """Are all elements of a pointer tensor provably different addresses?"""
        dims = [(self.of(pointers, d), size) for d, size in enumerate(pointers.type.dims) if size > 1]
        if not all(isinstance(stride, int) and stride for stride, _ in dims):
            return len(dims) == 0
        reach = 0
        for stride, size in sorted((abs(stride), size) for stride, size in dims):
            if stride <= reach:
                return False
            reach += stride * (size - 1)
        return True

    def innermost(self, pointers: Value) -> int:
        """The dimension to loop over last: the one with unit stride, else the last."""
        strides = [self.of(pointers, d) for d in range(len(pointers.type.dims))]
        if not strides or strides[-1] in (0, 1) or 1 not in strides:
            return len(strides) - 1
        return strides.index(1)
