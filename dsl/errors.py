"""The catalogue of mistakes in a spec: one class per mistake, its message in the class, a stable code.

`load_spec` and `parse_spec` raise `InvalidSpec`, which carries every mistake found, in the order of their lines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

Path = tuple[str | int, ...]
MAX_SHOWN = 60  # characters of a value in a message
MAX_LIST_SHOWN = 200  # characters of a list of values
MAX_LINE = 2000  # characters of one mistake: what a file says may be long, the answer is not
MAX_LISTED = 50  # mistakes in one message
NO_VALUE = object()


def printable(text: str, allowed: str = "") -> str:
    """Text as a terminal or a log may show it: control characters and lone surrogates escaped, but those `allowed`."""
    return "".join(c if c.isprintable() or c in allowed else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, longest: int) -> str:
    """Text of at most `longest` characters, cut in the middle."""
    half = longest // 2 - 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"[:longest]


def coded(message: str, code: str) -> str:
    """A message with its code at the end of the first line, as every error of Stepforge shows it."""
    first, newline, rest = message.partition("\n")
    return f"{first} [{code}]{newline}{rest}"


def show_value(value: Any) -> str:
    """A value as the YAML spells it, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{...}"
    if isinstance(value, str) and len(value) > MAX_SHOWN:
        return repr(value[:MAX_SHOWN]) + "..."
    if isinstance(value, list | tuple):
        return show_list(value)
    return repr(value)


def show_list(items: Sequence[Any]) -> str:
    """The first items of a list, as far as they fit: however lists are nested, the text stays short."""
    shown, room = [], MAX_LIST_SHOWN
    for item in items[:8]:
        text = show_value(item)
        room -= len(text)
        if room < 0:
            break
        shown.append(text)
    return f"[{', '.join([*shown, '...'] if len(shown) < len(items) else shown)}]"


def show_path(path: Path) -> str:
    """layers.mamba.mixer.num_heads, pattern[3]."""
    text = "".join(f"[{item}]" if isinstance(item, int) else f".{item[:MAX_SHOWN]}" for item in path)
    return text.removeprefix(".").encode("unicode_escape").decode()


def nearest_name(name: object, names: Iterable[str]) -> str:
    """A hint at the closest of some names, or an empty text."""
    found = difflib.get_close_matches(name, list(names), n=1) if isinstance(name, str) and len(name) <= 64 else []
    return f"; did you mean {found[0]!r}?" if found else ""


def nearest_multiples(value: int, of: int) -> str:
    """A hint at the multiples of `of` around a value."""
    below = value - value % of
    return f"; nearest {below + of}" if below == 0 else f"; nearest {below} or {below + of}"


class SpecError(Exception):
    """A mistake in a spec. str() is `file:line path = value: what is allowed [code]`."""

    code: ClassVar[str] = "spec"
    template: ClassVar[str] = "not a valid spec"

    def __init__(self, path: Path = (), value: Any = NO_VALUE, **details: object) -> None:
        """`details` fill the template; without a value the message shows only the path."""
        super().__init__(path, value, details)
        self.path = path
        self.value = value
        self.details = details
        self.source: str | None = None
        self.line: int | None = None

    def located(self, source: str, line: int | None) -> Self:
        """This error with the place in a file where it was found (first line: 1)."""
        self.source, self.line = source, line
        return self

    @property
    def message(self) -> str:
        """What is wrong and what is allowed, without the place."""
        return self.template.format(**self.details)

    def __str__(self) -> str:
        """The one line of this mistake."""
        place = self.source or "spec"
        if self.line is not None:
            place += f":{self.line}"
        field = show_path(self.path)
        if self.value is not NO_VALUE:
            field += f" = {show_value(self.value)}"
        text = printable(f"{place} {field.strip()}".rstrip() + f": {self.message}")
        return coded(cut(text, MAX_LINE), self.code)


class InvalidSpec(SpecError):
    """A spec with one mistake or more: `errors` holds them."""

    code = "spec-invalid"

    def __init__(self, errors: Sequence[SpecError]) -> None:
        """All mistakes of one text, located."""
        super().__init__()
        self.errors = tuple(sorted(errors, key=lambda error: error.line or 0))

    def __str__(self) -> str:
        """One line per mistake."""
        lines = [str(error) for error in self.errors[:MAX_LISTED]]
        hidden = len(self.errors) - len(lines)
        return "\n".join([*lines, f"... and {hidden} more"] if hidden else lines)


# Files and text


class UnreadableFile(SpecError):
    """The file cannot be opened."""

    code = "spec-unreadable-file"
    template = "cannot be read: {reason}"


class SpecExists(SpecError):
    """A new spec would replace a file."""

    code = "spec-exists"
    template = "is there already, and stays as it is; choose another path"


class SpecNotWritten(SpecError):
    """A new spec cannot be written."""

    code = "spec-not-written"
    template = "cannot be written: {reason}"


class OutputFailed(SpecError):
    """What a command says cannot be written where standard output goes."""

    code = "spec-output"
    template = "cannot be written: {reason}"


class TooLong(SpecError):
    """The text is larger than any sensible spec."""

    code = "spec-too-long"
    template = "a spec has at most {limit} bytes"


class NotUtf8(SpecError):
    """The file is not UTF-8 text."""

    code = "spec-not-utf8"
    template = "a spec is UTF-8 text: {reason}"


class YamlSyntax(SpecError):
    """The text is not YAML."""

    code = "spec-yaml-syntax"
    template = "not valid YAML: {reason}"


class TooDeep(SpecError):
    """Nesting beyond any field of a spec."""

    code = "spec-too-deep"
    template = "nested deeper than {limit} levels"


class TooManyNodes(SpecError):
    """More keys and values than any sensible spec."""

    code = "spec-too-many-nodes"
    template = "more than {limit} keys and values"


class AnchorRefused(SpecError):
    """Anchors and aliases: a spec says everything where it is read."""

    code = "spec-anchor"
    template = "anchors and aliases (& and *) are not allowed: name a layer under `layers` instead"


class TagRefused(SpecError):
    """Explicit YAML tags."""

    code = "spec-tag"
    template = "explicit tags ({tag}) are not allowed"


class SeveralDocuments(SpecError):
    """More than one YAML document."""

    code = "spec-several-documents"
    template = "a spec is one YAML document"


class DuplicateKey(SpecError):
    """A key that its mapping already has."""

    code = "spec-duplicate-key"
    template = "already given in line {first}"


class KeyNotText(SpecError):
    """A key that is a number, a list, null, ..."""

    code = "spec-key-not-text"
    template = "keys are text"


class OddNumber(SpecError):
    """A spelling that YAML readers disagree about."""

    code = "spec-odd-number"
    template = "not a plain decimal number (no 1_000, 010, 0x10, 1:30): write digits, or quote it if it is text"


# Fields


class UnknownKey(SpecError):
    """A key that its mapping does not know."""

    code = "spec-unknown-key"
    template = "unknown key{hint}; allowed: {allowed}"


class MissingField(SpecError):
    """A key without a default that is not there."""

    code = "spec-missing-field"
    template = "missing; needs {allowed}"


class WrongType(SpecError):
    """A value of another type."""

    code = "spec-wrong-type"
    template = "must be {allowed}"


class NotAllowed(SpecError):
    """A value that is none of the allowed ones."""

    code = "spec-not-allowed"
    template = "must be {allowed}{hint}"


class OutOfRange(SpecError):
    """A number beyond its bounds."""

    code = "spec-out-of-range"
    template = "must be {allowed}"


class BadName(SpecError):
    """A name with other characters, or too long."""

    code = "spec-bad-name"
    template = "must be {allowed}"


class WrongLength(SpecError):
    """A list or mapping with too few or too many items."""

    code = "spec-wrong-length"
    template = "must be {allowed}"


class InvalidValue(SpecError):
    """A value that is refused for a reason without a class of its own."""

    code = "spec-invalid-value"
    template = "{reason}"


# Between fields


class UnknownLayer(SpecError):
    """A layer name without a definition."""

    code = "spec-unknown-layer"
    template = "no such layer under `layers`{hint}; defined: {allowed}"


class UnusedLayer(SpecError):
    """A layer definition that nothing refers to."""

    code = "spec-unused-layer"
    template = "neither `pattern` nor `mtp.layer` uses this layer"


class DuplicateName(SpecError):
    """A name twice in a list of distinct names."""

    code = "spec-duplicate-name"
    template = "names must differ"


class NotADivisor(SpecError):
    """A size that must divide another one."""

    code = "spec-not-a-divisor"
    template = "must divide {dividend_name} = {dividend}; possible: {allowed}"


class OddSize(SpecError):
    """A size that must be even."""

    code = "spec-odd-size"
    template = "must be even ({reason}){hint}"


class NotAPowerOfTwo(SpecError):
    """A size that must be a power of two."""

    code = "spec-not-a-power-of-two"
    template = "must be a power of two: one of {allowed}"


class VocabTooSmall(SpecError):
    """Fewer ids than the tokenizer has."""

    code = "spec-vocab-too-small"
    template = "the tokenizer has {needed} ids (256 bytes and its specials)"


class EmptyInterval(SpecError):
    """A range whose lower end is not below its upper end."""

    code = "spec-empty-interval"
    template = "the first value must be below the second"


class MtpMixer(SpecError):
    """An MTP layer of a kind that cannot draft."""

    code = "spec-mtp-mixer"
    template = "names a {kind} layer; the MTP module needs an attention layer{hint}"


class SparseInterval(SpecError):
    """A checkpoint interval shorter than what one step can pass."""

    code = "spec-interval-too-short"
    template = "must be null, 0, or at least engine.max_drafts + 1 = {least}: a step emits one checkpoint per slot"


class TooFewCheckpoints(SpecError):
    """Fewer checkpoints than the slots need at once."""

    code = "spec-too-few-checkpoints"
    template = "must be at least engine.max_slots + 1 = {least}: one per slot for its prompt end, and one being written"


class TooLarge(SpecError):
    """A product of sizes beyond what is supported."""

    code = "spec-too-large"
    template = "{what} = {total}: at most {limit}"
