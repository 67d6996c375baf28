"""The C translation unit of one kernel.

Interface of the shared object:

    void cp_run(const char *args, int64_t begin, int64_t end, uint32_t gx, uint32_t gy, uint32_t gz);

runs programs begin .. end - 1 of the grid, x fastest. `args` holds 8 bytes per argument: pointers and integers as
64-bit integers, floats as f64.
"""

from __future__ import annotations

from ..ttir.ir import Function, Value
from ..ttir.verify import verify
from . import (  # noqa: F401  (they register what they emit)
    atomics,
    control,
    debug,
    dot,
    libdevice,
    memory,
    rearrange,
    reduce,
)
from .ctypes import c_type, narrow
from .emitter import Emitter


def emit_kernel(function: Function) -> str:
    """C source of a kernel. Raises UnsupportedOp, LocalMemoryExceeded."""
    verify(function)
    emitter = Emitter(function)
    for k, arg in enumerate(function.args):
        emitter.names[arg] = f"a{k}"
    for block in function.blocks[1:]:
        for arg in block.args:
            emitter.allocate(arg)
    for k, block in enumerate(function.blocks):
        if k:
            emitter.write(f"L{k}:;")
        emitter.block(block)
    return _translation_unit(function, emitter)


def _translation_unit(function: Function, emitter: Emitter) -> str:
    parameters = [f"{c_type(arg.type.elem)} a{k}" for k, arg in enumerate(function.args)]
    parameters += [f"int pid{d}" for d in range(3)] + [f"int grid{d}" for d in range(3)]
    call = ", ".join([f"a{k}" for k in range(len(function.args))] + ["x", "y", "z", "(int)gx", "(int)gy", "(int)gz"])
    arena = emitter.arena_bytes
    return "\n".join(
        [
            f"/* {function.name} */",
            *(f'#include "{header}"' for header in emitter.headers),
            *([_ARENA.format(bytes=arena)] if arena else []),
            f"static __attribute__((noinline)) void program({', '.join(parameters)}) {{",
            *(["char *const cp_arena = cp_get_arena();"] if arena else []),
            *emitter.lines,
            "}",
            "void cp_run(const char *args, int64_t begin, int64_t end, uint32_t gx, uint32_t gy, uint32_t gz) {",
            *(f"  const {c_type(arg.type.elem)} a{k} = {_unpack(arg, k)};" for k, arg in enumerate(function.args)),
            "  int x = (int)(begin % gx), y = (int)(begin / gx % gy), z = (int)(begin / gx / gy);",
            f"  for (int64_t i = begin; i < end{_UNLESS_FAILED if emitter.assertions else ''}; i++) {{",
            f"    program({call});",
            "    if (++x == (int)gx) { x = 0; if (++y == (int)gy) { y = 0; z++; } }",
            "  }",
            "}",
            *debug.assertion_table(emitter),
            "",
        ]
    )


_UNLESS_FAILED = " && !__atomic_load_n(&cp_failing, __ATOMIC_RELAXED)"
_ARENA = """#include <stdlib.h>
static char *cp_get_arena(void) {{
  static __thread char *arena;
  if (!arena && !(arena = aligned_alloc(64, {bytes}))) abort();
  return arena;
}}"""


def _unpack(arg: Value, k: int) -> str:
    elem, at = arg.type.elem, f"(args + {8 * k})"
    if arg.type.is_pointer:
        return f"*({c_type(elem)} const *){at}"
    if elem == "f64":
        return f"*(const double *){at}"
    if arg.type.is_float:
        return narrow(elem, f"(float)*(const double *){at}")
    return f"({c_type(elem)})*(const int64_t *){at}"
