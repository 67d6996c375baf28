"""`python -m runtime.cpu`: the settings that this environment gives, and how to compile a kernel by hand."""

from __future__ import annotations

import shlex
import sys

from . import knobs, pool, toolchain
from .errors import CpuBackendError


def main() -> int:
    """Print settings and command; 1 with one line on standard error if a setting is wrong."""
    try:
        settings = knobs.compile_knobs()
        rows = {
            "compiler": shlex.join(toolchain.compiler()),
            "instruction set": settings.isa,
            "threads": pool.get_num_threads(),
            "checks": ",".join(knobs.check()) or "none",
            "include path": toolchain.NATIVE,
            "by hand": shlex.join(toolchain.kernel_command("kernel.c", "kernel.so")),
        }
    except CpuBackendError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{name:16} {value}\n" for name, value in rows.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
