"""From values of tunables to a kernel that can be launched: lowered, rendered, imported."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from codegen.launching import options_of
from codegen.lower import lower
from codegen.plan import Kernel, Plan
from codegen.render import kernel_text
from codegen.tunables import Value
from codegen.whole_file import write_whole
from dsl import ModelSpec

Values = Mapping[str, Value]
Text = Callable[[Kernel], str]


@dataclass(frozen=True)
class Candidate:
    """A kernel instance with some values, and the plan that it is part of. function: the Triton kernel."""

    values: Values
    plan: Plan
    kernel: Kernel
    function: Any

    @cached_property
    def options(self) -> dict[str, Any]:
        """What a launch is made with."""
        return options_of(self.kernel)

    def launch(self, operands: Any) -> None:
        """Launch once on `operands` (autotune.arena.Operands)."""
        self.function[operands.grid](**operands.tensors, **operands.scalars, **self.options)


def reduced(spec: ModelSpec) -> ModelSpec:
    """The spec with one layer of each kind: as a part of it, the same kernel instances, lowered in no time."""
    return spec.model_copy(update={"pattern": tuple(dict.fromkeys(spec.pattern))})


class Forge:
    """Makes candidates of the kernels of one spec and target. text: renders a kernel; tests plant faults with it."""

    def __init__(self, spec: ModelSpec, target: str, folder: Path, text: Text = kernel_text) -> None:
        self.spec, self.target, self.folder, self.text = spec, target, folder, text

    @cached_property
    def untuned(self) -> Plan:
        """The plan with every default."""
        return self._lowered({})

    def candidate(self, kernel: str, values: Values) -> Candidate:
        """Lower, check and import the kernel with these values. Raises CodegenError if the plan refuses them."""
        plan = self._lowered({kernel: values}) if values else self.untuned
        instance = plan.kernel(kernel)
        return Candidate(dict(values), plan, instance, self._function(instance))

    def _lowered(self, values: Mapping[str, Values]) -> Plan:
        return lower(reduced(self.spec), self.target, values, part_of=self.spec)

    def write(self, kernel: Kernel) -> Path:
        """The module of a kernel, in a folder named after its text; others may write it now. Raises TuneNotWritten."""
        text = self.text(kernel)
        path = self.folder / hashlib.sha256(text.encode()).hexdigest()[:24] / f"{kernel.name}.py"
        if _content(path) != text:
            write_whole(path, text)
        return path

    def _function(self, kernel: Kernel) -> Any:
        path = self.write(kernel)
        name = f"stepforge_autotune_{path.parent.name}_{kernel.name}"
        if name not in sys.modules:
            found = importlib.util.spec_from_file_location(name, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[name] = module
            try:
                found.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return getattr(sys.modules[name], kernel.name)


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
