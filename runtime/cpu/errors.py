"""Errors of the CPU backend: one class per mistake, message template in the class, stable code."""

from __future__ import annotations


class CpuBackendError(RuntimeError):
    """Base class; `code` is stable, `message` is a template over the keyword arguments."""

    code = "cpu-backend"
    message = "{detail}"

    def __init_subclass__(cls) -> None:
        """Errors of this module are known as `runtime.cpu.OutOfBounds`: that is where users import them from."""
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls.__module__ = __package__

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        first, newline, rest = self.message.format(**fields).partition("\n")
        super().__init__(f"{first} [{self.code}]{newline}{rest}")

    def __deepcopy__(self, memo: dict) -> CpuBackendError:
        return type(self)(**self.fields)

    def __reduce__(self) -> tuple:
        return _rebuild, (type(self), self.fields)


CpuBackendError.__module__ = __package__


def _rebuild(cls: type[CpuBackendError], fields: dict) -> CpuBackendError:
    return cls(**fields)


class BadGrid(CpuBackendError, ValueError):
    """The grid of a launch is not one to three whole numbers in range."""

    code = "cpu-bad-grid"
    message = (
        "kernel {kernel}: grid {grid}: allowed are whole numbers from 0 to {largest} "
        "and at most {most_programs} programs in all"
    )


class TensorElsewhere(CpuBackendError, ValueError):
    """A tensor given to a kernel has no memory on the CPU (a meta tensor, or one of another device)."""

    code = "cpu-tensor-elsewhere"
    message = "kernel {kernel}: argument {argument} is on device {device}, allowed is cpu: give the kernel a CPU tensor"


class BadArgument(CpuBackendError, ValueError):
    """A function of `runtime.cpu` was given a value that it does not take."""

    code = "cpu-bad-argument"
    message = "{function}: {argument}={value} is not allowed: {allowed}"


class UnsupportedOp(CpuBackendError):
    """A kernel uses an operation, or an operation on types, that this backend does not implement."""

    code = "cpu-unsupported-op"
    message = "{location}: kernel {kernel}: {op} on ({types}) is not supported on CPU: {reason}"


class MalformedIr(CpuBackendError):
    """The TTIR text did not have the form the parser knows: a Triton version this backend was not made for."""

    code = "cpu-malformed-ir"
    message = "kernel {kernel}: cannot read TTIR line {line!r}: {reason}"


class LocalMemoryExceeded(CpuBackendError):
    """The tiles one program keeps in memory exceed the limit."""

    code = "cpu-local-memory"
    message = "kernel {kernel}: {bytes} bytes of local tiles per program, at most {limit}: use smaller BLOCK_* sizes"


class BadKnob(CpuBackendError):
    """An environment variable of this backend has a value that is not allowed."""

    code = "cpu-bad-knob"
    message = "{name}={value!r} is not allowed: {allowed}"


class CompilerMissing(CpuBackendError):
    """No C compiler: kernels cannot be built."""

    code = "cpu-no-compiler"
    message = (
        "C compiler {cc!r} not found: running Triton kernels on CPU needs gcc 12 or newer, or clang 19. "
        "Install it or set STEPFORGE_CPU_CC"
    )


class CompilationFailed(CpuBackendError):
    """The C compiler refused generated code: a defect of this backend, or no C compiler that it knows."""

    code = "cpu-compilation-failed"
    message = "{cc} failed on {name}:\n{stderr}"


class DeviceAssertFailed(CpuBackendError):
    """A tl.device_assert did not hold; programs of the launch that had not started did not run."""

    code = "cpu-device-assert"
    message = "{location}: kernel {kernel}: device_assert failed in program {program}: {text}"


class KernelDamaged(CpuBackendError):
    """A compiled object is not what the compiler wrote: truncated, changed, or no object at all."""

    code = "cpu-kernel-damaged"
    message = "compiled object {name} is damaged ({reason}); build the package again, or delete its kernel cache"


class GraphStateError(CpuBackendError):
    """A HostGraph was used out of order (nested capture, replay before capture, second capture)."""

    code = "cpu-graph-state"
    message = "HostGraph: {reason}"


class OutOfBounds(CpuBackendError):
    """Check mode: an access outside of the memory its argument gives access to. It did not happen.

    `fields` of the errors of check mode are described under "Find bugs" in docs/cpu-backend.md."""

    code = "cpu-out-of-bounds"
    message = (
        "{location}: kernel {kernel}: {op} out of bounds: {where}: {offset_text} of {argument}, "
        "allowed {allowed}{detail}{lines}"
    )


class OffsetOverflow(OutOfBounds):
    """Check mode: an access whose i32 offset wrapped. `fields` also: link, link_op, link_source, exact."""

    code = "cpu-offset-overflow"
    message = (
        "{location}: kernel {kernel}: the i32 offset of this {op} overflowed: {where}: the {link_op} at {link} gives "
        "{exact}, which wraps: {offset_text} of {argument}, allowed {allowed}; compute it in tl.int64{lines}"
    )


class UninitialisedRead(CpuBackendError):
    """Check mode: a load of an element that nothing has written since `poison`. `fields`: as of OutOfBounds."""

    code = "cpu-uninitialised-read"
    message = "{location}: kernel {kernel}: {op} of memory nobody wrote: {where}: {offset_text} of {argument}{lines}"


class LaneConflict(CpuBackendError):
    """Race mode: lanes of one store give one element different values. `fields`: as of OutOfBounds; lane: the later."""

    code = "cpu-lane-conflict"
    message = (
        "{location}: kernel {kernel}: {where}: stores another value to {offset_text} of {argument} than an earlier "
        "lane of the same store{lines}"
    )


class DataRace(CpuBackendError):
    """Check mode: two programs of one launch touch one element, at least one writes, and no atomic orders them.

    `fields`: as of OutOfBounds, and those of the other access with `other_` before their names."""

    code = "cpu-data-race"
    message = (
        "{location}: kernel {kernel}: race on {offset_text} of {argument}: {op} by {where}, {other_op}{other_name} by "
        "program {other_program} at {other_location}, and no atomic orders them{lines}"
    )
