"""Packing launch arguments and calling compiled kernels."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from . import assertions, boundary, compat, pool, profiling

#: How each argument is packed into 8 bytes (see emit/kernel.py).
_FORMATS = {
    **dict.fromkeys(("i1", "i8", "i16", "i32", "i64"), "q"),
    **dict.fromkeys(("u1", "u8", "u16", "u32", "u64"), "Q"),
    **dict.fromkeys(("fp16", "bf16", "fp32", "f32", "fp64"), "d"),
}

#: Called instead of running a launch while a host graph is being captured; see graph.py.
recorder: Callable[[KernelLauncher, int, tuple[int, int, int], bytes, tuple], bool] | None = None


def _leaves(signature: tuple, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], str]]:
    """Positions and types of all arguments, `constexpr` among them; tuples are flattened."""
    for k, type_ in enumerate(signature):
        if isinstance(type_, tuple):
            yield from _leaves(type_, (*path, k))
        else:
            yield (*path, k), type_


def _item(args: tuple, path: tuple[int, ...]) -> Any:
    value: Any = args
    for k in path:
        value = value[k]
    return value


def _address(argument: Any) -> int:
    """Of a tensor, of None (0), or an address given as an integer."""
    if argument is None:
        return 0
    return argument if isinstance(argument, int) else argument.data_ptr()


def _compile_packer(
    leaves: list[tuple[tuple[int, ...], str]], pointer: str, refuse: Callable[[tuple], None] | None = None
) -> Callable[[tuple], bytes]:
    """A function `args -> bytes` for one signature, made from text because this is the cost of every launch.

    refuse: called with the arguments when not all of them that are pointers are tensors on the CPU."""
    fields: list[tuple[str, str]] = []
    tensors: list[str] = []
    for path, type_ in leaves:
        item = "args" + "".join(f"[{k}]" for k in path)
        tensors += [f"{item}.base"] if type_.startswith("tensordesc") else [item] if type_.startswith("*") else []
        if type_.startswith("tensordesc"):
            fields += describe_descriptor(item, type_, pointer)
        else:
            fields.append((pointer.format(item), "Q") if type_.startswith("*") else (item, _FORMATS[type_]))
    layout = "=" + "".join(layout for _, layout in fields)
    namespace = {"pack": struct.Struct(layout).pack, "address": _address, "refuse": refuse}
    on_cpu = " and ".join(f"{tensor}.is_cpu" for tensor in tensors) if refuse else ""
    test = f"    if not ({on_cpu}): refuse(args)\n" if on_cpu else ""
    exec(f"def packer(args):\n{test}    return pack({', '.join(part for part, _ in fields)})", namespace)
    return namespace["packer"]


def describe_descriptor(item: str, type_: str, pointer: str) -> list[tuple[str, str]]:
    """A tensor descriptor `tensordesc<fp32[8, 8]>`: base, shape, strides, flags, and shape and strides once more."""
    dims = range(type_.count(",") + 1)
    extent = [(f"{item}.shape[{d}]", "q") for d in dims] + [(f"{item}.strides[{d}]", "q") for d in dims]
    flags = [(f"{item}.{flag}", "q") for flag in compat.DESCRIPTOR_FLAGS]
    return [(pointer.format(f"{item}.base"), "Q"), *extent, *flags, *extent]


class KernelLauncher:
    """Triton calls it as (gx, gy, gz, stream, function, packed metadata, launch metadata, enter, exit, *arguments)."""

    checked = False

    def __init__(self, source: Any, metadata: Any) -> None:
        self.name: str = metadata.name
        self.parameters = list(source.signature)
        leaves = list(_leaves(tuple(source.signature.values())))
        self.leaves = [(path, type_) for path, type_ in leaves if type_ != "constexpr"]
        self._constexprs = [path for path, type_ in leaves if type_ == "constexpr"]
        self._pack_tensors = _compile_packer(self.leaves, "{}.data_ptr()", self._require_cpu)
        self._pack_any = _compile_packer(self.leaves, "address({})")

    def formats(self) -> str | None:
        """How launch.c reads the arguments, one letter each; None if some are tuples or descriptors."""
        if any(len(path) > 1 or type_.startswith("tensordesc") for path, type_ in self.leaves):
            return None
        letters = ["-"] * len(self.parameters)
        for (position,), type_ in self.leaves:
            letters[position] = "p" if type_.startswith("*") else _FORMATS[type_]
        return "".join(letters)

    def describe(self, args: tuple) -> Iterator[tuple[str, Any]]:
        """(parameter, argument) of every run-time argument: elements of tuples share their parameter's name, a tensor
        descriptor gives its tensor."""
        for path, type_ in self.leaves:
            value = _item(args, path)
            yield self.parameters[path[0]], value.base if type_.startswith("tensordesc") else value

    def describe_constexprs(self, args: tuple) -> Iterator[tuple[str, Any]]:
        """(parameter, value) of every argument that the kernel was compiled for."""
        for path in self._constexprs:
            yield self.parameters[path[0]], _item(args, path)

    def _require_cpu(self, args: tuple) -> None:
        boundary.require_cpu(self.name, self.describe(args))

    def run(self, function: int, packed: bytes, grid: tuple[int, int, int], args: tuple) -> None:
        """One launch; `args` are the tensors and numbers that `packed` was made from."""
        pool.run_one(function, packed, *grid)

    def bound(self, function: int, packed: bytes, grid: tuple[int, int, int], args: tuple) -> Callable[[], None]:
        """The same launch, to be run later and again."""
        return partial(self.run, function, packed, grid, args)

    def __call__(
        self, gx: int, gy: int, gz: int, stream: int, function: int, packed_metadata: Any, launch_metadata: Any,
        enter_hook: Any, exit_hook: Any, *args: Any,
    ) -> None:  # fmt: skip
        grid = boundary.whole_grid(self.name, (gx, gy, gz))
        try:
            packed = self._pack_tensors(args)
        except AttributeError:
            self._require_cpu(args)
            packed = self._pack_any(args)
        if recorder is not None and recorder(self, function, grid, packed, args):
            return
        if enter_hook is not None:
            enter_hook(launch_metadata)
        profile = profiling.current
        if profile is None:
            self.run(function, packed, grid, args)
        else:
            start = time.perf_counter_ns()
            self.run(function, packed, grid, args)
            profile.add(self.name, time.perf_counter_ns() - start)
        if function in assertions.watched:
            assertions.raise_failures((function,))
        if exit_hook is not None:
            exit_hook(launch_metadata)
