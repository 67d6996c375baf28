"""A check of a third-party kernel: the library's public function on CPU tensors against a PyTorch reference.

Both run forward, and backward from the same random cotangents; forward and backward are two checks. The reference sees
the same inputs in f32.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton.runtime

from runtime.cpu import launcher

#: Import name and distribution of each library, and the modules beside this file that hold its cases.
LIBRARIES = {
    "fla": ("fla-core", ("fla_mixers", "fla_modules", "fla_utilities")),
    "liger_kernel": ("liger-kernel", ("liger_layers", "liger_losses")),
}
#: Largest allowed difference, relative to the largest magnitude of the reference. bf16 and f16 have 8 and 11 bits.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
DIRECTIONS = ("forward", "backward")

Inputs = dict[str, torch.Tensor]
Outputs = torch.Tensor | tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Case:
    """`inputs` draws tensors: floats become `dtype` unless `wide`, and are differentiated unless `fixed`.

    `kernel` and `reference` take the inputs as keywords. A case without `backward` is forward only."""

    name: str
    library: str
    inputs: Callable[[], Inputs]
    kernel: Callable[..., Outputs]
    reference: Callable[..., Outputs]
    dtype: torch.dtype = torch.float32
    backward: bool = True
    wide: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.library}.{self.name}[{str(self.dtype).removeprefix('torch.')}]"


class Outcome(NamedTuple):
    """Result of one direction of a case: Triton kernels launched, and a reason that is empty when it passed."""

    error: float
    tolerance: float
    kernels: tuple[str, ...]
    reason: str


def missing(library: str) -> str | None:
    """Why the cases of a library cannot run here."""
    if importlib.util.find_spec(library) is None:
        return f"{LIBRARIES[library][0]} is not installed: pip install -e '.[third-party]'"
    backend = triton.runtime.driver.active.get_current_target().backend
    return None if backend == "cpu" else f"Triton's active backend is {backend}: set TRITON_DEFAULT_BACKEND=cpu"


def version(library: str) -> str:
    return importlib.metadata.version(LIBRARIES[library][0])


def cases() -> list[Case]:
    """Cases of all libraries that are installed."""
    modules = [m for library, (_, names) in LIBRARIES.items() if missing(library) is None for m in names]
    return [case for name in modules for case in importlib.import_module(f"tests.cpu.third_party.{name}").CASES]


def draw(case: Case) -> Inputs:
    """The inputs, always the same for a name."""
    torch.manual_seed(zlib.crc32(case.name.encode()))
    drawn = case.inputs()
    return {
        name: value.to(case.dtype) if value.is_floating_point() and name not in case.wide else value
        for name, value in drawn.items()
    }


def shapes(case: Case) -> str:
    return " ".join(f"{name}{list(value.shape)}".replace(" ", "") for name, value in draw(case).items())


def run(case: Case, direction: str) -> Outcome:
    """One check. A failure of any kind becomes a reason, so that a table can show all of them."""
    tolerance = TOLERANCES[case.dtype]
    try:
        drawn = draw(case)
        with _launches() as kernels:
            found = _evaluate(case, case.kernel, drawn, direction)
        wanted = _evaluate(case, case.reference, _widened(drawn), direction)
        error = max(_difference(a, b) for a, b in zip(found, wanted, strict=True))
    except Exception as failure:
        first_line = (str(failure).strip().splitlines() or [""])[0]
        return Outcome(float("nan"), tolerance, (), f"{type(failure).__name__}: {first_line}")
    reason = "" if error <= tolerance else "differs from the reference"
    return Outcome(error, tolerance, tuple(dict.fromkeys(kernels)), reason if kernels else "no Triton kernel ran")


@contextmanager
def _launches() -> Iterator[list[str]]:
    """Names of the kernels that the CPU backend runs meanwhile."""
    names: list[str] = []
    launcher.recorder = lambda source, *rest: names.append(source.name)  # None: run it
    try:
        yield names
    finally:
        launcher.recorder = None


def _widened(inputs: Inputs) -> Inputs:
    return {name: value.float() if value.is_floating_point() else value for name, value in inputs.items()}


def _evaluate(case: Case, function: Callable[..., Outputs], inputs: Inputs, direction: str) -> list[torch.Tensor]:
    """Outputs of `function`, or the gradients of its inputs."""
    own = {name: value.clone() for name, value in inputs.items()}
    leaves = [v.requires_grad_() for n, v in own.items() if v.is_floating_point() and n not in case.fixed]
    with torch.set_grad_enabled(direction == "backward"):
        outputs = function(**own)
    outputs = [o for o in (outputs if isinstance(outputs, tuple) else (outputs,)) if o is not None]
    if direction == "forward":
        return outputs
    torch.manual_seed(1)
    cotangents = [torch.randn(o.shape).to(o.dtype) for o in outputs]
    return list(torch.autograd.grad(outputs, leaves, cotangents))


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference relative to the largest magnitude; NaN counts as infinite."""
    assert found.shape == wanted.shape, f"shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
    distance = (found.double() - wanted.double()).abs().max() / (wanted.double().abs().max() + 1e-30)
    return float("inf") if distance.isnan() else distance.item()
