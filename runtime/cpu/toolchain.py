"""The C compiler: flags, fingerprint, building shared objects. Safe to use from several processes at once."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import knobs
from .errors import CompilationFailed, CompilerMissing

PACKAGE = Path(__file__).parent
NATIVE = PACKAGE / "native"

#: No contraction: a*b + c has the bits of a rounded product, whatever code surrounds it. Loops stay as emitted
#: (-fno-loop-unroll-and-jam), so reduction accumulators stay in registers.
#:
#: gcc 12 may address an array on the stack by its distance from a tensor (ivopts), and then drops what was written to
#: the array, which it takes for never read (RTL dse). It keeps the two apart as long as it sees which object an address
#: comes from. Address arithmetic under a condition would become arithmetic of integers, which hides that
#: (if-conversion), unless pointers may wrap: -fwrapv-pointer.
KERNEL_FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-shared", "-w", "-mprefer-vector-width=512", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fno-strict-aliasing", "-fno-loop-unroll-and-jam", "-fno-tree-loop-distribute-patterns",
    "-fwrapv-pointer",
)  # fmt: skip
#: For kernels that compute addresses as integers themselves. Not for all: row-major GEMV takes 6 to 8 % longer.
INTEGER_ADDRESS_FLAGS = ("-fno-ivopts",)
#: Unknown to clang.
GCC_FLAGS = (
    "-fno-loop-unroll-and-jam", "-fno-tree-loop-distribute-patterns", "-fwrapv-pointer", *INTEGER_ADDRESS_FLAGS,
)  # fmt: skip
#: Ends every shared object made here, before the sha256 of all that precedes it. Loaders ignore what follows an ELF.
SEAL = b"cp-seal1"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size
LIBRARY_FLAGS = ("-O2", "-D_GNU_SOURCE", "-std=gnu11", "-fPIC", "-shared", "-pthread")

_ISA_FLAGS = {
    "native": ["-march=native"],
    "avx512": ["-march=native", "-mno-avx512bf16"],
    "avx2": ["-march=x86-64-v3", "-mtune=native"],
    "baseline": [],
}


@functools.lru_cache
def compiler() -> tuple[str, ...]:
    """Path of the C compiler, and arguments it always gets. Raises CompilerMissing."""
    cc, *arguments = knobs.compile_knobs().cc
    found = shutil.which(cc)
    if found is None:
        raise CompilerMissing(cc=cc)
    return found, *arguments


@functools.lru_cache
def _is_clang(command: tuple[str, ...]) -> bool:
    return b"clang" in subprocess.run([*command, "--version"], capture_output=True, check=False).stdout


def kernel_flags(integer_addresses: bool = False) -> list[str]:
    """Flags for a generated kernel; `integer_addresses`: it computes addresses as integers."""
    settings = knobs.compile_knobs()
    flags = [f for f in KERNEL_FLAGS if settings.isa != "baseline" or not f.startswith("-mprefer")]
    flags += INTEGER_ADDRESS_FLAGS if integer_addresses else ()
    if _is_clang(compiler()):
        flags = [f for f in flags if f not in GCC_FLAGS]
    return [*flags, *_ISA_FLAGS[settings.isa], *settings.extra_cflags]


@functools.lru_cache
def fingerprint() -> str:
    """Hash of everything that changes machine code: this backend's source, flags, compiler and its target."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".h", ".c"):
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    digest.update(" ".join([*compiler()[1:], *kernel_flags()]).encode())
    target = ["-dM", "-E", "-x", "c", "/dev/null"] if _is_clang(compiler()) else ["-Q", "--help=target"]
    for arguments in (["--version"], [*_ISA_FLAGS[knobs.compile_knobs().isa], *target]):
        result = subprocess.run([*compiler(), *arguments], capture_output=True, check=False)
        digest.update(result.stdout)
    return digest.hexdigest()


def sealed(content: bytes) -> bytes:
    """A shared object with its seal, so that damage is seen before it is loaded."""
    return content + SEAL + hashlib.sha256(content).digest()


def is_intact(content: bytes) -> bool:
    """Whether a compiled object is complete and unchanged since it was built here."""
    body, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    return bool(body) and seal == SEAL + hashlib.sha256(body).digest()


def build_kernel(source: str, name: str, integer_addresses: bool = False) -> bytes:
    """Sealed shared object of a generated kernel; `integer_addresses`: it computes addresses as integers."""
    return _build(source, name, [*kernel_flags(integer_addresses), "-I", str(NATIVE)], ["-lm"])


def kernel_command(source: str, target: str) -> list[str]:
    """What compiles a kernel's C source by hand, with the flags of this environment."""
    return [*compiler(), *kernel_flags(), "-I", str(NATIVE), "-o", target, source, "-lm"]


def build_library() -> bytes:
    """Sealed shared object of the thread pool and of what Triton calls for a launch."""
    return _build('#include "pool.c"\n#include "launch.c"\n', "pool", [*LIBRARY_FLAGS, "-I", str(NATIVE)], [])


def _build(source: str, name: str, flags: list[str], libraries: list[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="stepforge-cpu-") as folder:
        c_file, object_file = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
        c_file.write_text(source)
        command = [*compiler(), *flags, "-o", str(object_file), str(c_file), *libraries]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            stderr = result.stderr[:4000] or f"it printed nothing; its exit status is {result.returncode}"
            raise CompilationFailed(cc=" ".join(compiler()), name=name, stderr=stderr)
        return sealed(object_file.read_bytes())
