"""The catalogue of mistakes in a spec: one class per mistake, its message in the class, a stable code.

`load_spec` and `parse_spec` raise `InvalidSpec`, which carries every mistake found, in the order of their lines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

Path = tuple[str | int, ...]
MAX_SHOWN = 60  # characters of a value in a message
MAX_LISTED = 50  # mistakes in one message
NO_VALUE = object()


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
        text = ", ".join(show_value(item) for item in value[:8])
        return f"[{text}, ...]" if len(value) > 8 else f"[{text}]"
    return repr(value)


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
        return f"{place} {field.strip()}".rstrip() + f": {self.message} [{self.code}]"


class InvalidSpec(SpecError):
    """A spec with one mistake or more: `errors` holds them."""

    code = "invalid_spec"

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

    code = "unreadable_file"
    template = "cannot be read: {reason}"


class TooLong(SpecError):
    """The text is larger than any sensible spec."""

    code = "too_long"
    template = "a spec has at most {limit} bytes"


class NotUtf8(SpecError):
    """The file is not UTF-8 text."""

    code = "not_utf8"
    template = "a spec is UTF-8 text: {reason}"


class YamlSyntax(SpecError):
    """The text is not YAML."""

    code = "yaml_syntax"
    template = "not valid YAML: {reason}"


class TooDeep(SpecError):
    """Nesting beyond any field of a spec."""

    code = "too_deep"
    template = "nested deeper than {limit} levels"


class TooManyNodes(SpecError):
    """More keys and values than any sensible spec."""

    code = "too_many_nodes"
    template = "more than {limit} keys and values"


class AnchorRefused(SpecError):
    """Anchors and aliases: a spec says everything where it is read."""

    code = "anchor"
    template = "anchors and aliases (& and *) are not allowed: name a layer under `layers` instead"


class TagRefused(SpecError):
    """Explicit YAML tags."""

    code = "tag"
    template = "explicit tags ({tag}) are not allowed"


class SeveralDocuments(SpecError):
    """More than one YAML document."""

    code = "several_documents"
    template = "a spec is one YAML document"


class DuplicateKey(SpecError):
    """A key that its mapping already has."""

    code = "duplicate_key"
    template = "already given in line {first}"


class KeyNotText(SpecError):
    """A key that is a number, a list, null, ..."""

    code = "key_not_text"
    template = "keys are text"


class OddNumber(SpecError):
    """A spelling that YAML readers disagree about."""

    code = "odd_number"
    template = "not a plain decimal number (no 1_000, 010, 0x10, 1:30): write digits, or quote it if it is text"


# Fields


class UnknownKey(SpecError):
    """A key that its mapping does not know."""

    code = "unknown_key"
    template = "unknown key{hint}; allowed: {allowed}"


class MissingField(SpecError):
    """A key without a default that is not there."""

    code = "missing_field"
    template = "missing; needs {allowed}"


class WrongType(SpecError):
    """A value of another type."""

    code = "wrong_type"
    template = "must be {allowed}"


class NotAllowed(SpecError):
    """A value that is none of the allowed ones."""

    code = "not_allowed"
    template = "must be {allowed}{hint}"


class OutOfRange(SpecError):
    """A number beyond its bounds."""

    code = "out_of_range"
    template = "must be {allowed}"


class BadName(SpecError):
    """A name with other characters, or too long."""

    code = "bad_name"
    template = "must be {allowed}"


class WrongLength(SpecError):
    """A list or mapping with too few or too many items."""

    code = "wrong_length"
    template = "must be {allowed}"


class InvalidValue(SpecError):
    """A value that is refused for a reason without a class of its own."""

    code = "invalid_value"
    template = "{reason}"


# Between fields


class UnknownLayer(SpecError):
    """A layer name without a definition."""

    code = "unknown_layer"
    template = "no such layer under `layers`{hint}; defined: {allowed}"


class UnusedLayer(SpecError):
    """A layer definition that nothing refers to."""

    code = "unused_layer"
    template = "neither `pattern` nor `mtp.layer` uses this layer"


class DuplicateName(SpecError):
    """A name twice in a list of distinct names."""

    code = "duplicate_name"
    template = "names must differ"


class NotADivisor(SpecError):
    """A size that must divide another one."""

    code = "not_a_divisor"
    template = "must divide {dividend_name} = {dividend}; possible: {allowed}"


class OddSize(SpecError):
    """A size that must be even."""

    code = "odd_size"
    template = "must be even ({reason}){hint}"


class NotAPowerOfTwo(SpecError):
    """A size that must be a power of two."""

    code = "not_a_power_of_two"
    template = "must be a power of two: one of {allowed}"


class VocabTooSmall(SpecError):
    """Fewer ids than the tokenizer has."""

    code = "vocab_too_small"
    template = "the tokenizer has {needed} ids (256 bytes and its specials)"


class EmptyInterval(SpecError):
    """A range whose lower end is not below its upper end."""

    code = "empty_interval"
    template = "the first value must be below the second"


class MtpMixer(SpecError):
    """An MTP layer of a kind that cannot draft."""

    code = "mtp_mixer"
    template = "names a {kind} layer; the MTP module needs an attention layer{hint}"


class SparseInterval(SpecError):
    """A checkpoint interval shorter than what one step can pass."""

    code = "interval_too_short"
    template = "must be null, 0, or at least engine.max_drafts + 1 = {least}: a step emits one checkpoint per slot"


class TooFewCheckpoints(SpecError):
    """Fewer checkpoints than the slots need at once."""

    code = "too_few_checkpoints"
    template = "must be at least engine.max_slots + 1 = {least}: one per slot for its prompt end, and one being written"


class TooLarge(SpecError):
    """A product of sizes beyond what is supported."""

    code = "too_large"
    template = "{what} = {total}: at most {limit}"
