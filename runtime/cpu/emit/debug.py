"""tl.device_print and tl.device_assert."""

from __future__ import annotations

from ..ttir.ir import BITS, Op, Value
from .ctypes import c_unsigned, widen
from .emitter import Emitter, emits
from .nest import Index, Nest

_PROGRAM = "pid0, pid1, pid2"


@emits("tt.print")
def print_(e: Emitter, op: Op) -> None:
    """One line per element, as on a GPU: `pid (0, 0, 0) idx (3) prefix: value`."""
    e.include("debug.h")
    prefix = c_string(op.attrs["text"])
    if not op.operands:
        e.write(f'printf("pid (%d, %d, %d) idx ()%s\\n", {_PROGRAM}, {prefix});')
    for k, operand in enumerate(op.operands):
        name = f"(operand {k}) " if len(op.operands) > 1 else ""
        signed = op.attrs["isSigned"][k] == 1
        _print_operand(e, operand, prefix, name, _format(operand, op.attrs["hex"] == "true", signed))
    e.write("fflush(stdout);")


def _print_operand(e: Emitter, operand: Value, prefix: str, name: str, form: tuple[str, str]) -> None:
    def build(nest: Nest, index: Index) -> None:
        places = ", ".join("%d" for _ in index)
        value = form[1].format(nest.at(operand, index).code)
        values = ", ".join([_PROGRAM, *(at.code for at in index), prefix, value])
        nest.levels[-1].append(f'printf("pid (%d, %d, %d) idx ({places})%s{name}{form[0]}\\n", {values});')

    e.loop_nest(operand.type.dims, build)


def _format(operand: Value, hexadecimal: bool, signed: bool) -> tuple[str, str]:
    """printf conversion of an operand, and the C expression to pass, as a template."""
    type_ = operand.type
    if type_.is_pointer:
        return "%p", "(void *)({})"
    if type_.is_float:
        return "%.16g" if type_.elem == "f64" else "%.7g", widen(type_.elem, "{}")
    if hexadecimal:
        return f"0x%0{max(1, BITS[type_.elem] // 4)}llx", f"(unsigned long long)({c_unsigned(type_.elem)})({{}})"
    if signed and type_.elem != "i1":
        return "%lld", "(long long)({})"
    return "%llu", f"(unsigned long long)({c_unsigned(type_.elem)})({{}})"


@emits("tt.assert")
def assert_(e: Emitter, op: Op) -> None:
    """The first failure of a launch is kept for the launcher, which raises it; the program ends here."""
    e.include("debug.h")
    (condition,) = op.operands
    e.assertions.append((op.location, op.attrs["text"]))
    failed = e.fresh("failed")

    def build(nest: Nest, index: Index) -> None:
        nest.levels[-1].append(f"{failed} |= !({nest.at(condition, index).code});")

    e.write(f"bool {failed} = 0;")
    e.loop_nest(condition.type.dims, build)
    e.write(f"if ({failed}) {{ cp_fail({len(e.assertions)}, {_PROGRAM}); return; }}")


def assertion_table(e: Emitter) -> list[str]:
    """The function by which the launcher learns of a failed assertion; nothing when the kernel has none."""
    if not e.assertions:
        return []
    rows = ", ".join(f"{{{c_string(location)}, {c_string(text)}}}" for location, text in e.assertions)
    return [
        f"static const char *const cp_assertions[][2] = {{{rows}}};",
        "void cp_take_failure(cp_failure *out) {",
        "  cp_take(out);",
        "  if (!out->site) return;",
        "  out->location = cp_assertions[out->site - 1][0];",
        "  out->text = cp_assertions[out->site - 1][1];",
        "}",
    ]


def c_string(text: str) -> str:
    """A C string literal."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'
