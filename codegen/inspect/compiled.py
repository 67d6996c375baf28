"""A compiled CUDA kernel as its compilers left it: resources, Triton IR, PTX and SASS."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from codegen.aot_worker import Resources, disassemble
from codegen.inspect.intent import Intent, read_intent
from codegen.inspect.listing import Instruction, read_ptx, read_sass


@dataclass(frozen=True)
class Compiled:
    """registers: per thread; spill_bytes: stack and local memory per thread; shared_bytes: per block, dynamic included;
    tensor_columns: of Blackwell's tensor memory. row_tile: BLOCK_M of a tiled kernel.
    """

    kernel: str
    target: str
    row_tile: int | None
    num_warps: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_columns: int
    ttir: str
    ptx_text: str
    sass_text: str

    @cached_property
    def intent(self) -> Intent:
        """What the Triton IR asks for."""
        return read_intent(self.ttir)

    @cached_property
    def ptx(self) -> tuple[Instruction, ...]:
        """Instructions of the PTX."""
        return read_ptx(self.ptx_text)

    @cached_property
    def sass(self) -> tuple[Instruction, ...]:
        """Instructions of the machine code."""
        return read_sass(self.sass_text)

    @property
    def arch(self) -> int:
        """Compute capability: 80, 90 or 100."""
        return int(self.target.removeprefix("cuda:"))


def read_compiled(resources: Resources, target: str, folder: Path) -> Compiled:
    """The kernel in `folder`, its folder in a package's kernel cache. Raises OSError or ValueError if it is damaged."""
    stem = folder / resources.kernel
    metadata = json.loads(stem.with_suffix(".json").read_text())
    return Compiled(
        kernel=resources.kernel,
        target=target,
        row_tile=resources.row_tile,
        num_warps=metadata["num_warps"],
        registers=resources.registers or 0,
        spill_bytes=resources.spill_bytes or 0,
        shared_bytes=resources.shared_bytes or 0,
        tensor_columns=metadata.get("tmem_size") or 0,
        ttir=stem.with_suffix(".ttir").read_text(),
        ptx_text=stem.with_suffix(".ptx").read_text(),
        sass_text=disassemble(stem.with_suffix(".cubin").read_bytes()),
    )
