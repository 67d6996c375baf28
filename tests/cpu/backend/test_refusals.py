"""What is not supported is refused with a name, types, a kernel and a source location."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from runtime.cpu.emit import elementwise, emitter, kernel, libdevice  # noqa: F401  (kernel registers the statements)
from runtime.cpu.emit.nest import RULES as INLINE_RULES
from runtime.cpu.errors import CompilerMissing, LocalMemoryExceeded, MalformedIr, UnsupportedOp
from runtime.cpu.ttir.parser import parse_module
from runtime.cpu.ttir.verify import LIBDEVICE, RULES, verify


@triton.jit
def inline_assembly(x, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [v], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(x + o, v)


def test_unknown_operation_is_named() -> None:
    with pytest.raises(UnsupportedOp) as caught:
        inline_assembly[(1,)](torch.zeros(16, dtype=torch.int32), B=16)
    message = str(caught.value)
    assert message.splitlines()[0].endswith("[cpu-unsupported-op]")
    assert "tt.elementwise_inline_asm" in message
    assert "tensor<16xi32>" in message
    assert "inline_assembly" in message
    assert "test_refusals.py:" in message


@triton.jit
def eight_bit_float(x, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(x + o).to(tl.float32))


def test_unknown_element_type_is_named() -> None:
    x = torch.zeros(16, dtype=torch.int8).view(torch.float8_e5m2)
    with pytest.raises(Exception, match=r"fp8|f8"):
        eight_bit_float[(1,)](x, torch.empty(16), B=16)


def test_refusals_say_what_to_do_instead() -> None:
    def refusal(operation: str) -> str:
        text = f"""
#loc1 = loc("file.py":3:7)
module {{
  tt.func public @f(%a: f32 loc("a"(#loc))) attributes {{noinline = false}} {{
    {operation} loc(#loc1)
    tt.return loc(#loc1)
  }} loc(#loc)
}} loc(#loc)
"""
        with pytest.raises(UnsupportedOp) as caught:
            verify(parse_module(text)[0])
        return str(caught.value)

    extern = '%0 = tt.extern_elementwise %a {libname = "", pure = true, symbol = "__nv_erfinvf"} : (f32) -> f32'
    assert "device function erfinvf, nearest: " in refusal(extern)
    assert "use tl.dot" in refusal("%0 = tt.dot_scaled %a : f32")
    assert "8-bit floats are not supported" in refusal("%0 = tt.fp_to_fp %a, rounding = rtne : f32 -> f8E5M2")
    message = refusal(
        '%0 = "tt.mystery"(%a) ({\n    ^bb0(%b: f32):\n    tt.mystery.return %b : f32\n    }) : (f32) -> f32'
    )
    assert "file.py:3:7: kernel f: tt.mystery" in message
    assert "runtime/cpu/ttir/verify.py" in message


@triton.jit
def too_large(x, B: tl.constexpr):
    o = tl.arange(0, B)
    a = tl.load(x + o)
    tl.store(x + (o + 1) % B, a)


def test_too_much_local_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "ARENA_LIMIT_BYTES", 1 << 20)
    with pytest.raises(LocalMemoryExceeded, match="BLOCK"):
        too_large[(1,)](torch.zeros(1 << 19), B=1 << 19)


def test_unreadable_text() -> None:
    with pytest.raises(MalformedIr, match=r"no tt\.func"):
        parse_module("module {\n}")
    with pytest.raises(MalformedIr, match="cpu-malformed-ir"):
        parse_module("module {\n  tt.func public @f(%a: i32) {\n    scf.for something odd {\n    }\n  }\n}")


def test_verifier_names_the_location() -> None:
    text = """
#loc1 = loc("file.py":3:7)
module {
  tt.func public @f(%a: i32 loc("a"(#loc))) attributes {noinline = false} {
    %0 = ttg.mystery %a : i32 loc(#loc1)
    tt.return loc(#loc1)
  } loc(#loc)
} loc(#loc)
"""
    with pytest.raises(UnsupportedOp, match=r"file.py:3:7: kernel f: ttg.mystery on \(i32\)"):
        verify(parse_module(text)[0])


def test_every_rule_has_an_emitter_and_every_emitter_a_rule() -> None:
    structural = {"scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.map_elementwise.return"}
    emitted = set(emitter.STATEMENTS) | set(elementwise.TABLE) | set(INLINE_RULES)
    assert set(RULES) - structural == emitted - structural
    assert set(LIBDEVICE) == set(libdevice.FUNCTIONS)


def run(code: str, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=False
    )


def test_missing_compiler_has_a_clear_message() -> None:
    result = run("from runtime.cpu import toolchain; toolchain.compiler()", STEPFORGE_CPU_CC="no-such-compiler")
    assert CompilerMissing.code in result.stderr
    assert "STEPFORGE_CPU_CC" in result.stderr


def test_off_switch_leaves_triton_without_a_driver_as_the_page_says() -> None:
    if torch.cuda.is_available():
        pytest.skip("with a GPU another driver is active")
    last = run("import triton; triton.runtime.driver.active.utils", STEPFORGE_CPU_DISABLE="1").stderr.splitlines()[-1]
    assert last in (Path(__file__).parents[3] / "docs" / "cpu-backend.md").read_text()


def test_off_switch() -> None:
    code = (
        "import triton; from runtime.cpu.compiler import CpuBackend; from runtime.cpu.driver import CpuDriver; "
        "from triton.backends.compiler import GPUTarget; "
        "print(CpuBackend.supports_target(GPUTarget('cpu', 'native', 1)), CpuDriver.is_active())"
    )
    assert run(code).stdout.split() == ["True", "True"] or torch.cuda.is_available()
    assert run(code, STEPFORGE_CPU_DISABLE="1").stdout.split() == ["False", "False"]


def test_what_changes_code_changes_the_cache_key() -> None:
    code = "from runtime.cpu import toolchain; print(toolchain.fingerprint())"
    changes = ({}, {"STEPFORGE_CPU_CFLAGS": "-O1"}, {"STEPFORGE_CPU_ISA": "avx2"}, {"STEPFORGE_CPU_CC": "gcc -O1"})
    keys = {run(code, **env).stdout for env in changes}
    assert len(keys) == 4
    assert "" not in keys
