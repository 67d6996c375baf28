"""The C translation unit of one kernel.

Interface of the shared object:

    void cp_run(const char *args, int64_t begin, int64_t end, uint32_t gx, uint32_t gy, uint32_t gz);

runs programs begin .. end - 1 of the grid, x fastest. `args` holds 8 bytes per argument: pointers and integers as
64-bit integers, floats as f64.
"""

from __future__ import annotations

from ..analysis.stream import Ahead
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


def emit_kernel(function: Function, check: str = "", prefetch_bytes: int = 0) -> tuple[str, dict]:
    """C source of a kernel, and what its checks are called. Raises UnsupportedOp, LocalMemoryExceeded.

    prefetch_bytes: how far every load that streams fetches ahead; 0: what the analysis finds best for each."""
    verify(function)
    emitter = Emitter(function, check)
    if prefetch_bytes:
        emitter.placement.tiles = {}
        emitter.placement.prefetch = dict.fromkeys(emitter.placement.prefetch, Ahead(prefetch_bytes))
    for k, arg in enumerate(function.args):
        emitter.names[arg] = f"a{k}"
    for block in function.blocks[1:]:
        for arg in block.args:
            emitter.allocate(arg)
    for k, block in enumerate(function.blocks):
        if k:
            emitter.write(f"L{k}:;")
        emitter.block(block)
    return _translation_unit(function, emitter, prefetch_bytes), emitter.checks.describe() if emitter.checks else {}


def _translation_unit(function: Function, emitter: Emitter, prefetch_bytes: int) -> str:
    parameters = [f"{c_type(arg.type.elem)} a{k} /* {arg.name[1:]} */" for k, arg in enumerate(function.args)]
    parameters += [f"int pid{d}" for d in range(3)] + [f"int grid{d}" for d in range(3)]
    call = ", ".join([f"a{k}" for k in range(len(function.args))] + ["x", "y", "z", "(int)gx", "(int)gy", "(int)gz"])
    checks = emitter.checks
    if checks:
        parameters, call = [*parameters, "cp_check *const check"], f"{call}, check"
    arena = emitter.arena_bytes
    return "\n".join(
        [
            f"/* {function.name} */",
            *(["#define CP_RACES"] if checks and checks.races else []),
            *([f"#define CP_PREFETCH_BYTES {prefetch_bytes}"] if prefetch_bytes else []),
            *(f'#include "{header}"' for header in [*emitter.headers, *(["check.h"] if checks else [])]),
            *(checks.tables() if checks else []),
            *([_ARENA.format(bytes=arena)] if arena else []),
            f"static __attribute__((noinline)) void program({', '.join(parameters)}) {{",
            *(["char *const cp_arena = cp_get_arena();"] if arena else []),
            *([_ZERO] if any("cp_zero" in line for line in emitter.lines) else []),
            *emitter.lines,
            "}",
            "void cp_run(const char *args, int64_t begin, int64_t end, uint32_t gx, uint32_t gy, uint32_t gz) {",
            *(f"  const {c_type(arg.type.elem)} a{k} = {_unpack(arg, k)};" for k, arg in enumerate(function.args)),
            "  int x = (int)(begin % gx), y = (int)(begin / gx % gy), z = (int)(begin / gx / gy);",
            *([_CHECKED.format(argument=8 * len(function.args))] if checks else []),
            f"  for (int64_t i = begin; i < end{_UNLESS_FAILED if emitter.assertions else ''}; i++) {{",
            *(["    check->program = (uint64_t)i; cp_race_program(check);"] if checks else []),
            f"    program({call});",
            "    if (++x == (int)gx) { x = 0; if (++y == (int)gy) { y = 0; z++; } }",
            "  }",
            *(["  cp_race_end(check);"] if checks else []),
            "}",
            *debug.assertion_table(emitter),
            "",
        ]
    )


#: A zero of which the compiler does not know that it is one.
_ZERO = 'uint64_t cp_zero = 0; __asm__ volatile("" : "+r"(cp_zero));'
_UNLESS_FAILED = " && !__atomic_load_n(&cp_failing, __ATOMIC_RELAXED)"
_ARENA = """#include <stdlib.h>
static char *cp_get_arena(void) {{
  static __thread char *arena;
  if (!arena && !(arena = aligned_alloc(64, {bytes}))) abort();
  return arena;
}}"""


#: The launch's cp_check follows the kernel's own arguments; a failed check comes back here.
_CHECKED = """  cp_check *const check = *(cp_check *const *)(args + {argument});
  cp_race_begin(check);
  if (_setjmp(cp_escape)) {{ cp_race_end(check); return; }}"""


def _unpack(arg: Value, k: int) -> str:
    elem, at = arg.type.elem, f"(args + {8 * k})"
    if arg.type.is_pointer:
        return f"*({c_type(elem)} const *){at}"
    if elem == "f64":
        return f"*(const double *){at}"
    if arg.type.is_float:
        return narrow(elem, f"(float)*(const double *){at}")
    return f"({c_type(elem)})*(const int64_t *){at}"
