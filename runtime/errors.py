"""Errors of running a package. Each class is one mistake, with a stable code and its message template."""

from __future__ import annotations

BRIEF = 80
LONGEST = 2000  # characters of a message: what a file or a name says may be long, the answer is not


class RuntimeStateError(Exception):
    """Base of everything that the runtime reports without a traceback: misuse, damage, or not enough room."""

    code = "runtime"
    template = "{detail}"

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(f"{_cut(_printable(self.template.format(**fields)))} [{self.code}]")

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, so that a process may tell another: an exception would be made again of its message alone."""
        return _again, (type(self), self.args, self.__dict__)


def _again(cls: type[RuntimeStateError], args: tuple[object, ...], state: dict[str, object]) -> RuntimeStateError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


def _printable(text: str) -> str:
    """Text on one line, as a terminal or a log may show it: whatever a file or a name says, nothing in it acts."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _cut(text: str) -> str:
    """Text of at most LONGEST characters, cut in the middle."""
    half = LONGEST // 2 - 2
    return text if len(text) <= LONGEST else f"{text[:half]} ... {text[-half:]}"[:LONGEST]


def _brief(value: object) -> str:
    """repr of anything, cut to a line's length; also of integers that have too many digits to print."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}..."


class PackageNotFound(RuntimeStateError):
    """The folder holds no manifest."""

    code = "package-not-found"
    template = "{path} holds no {manifest}: not a package, or its build did not finish"


class PackageDamaged(RuntimeStateError):
    """A file of the package is missing, changed or unreadable."""

    code = "package-damaged"
    template = "{path}: {detail}; build the package again"


class PackageTooNew(RuntimeStateError):
    """The package has a format that this runtime does not know."""

    code = "package-format"
    template = "{path} has package format {found}, this runtime reads up to {known}; update stepforge or rebuild"


class TargetUnusable(RuntimeStateError):
    """This machine cannot run the target."""

    code = "target-unusable"
    template = "{target} cannot run here: {detail}; choose another target, as --target cpu or open_package(path, 'cpu')"


class TargetMissing(RuntimeStateError):
    """The package was not built for the wanted target."""

    code = "package-target"
    template = "{path} has no target {wanted}; it has: {present}"


class WeightsNotFound(RuntimeStateError):
    """There is no weights file."""

    code = "weights-not-found"
    template = "no weights at {path}{hint}"


class WeightsUnreadable(RuntimeStateError):
    """The weights file is not a safetensors file."""

    code = "weights-unreadable"
    template = "{path} is not a readable safetensors file: {detail}"


class WeightsChanged(RuntimeStateError):
    """The weights file has other contents than when it was last read, though its size and times are the same."""

    code = "weights-changed"
    template = "{path} has changed without a new time of change; touch it, or pass layout_cache=False"


class WeightsChanging(RuntimeStateError):
    """The weights file was written to while it was read; what was read of it is not used."""

    code = "weights-changing"
    template = "{path} was written to while it was read; start again once it is complete"


class WeightsMissing(RuntimeStateError):
    """A tensor that the plan reads is not in the weights file."""

    code = "weights-missing"
    template = "{path} lacks {count} tensors of {model}: {names}"


class WeightsForeign(RuntimeStateError):
    """The weights file holds tensors that the plan does not read."""

    code = "weights-foreign"
    template = "{path} holds {count} tensors that {model} does not have: {names}"


class WeightsShape(RuntimeStateError):
    """A tensor has another shape than the plan says."""

    code = "weights-shape"
    template = "{path}: {name} has shape {found}, {model} needs {wanted}"


class WeightsDtype(RuntimeStateError):
    """A tensor has another dtype than the plan says."""

    code = "weights-dtype"
    template = "{path}: {name} is {found}, {model} needs {wanted}"


class DoesNotFit(RuntimeStateError):
    """The buffers need more memory than is available; nothing was allocated."""

    code = "out-of-memory"
    template = "{model} needs {needed} MiB for its buffers, {available} MiB are available ({largest})"


class PromptEmpty(RuntimeStateError):
    """A prompt has no token."""

    code = "prompt-empty"
    template = "the prompt is empty: a request needs at least one token"


class NotTokenIds(RuntimeStateError):
    """Something else came where token ids belong."""

    code = "not-token-ids"
    template = "{field} must be {allowed}; this {kind} is not"


class PromptNotText(RuntimeStateError):
    """A str prompt holds what no UTF-8 text can."""

    code = "prompt-not-text"
    template = "the prompt cannot be encoded as UTF-8 ({detail} at character {position}); pass bytes instead"


class PromptTooLong(RuntimeStateError):
    """A prompt leaves no room for a single new token."""

    code = "prompt-too-long"
    template = "the prompt has {length} tokens, at most {limit} leave room for an answer (max_context {max_context})"


class TokenOutOfRange(RuntimeStateError):
    """A token id is outside the vocabulary."""

    code = "token-range"
    template = "{field}[{index}] = {token} is outside the vocabulary 0..{last}"

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields | {"token": _brief(fields.get("token"))})


class BadOption(RuntimeStateError):
    """An option has a value that is not allowed."""

    code = "bad-option"
    template = "{option} = {value} is not allowed: {allowed}"

    def __init__(self, **fields: object) -> None:
        super().__init__(**fields | {"value": _brief(fields.get("value"))})


class TooManyStopTokens(RuntimeStateError):
    """More stop tokens than the plan reserves room for."""

    code = "stop-tokens"
    template = "{count} stop tokens (end-of-sequence included), at most {limit} fit"


class QueueFull(RuntimeStateError):
    """As many requests wait as the engine allows."""

    code = "queue-full"
    template = "{waiting} requests are waiting, the limit is {limit}: run step() or raise max_queue"


class EngineClosed(RuntimeStateError):
    """The engine was closed."""

    code = "engine-closed"
    template = "this engine is closed: make another one"


class ForeignRequest(RuntimeStateError):
    """A request of another engine was passed."""

    code = "foreign-request"
    template = "request {request} does not belong to this engine: ask its own, request.engine"


class OutOfPages(RuntimeStateError):
    """The page pool is exhausted: more pages are held than the planner provided for."""

    code = "out-of-pages"
    template = "{wanted} pages are wanted, {free} of {total} are free and no checkpoint can be evicted; unpin some"


class PinRefused(RuntimeStateError):
    """A pin would leave the engine's slots without rows or pages."""

    code = "pin-refused"
    template = (
        "the checkpoint at {position} cannot be pinned: {rows} rows and {pages} pages would be left, "
        "the slots need 1 and {needed_pages}; unpin others or build with more checkpoint_slots"
    )


class NotCached(RuntimeStateError):
    """There is no checkpoint of a prompt."""

    code = "not-cached"
    template = "no checkpoint of this prompt can be had: nothing to {what}"


class NotRetained(RuntimeStateError):
    """There is no checkpoint at the position a request should go back to."""

    code = "not-retained"
    template = "request {request} has no checkpoint at {position}; it has: {positions}"


class NotNow(RuntimeStateError):
    """A request is not in a state in which this can be done."""

    code = "not-now"
    template = "request {request} is {progress}: {what} needs {needed}"


class ResumeDiffers(RuntimeStateError):
    """A resumed request drew another token than before: its checkpoint, or the kernels, are damaged."""

    code = "resume-differs"
    template = (
        "request {request}, resumed at {position}, drew token {found} where it had drawn {expected} before: "
        "verify the package"
    )


class StepCorrupt(RuntimeStateError):
    """A step reports what no step can do: the device's buffers, or its kernels, are damaged."""

    code = "step-corrupt"
    template = (
        "slot {slot} says it accepted {count} tokens of a step that verified {rows}; its requests were dropped: "
        "verify the package"
    )


class OutputFailed(RuntimeStateError):
    """The answer cannot be written where standard output goes."""

    code = "output"
    template = "standard output cannot be written: {detail}"


class OutputExists(RuntimeStateError):
    """A file is at the path that a command was to write to; it is unchanged."""

    code = "output-exists"
    template = "{path} is there already: give another --output, or --overwrite to replace it"


class BenchUnavailable(RuntimeStateError):
    """A figure of the bench cannot be measured here."""

    code = "bench-unavailable"
    template = "{what} cannot be measured here: {detail}"


class CheckpointFileError(RuntimeStateError):
    """Base of what keeps one checkpoint file from being used. `fields["path"]` names it."""

    code = "checkpoint-file"
    template = "{path}: {detail}"


class CheckpointFileDamaged(CheckpointFileError):
    """A checkpoint file is cut short, changed, renamed, unreadable, or no checkpoint file at all."""

    code = "checkpoint-damaged"
    template = "{path} is damaged or no checkpoint file: {detail}"


class CheckpointFileForeign(CheckpointFileError):
    """A checkpoint file is of another model, weights, compiler or drafting: its bits mean nothing here."""

    code = "checkpoint-foreign"
    template = "{path} is of another build: {detail}"


class CheckpointFileFormat(CheckpointFileError):
    """A checkpoint file has a format that this runtime does not read."""

    code = "checkpoint-format"
    template = "{path} has checkpoint format {found}, this runtime reads {known}"


class CheckpointArchiveNotFound(RuntimeStateError):
    """There is no archive of checkpoints at the path."""

    code = "checkpoint-archive-not-found"
    template = "no checkpoint archive at {path}"


class CheckpointDirectoryUnusable(RuntimeStateError):
    """A folder cannot hold checkpoints."""

    code = "checkpoint-directory"
    template = "{path} cannot be used for checkpoints: {detail}"


class CheckpointDirectoryBusy(RuntimeStateError):
    """Another process holds the lock of a checkpoint folder for too long."""

    code = "checkpoint-directory-busy"
    template = "{path} was locked by another writer for {seconds} s"


class CheckpointNotWritten(RuntimeStateError):
    """A checkpoint file could not be written; what was there before is unchanged."""

    code = "checkpoint-not-written"
    template = "{path} was not written: {detail}"


class GrammarHasOneState(RuntimeStateError):
    """A request with a grammar was to be forked or rewound."""

    code = "grammar-has-one-state"
    template = "request {request} has a grammar, whose matcher has one state: submit its text anew instead of a {what}"


class GrammarFailed(RuntimeStateError):
    """A matcher raised an exception. Its request ends with reason "error"; others go on."""

    code = "grammar-failed"
    template = "the grammar of request {request} raised {detail}; the request ended, others go on"


class EngineInUse(RuntimeStateError):
    """The engine was called by somebody else than the front that owns it."""

    code = "engine-in-use"
    template = "this engine is run by an asyncio front in a thread of its own: ask that front, or close it first"


class MetricsUnavailable(RuntimeStateError):
    """Metrics cannot be exported: prometheus_client is missing, or the address is taken."""

    code = "metrics-unavailable"
    template = "metrics cannot be exported: {detail}"
