"""Lowering: a spec and a target become a Plan, in passes that are each verified; the whole with its kernels' text."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.errors import TunedRefused
from codegen.lower.builder import Builder
from codegen.lower.drafter import lower_drafter
from codegen.lower.kernel_rules import verify_kernels
from codegen.lower.limits import resolve_limits
from codegen.lower.lookup import lower_lookup
from codegen.lower.numerics import stamp_numerics
from codegen.lower.restore import lower_restore
from codegen.lower.target_model import (
    declare_protocol,
    lower_begin,
    lower_prefill,
    lower_save,
    lower_score,
    lower_verify,
)
from codegen.lower.targets import TARGETS, resolve_target
from codegen.lower.verify import verify_plan
from codegen.plan import Plan
from codegen.tunables import Value
from dsl import ModelSpec, spec_sha256
from dsl.cost import bytes_of
from dsl.tensors import weight_shapes

PASSES = (
    declare_protocol,
    lower_verify,
    lower_prefill,
    lower_begin,
    lower_save,
    lower_score,
    lower_drafter,
    lower_restore,
    lower_lookup,
    stamp_numerics,
)

__all__ = ["PASSES", "TARGETS", "lower"]


Tuned = Mapping[str, Mapping[str, Value]]


def lower(spec: ModelSpec, target: str, tuned: Tuned | None = None, part_of: ModelSpec | None = None) -> Plan:
    """The Plan of `spec` on `target` ("cpu", "cuda:90", ...). tuned: values of tunables by kernel, else the defaults.

    part_of: the model that `spec` has some layers of; what weights together exceed a cache depends on all of them.
    Raises CodegenError for what the target cannot do, and TunedRefused.
    """
    size = bytes_of(weight_shapes(part_of or spec))
    builder = Builder(spec, resolve_target(target), resolve_limits(spec), spec_sha256(spec), size, tuned=tuned or {})
    for lowering_pass in PASSES:
        lowering_pass(builder)
        verify_plan(builder.plan())
    plan = builder.plan()
    for kernel in builder.tuned.keys() - builder.kernels.keys():
        raise TunedRefused(kernel=kernel, name="", value="", target=target, allowed="no value: there is no such kernel")
    verify_kernels(plan)
    return plan
