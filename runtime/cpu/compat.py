"""What differs between Triton 3.6 and 3.9, in one place."""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import passes
from triton.tools.tensor_descriptor import TensorDescriptor

#: Fields that some Triton versions expect among a backend's options or metadata, with the value that means "unused".
EXTRA_OPTIONS: dict[str, Any] = {
    "fpsan_homomorphic_casts": False,  # 3.9: jit.run always passes it
    "instrumentation_mode": "",
    "ir_override": None,
}


#: Flags of a tensor descriptor that a kernel receives after its strides. 3.7 added the second.
DESCRIPTOR_FLAGS = ("padding == 'nan'", "round_f32_to_tf32")[: 1 + hasattr(TensorDescriptor, "round_f32_to_tf32")]


#: Block pointers reach the IR before 3.8, where the front end makes tensors of pointers itself; 3.9 has none.
HAS_BLOCK_POINTER_PASS = hasattr(passes.ttir, "add_rewrite_tensor_pointer")


def rewrite_tensor_pointer(pass_manager: Any) -> None:
    """Turn block pointers into tensors of pointers, where they reach the IR."""
    if HAS_BLOCK_POINTER_PASS:
        passes.ttir.add_rewrite_tensor_pointer(pass_manager)


def run_passes(pass_manager: Any, module: Any, name: str) -> None:
    """`pm.run` takes a name for timing since 3.5."""
    try:
        pass_manager.run(module, name)
    except TypeError:
        pass_manager.run(module)
