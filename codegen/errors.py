"""Errors of lowering and building. Each class is one mistake, with a stable code and its message template."""

from __future__ import annotations

from dsl.errors import coded, cut, printable

LONGEST = 4000  # characters of a message: a compiler's own words may be among it


class CodegenError(Exception):
    """Base of all errors that `python -m codegen` reports without a traceback."""

    code = "codegen"
    template = "{detail}"

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(coded(cut(printable(self.template.format(**fields), allowed="\n"), LONGEST), self.code))

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, so that a process may tell another: an exception would be made again of its message alone."""
        return _again, (type(self), self.args, self.__dict__)


def _again(cls: type[CodegenError], args: tuple[object, ...], state: dict[str, object]) -> CodegenError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class UnsupportedOnTarget(CodegenError):
    """A valid spec asks for a size that the target's instructions cannot express."""

    code = "lowering-target"
    template = "{field} = {value} is not supported on target {target}: {allowed}"


class UnknownTarget(CodegenError):
    """The `--target` option names no target."""

    code = "lowering-unknown-target"
    template = "target {value!r} is unknown; allowed: {allowed}"


class TooLarge(CodegenError):
    """An offset of the planned buffers does not fit the kernels' index arithmetic."""

    code = "lowering-too-large"
    template = "buffer {buffer} has {elements} elements, at most {limit} can be indexed; lower {fields_to_lower}"


class PlanInvalid(CodegenError):
    """A plan breaks one of its own rules: an error of Stepforge, never of the spec."""

    code = "plan-invalid"
    template = "{node}: {detail}"


class BuildFailed(CodegenError):
    """A kernel did not compile for a target."""

    code = "build-failed"
    template = "kernel {kernel} did not compile for {target}: {detail}"


class ToolchainUnusable(CodegenError):
    """What compiles kernels for a target is missing or wrongly set."""

    code = "build-toolchain"
    template = "kernels for {target} cannot be compiled: {detail}"


class OutputRefused(CodegenError):
    """The output directory holds something that is not a package of ours."""

    code = "build-output"
    template = "refusing to write into {path}: {detail}"


class OutputNotWritten(CodegenError):
    """The system did not let a file or folder of the package be written; an unfinished package is marked as one."""

    code = "build-not-written"
    template = "{path} was not written: {detail}; mend that and build again"


class BadSpecName(CodegenError):
    """The spec's file name cannot be written into a comment of the generated files."""

    code = "build-spec-name"
    template = "the spec's file name {name!r} holds characters that generated files cannot quote; rename it"


class UnknownCode(CodegenError):
    """`errors` is asked for a code that no error has."""

    code = "unknown-code"
    template = "no error has the code {value!r}{hint}; python -m codegen errors lists all"


class BadShape(CodegenError):
    """`explain` is asked for a step that the package could not run."""

    code = "explain-shape"
    template = "{option} = {value} is not possible for this spec: {allowed}"


class TunedRefused(CodegenError):
    """A tuned value is none that its kernel allows on this target, or its kernel is not part of the plan."""

    code = "tuned-value"
    template = "tuned value {name} = {value} of kernel {kernel} on {target}: allowed is {allowed}"


class TunedUnusable(CodegenError):
    """The file of tuned values cannot be read, or the option that asks for it is contradicted by another."""

    code = "tuned-file"
    template = "tuned values of {path} cannot be used: {detail}"


class UntunedWrong(CodegenError):
    """A kernel as it is built without tuning does not compute what it means: nothing can be tuned against it."""

    code = "tune-untuned-wrong"
    template = (
        "kernel {kernel} cannot be tuned, being wrong as it is built untuned: {detail}; look at a package of this "
        "spec with `python -m codegen verify`, and tune others with --kernel"
    )


class StudyUnusable(CodegenError):
    """The folder or database of studies that autotune shares with others cannot be opened or written."""

    code = "tune-storage"
    template = (
        "studies in {place} cannot be used: {detail}; mend that, or give another --storage: a folder that can be "
        "written, or a database URL such as sqlite:///studies.sqlite"
    )


class StudyDamaged(CodegenError):
    """What is known of a kernel's candidates is in a journal that no run of autotune can have written so."""

    code = "tune-study-damaged"
    template = "the study {path} is damaged: {detail}; it may be deleted, and the candidates are tried again"


class TuneNotWritten(CodegenError):
    """A file of autotune, such as a result, could not be written; what was there before is unchanged."""

    code = "tune-not-written"
    template = "{path} was not written: {detail}; mend that, or give another --folder"


class TuneInterrupted(CodegenError):
    """The machine, and not the candidate, made a trial fail: no room on the disk, no memory, no compiler."""

    code = "tune-interrupted"
    template = "a trial of {kernel} was cut short: {detail}; mend that, and the same command goes on with this trial"


class NothingTuned(CodegenError):
    """No result is there that a command of autotune asks for."""

    code = "tune-no-results"
    template = (
        "{command}: no results{wanted} in {place}; `python -m autotune run SPEC` makes some, "
        "`python -m autotune show` lists what is there"
    )


class BadTuning(CodegenError):
    """An option of autotune has a value that means nothing, or names what is not there."""

    code = "tune-option"
    template = "{option} = {value}: {allowed}"


class TunerMissing(CodegenError):
    """The search library of autotune is not installed."""

    code = "tune-missing"
    template = "autotune needs optuna, which is not installed: pip install -c constraints.txt -e '.[tune]'"


class NoMachineCode(CodegenError):
    """`inspect` is asked for a target whose code it does not read."""

    code = "inspect-target"
    template = "kernels for {target} have no GPU code to inspect; allowed: {allowed}"
