"""What a compiled CUDA kernel is made of, read from its Triton IR, PTX and SASS, and whether the numerics allow it."""

from __future__ import annotations

from codegen.inspect.compiled import Compiled
from codegen.inspect.rules import RULES, Finding, judge
from codegen.inspect.run import Inspection, inspect_plan

__all__ = ["RULES", "Compiled", "Finding", "Inspection", "inspect_plan", "judge"]
