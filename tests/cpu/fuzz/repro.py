"""Writes a program and what it must compute as one file that needs nothing of the fuzzer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cpu.fuzz.data import fill
from tests.cpu.fuzz.dtypes import DType
from tests.cpu.fuzz.oracle import expected
from tests.cpu.fuzz.oracle_elementwise import bits_of
from tests.cpu.fuzz.run import Outcome
from tests.cpu.fuzz.source import kernel_source

MAIN = '''

def tensor(bits, dtype):
    """A tensor of `dtype` with these bits, in the middle of a larger one."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = b"".join(b.to_bytes(size, "little") for b in bits)
    whole = torch.frombuffer(bytearray(b"\\x5a" * 512 + raw + b"\\x5a" * 512), dtype=torch.uint8)
    whole = whole.view(torch.int8 if dtype is torch.bool else dtype)
    inner = whole[512 // size : 512 // size + len(bits)]
    return inner.view(torch.bool) if dtype is torch.bool else inner


def main():
    """Exit status 1 if an element differs by more than its bound (0: equal bits; inf: nothing is claimed)."""
    tensors = {name: tensor(before, dtype) for name, (dtype, before, _, _) in BUFFERS.items()}
    program[GRID](*tensors.values(), *SCALARS)
    wrong = 0
    for name, (dtype, _, after, bounds) in BUFFERS.items():
        want = tensor(after, dtype)
        for k, bound in enumerate(bounds or [0.0] * len(after)):
            got, right = tensors[name][k].item(), want[k].item()
            same = got == right and math.copysign(1, got) == math.copysign(1, right)
            same = same or (got != got and right != right) or bound == math.inf
            if not same and not abs(got - right) <= bound:
                wrong += 1
                print(f"{name}[{k}] = {got!r}, must be {right!r} (bound {bound:.3g})")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
'''


def repro_source(outcome: Outcome) -> str:
    """Text of a stand-alone script: `python repro.py` shows the difference and exits with 1."""
    program = outcome.program
    want = expected(program)
    lines = ["BUFFERS = {  # name: dtype, bits before, bits after, bound of each element if not all 0"]
    for buffer in program.buffers:
        value = want[buffer.name]
        before, after = (_bits(buffer.dtype, data) for data in (fill(program, buffer), value.data))
        error = [float(e) for e in value.error] if value.error.any() else None
        text = repr(error).replace("inf", 'float("inf")')
        lines.append(f'    "{buffer.name}": ({buffer.dtype.torch}, {before}, {after}, {text}),')
    lines.append("}")
    source = kernel_source(program).replace('"""\n', f"\n\n{outcome.message}\n" + '"""\n\nimport math\nimport sys\n', 1)
    source = source.replace("import triton\n", "import torch\nimport triton\n", 1)
    head = f"\nGRID, SCALARS = {program.grid}, {tuple(program.scalars.values())}\n"
    return source + head + "\n".join(lines) + "\n" + MAIN


def write_repro(outcome: Outcome, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"repro_{outcome.program.seed}_{outcome.program.index}.py"
    path.write_text(repro_source(outcome))
    return path


def _bits(dtype: DType, data: np.ndarray) -> list[int]:
    return [int(b) for b in bits_of(np.ascontiguousarray(data), dtype)]
