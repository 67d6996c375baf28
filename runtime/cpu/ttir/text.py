"""Text helpers of the parser: balanced splitting, types, locations."""

from __future__ import annotations

import re

from .ir import Type

_DIMS = re.compile(r"((?:\d+x)+)")
_FILE_LOC = re.compile(r'loc\("([^"]*)":(\d+):(\d+)(?: to [^)]*)?\)')
_LOC_LINE = re.compile(r"^(#loc\d*) = (loc\(.*\))$")
_LOC_REF = re.compile(r"#loc\d*")


def parse_type(text: str) -> Type:
    """`f32`, `!tt.ptr<bf16>` or `tensor<4x8xf32>`; encodings after a comma are dropped."""
    text = text.strip()
    if not text.startswith("tensor<"):
        return Type(text)
    body = text[len("tensor<") : -1]
    dims = _DIMS.match(body)
    if dims is None:
        return Type(split_top(body)[0], ())
    return Type(split_top(body[dims.end() :])[0], tuple(int(d) for d in dims.group(1)[:-1].split("x")))


def parse_types(text: str) -> list[Type]:
    """A comma-separated list, with or without parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(t) for t in split_top(text)] if text.strip() else []


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split at separators outside all brackets."""
    parts, depth, current = [], 0, ""
    for i, char in enumerate(text):
        if char in "<({[":
            depth += 1
        elif char in ")}]" or (char == ">" and text[i - 1 : i] != "-"):
            depth -= 1
        if depth == 0 and char == separator:
            parts.append(current)
            current = ""
        else:
            current += char
    if current.strip():
        parts.append(current)
    return [p.strip() for p in parts]


def strip_locations(line: str) -> tuple[str, str | None]:
    """Remove every ` loc(...)` from a line; return the line and the last location (that of the operation)."""
    last = None
    while (start := line.rfind(" loc(")) >= 0:
        end = _closing(line, start + 4)
        if end is None:
            break
        if last is None:
            last = line[start + 1 : end]
        line = line[:start] + line[end:]
    return line.rstrip(), last


def unescape(text: str) -> str:
    """The characters of an MLIR string literal: `\\22` is a quote, `\\\\` a backslash."""

    def character(escape: re.Match) -> bytes:
        return escape[1] if escape[1] == b"\\" else bytes([int(escape[1], 16)])

    return re.sub(rb"\\(\\|[0-9A-Fa-f]{2})", character, text.encode()).decode(errors="replace")


def _closing(text: str, start: int) -> int | None:
    depth, quoted = 0, False
    for i in range(start, len(text)):
        char = text[i]
        if char == '"':
            quoted = not quoted
        elif not quoted and char == "(":
            depth += 1
        elif not quoted and char == ")":
            depth -= 1
            if depth == 0:
                return i + 1
    return None


class Locations:
    """Resolves `loc(#loc12)` to `file:line:column`, outermost call site last (the user's kernel)."""

    def __init__(self, lines: list[str]) -> None:
        self._table = {m.group(1): m.group(2) for m in map(_LOC_LINE.match, lines) if m}

    def resolve(self, text: str | None) -> str:
        found = list(dict.fromkeys(self._files(text or "", 0)))
        return " <- ".join(found) if found else "unknown location"

    def _files(self, text: str, depth: int) -> list[str]:
        if depth > 40:
            return []
        direct = _FILE_LOC.search(text)
        if direct:
            return ["{}:{}:{}".format(*direct.groups())]
        return [f for ref in _LOC_REF.findall(text) for f in self._files(self._table.get(ref, ""), depth + 1)]
