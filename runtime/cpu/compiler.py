"""Triton's view of the compiler: Triton IR -> C -> shared object. Triton looks for the one concrete class here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.backends.compiler import BaseBackend, GPUTarget

from . import compat, knobs, toolchain
from .analysis.merged_dots import merge_dots
from .analysis.provenance import has_integer_addresses
from .checks import mode
from .emit.kernel import emit_kernel
from .errors import BadArgument
from .ttir.inline import inline_calls
from .ttir.parser import parse_module

MOST_PREFETCH_BYTES = 1 << 16


@dataclass(frozen=True)
class CpuOptions:
    """Options of a launch. `debug` and `sanitize_overflow` reach the front end; warps, stages, CTAs mean nothing here.

    Overflow is checked in debug mode alone.

    enable_fp_fusion is accepted and has no effect: nothing is ever contracted (write tl.fma for a fused operation)."""

    num_warps: int = 1
    warp_size: int = 1
    num_ctas: int = 1
    num_stages: int = 1
    extern_libs: dict | None = None
    debug: bool = False
    sanitize_overflow: bool = True
    arch: str = "native"
    supported_fp8_dtypes: tuple[str, ...] = ()
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    max_num_imprecise_acc_default: int = 0
    backend_name: str = "cpu"
    instrumentation_mode: str = compat.EXTRA_OPTIONS["instrumentation_mode"]
    fpsan_homomorphic_casts: bool = compat.EXTRA_OPTIONS["fpsan_homomorphic_casts"]
    ir_override: str | None = compat.EXTRA_OPTIONS["ir_override"]
    prefetch_bytes: int = 0  # how far loads that stream run ahead of their use; 0: what the analysis finds best
    check_mode: str = ""  # what STEPFORGE_CPU_CHECK or `checked` says

    def hash(self) -> str:
        key = repr([(f.name, getattr(self, f.name)) for f in fields(self)])
        return hashlib.sha256(key.encode()).hexdigest()


#: Options that cannot change CPU code; fixed, so that autotuning variants share one cache entry.
_IGNORED = ("num_warps", "num_ctas", "num_stages", "warp_size", "enable_fp_fusion")


def _check_prefetch(value: Any) -> None:
    """Raise BadArgument for a distance that no load can fetch ahead."""
    if type(value) is not int or not 0 <= value <= MOST_PREFETCH_BYTES:
        allowed = f"an integer from 0 to {MOST_PREFETCH_BYTES}"
        raise BadArgument(function="launch", argument="prefetch_bytes", value=repr(value), allowed=allowed)


class CpuBackend(BaseBackend):
    """Stages `ttir`, `c`, `so`; the C source lies beside the object in Triton's cache."""

    supports_native_tensor_specialization = True
    binary_ext = "so"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu" and not knobs.disabled()

    def hash(self) -> str:
        return toolchain.fingerprint()

    def parse_options(self, options: dict) -> CpuOptions:
        known = {f.name for f in fields(CpuOptions)}
        given = {k: v for k, v in options.items() if k in known and v is not None and k not in _IGNORED}
        if given.get("check_mode") not in mode.MODES:
            mode.warn_if_changed()
            given["check_mode"] = mode.current().mode  # else a compile thread got the options of the launching one
        _check_prefetch(given.get("prefetch_bytes", 0))
        return CpuOptions(**given)

    def pack_metadata(self, metadata: Any) -> tuple:
        return ()

    def get_codegen_implementation(self, options: CpuOptions) -> dict:
        return {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}

    def get_module_map(self) -> dict[str, ModuleType]:
        # any implementation of libdevice will do: its symbols arrive as names of tt.extern_elementwise
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context: Any) -> None:
        pass

    def add_stages(self, stages: dict, options: CpuOptions, language: Any = None) -> None:
        stages["ttir"] = lambda module, metadata: optimise(module)
        stages[f"{options.check_mode}.c" if options.check_mode else "c"] = to_c  # the end of the file's name
        stages["so"] = lambda source, metadata: toolchain.build_kernel(
            source, metadata["name"], metadata["integer_addresses"]
        )


def optimise(module: Any) -> Any:
    """Triton's target-independent passes."""
    pm = ir.pass_manager(module.context)
    pm.enable_debug()
    passes.common.add_inliner(pm)
    compat.rewrite_tensor_pointer(pm)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(pm)
    passes.common.add_canonicalizer(pm)
    passes.ttir.add_combine(pm)
    passes.ttir.add_reorder_broadcast(pm)
    passes.common.add_cse(pm)
    passes.ttir.add_triton_licm(pm)
    passes.common.add_symbol_dce(pm)
    passes.ttir.add_loop_unroll(pm)
    compat.run_passes(pm, module, "make_ttir")
    return module


def to_c(module: Any, metadata: dict) -> str:
    """C source of an optimised module. Raises UnsupportedOp, MalformedIr, LocalMemoryExceeded."""
    metadata["name"] = module.get_entry_func_name()
    metadata.update(shared=0, global_scratch_size=0, profile_scratch_size=0)
    check = metadata["check_mode"]
    function = inline_calls(parse_module(str(module)), native=not check)
    if not check:
        merge_dots(function)
    source, metadata["checks"] = emit_kernel(function, check, metadata["prefetch_bytes"])
    metadata["integer_addresses"] = bool(check) or has_integer_addresses(function)
    return source
