"""Changes to bytes, tokens and structure. Everything is drawn from one Random, so that a number repeats an input."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

BYTES = (
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\t",
    b"\r",
    b"\x1b[2J",
    b"\xe2\x80\xa8",
    b"\x85",
    b"\x7f",
    b"\n",
)
TOKENS = re.compile(rb"[A-Za-z0-9_.+-]+|\s+|[^A-Za-z0-9_\s]")
WORDS = (
    *(b"&a", b"*a", b"<<: *a", b"<<", b"!!python/name:os.system", b"!!binary", b"!x", b"!"),
    *(b"---\n", b"...\n", b"%YAML 9.9\n"),
    *(b"|", b">", b"|9", b"? ", b"- ", b": ", b"[", b"]", b"{", b"}", b",", b"#", b"'", b'"', b"@", b"`"),
    *(b"null", b"~", b"true", b"yes", b".inf", b"-.inf", b".nan", b"1e999", b"-0", b"0x10", b"1_0", b"010", b"1:30"),
    *(b"9" * 39, b"9" * 50, b"1" + b"0" * 5000, b"-1", b"0", b"1", b"2", b"7", b"256", b"65536"),
    *(b"0.5", b"1e-300", b"NaN"),
    *(b"__class__", b"kind", b"mamba2", b"attention", b"x" * 5000, b'"\\UFFFFFFFF"', b'"\\ud800"', b"'\n'"),
    *(b'"\\x00"', b"{{ 7 }}"),
    *(b"[[[[[[[[[[[[[[", b"{a: {a: {a: {a: 1}}}}", b"\xc3\x28", b"1e5", b"Infinity", b'"a":1,"a":2'),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 8, 255, 256, 257, 1 << 16, 1 << 20, 1 << 31),
    *((1 << 63) - 1, 1 << 64, -(1 << 64)),
    *(10**39, 0.0, -0.0, 0.5, 1e-300, 1e300, float("inf"), float("nan"), "", "x", "1", "null", "mamba", "a\nb", "a\0b"),
    *("x" * 300, "../x", "\x1b[2J", "\u202e", [], [1], [None], [[[[1]]]], {}),
    *({"kind": "mamba2"}, {"": ""}, {"a": {"a": {}}}),
)  # fmt: skip
Path = tuple[str | int, ...]


def mutated(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """`data` after one to six changes of bytes or tokens, or spliced with one of `others`."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = random.choice(BYTE_CHANGES)(data, others, random)
    return data


def _span(data: bytes, random: Random) -> tuple[int, int]:
    begin = random.randrange(len(data) + 1)
    return begin, min(len(data), begin + random.choice((1, 1, 2, 4, 16, 64, 256)))


def flip(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Flip a bit."""
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def insert(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Insert an odd byte or word."""
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice((*BYTES, *WORDS)) + data[at:]


def drop(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Drop a span."""
    begin, end = _span(data, random)
    return data[:begin] + data[end:]


def repeat(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Repeat a span, a few times or many."""
    begin, end = _span(data, random)
    return data[:end] + data[begin:end] * random.choice((1, 2, 8, 400)) + data[end:]


def truncate(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Cut the end off."""
    return data[: random.randrange(len(data) + 1)]


def splice(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """The beginning of this and the end of another."""
    other = random.choice(others)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def swap_tokens(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Exchange two tokens."""
    tokens = TOKENS.findall(data)
    if len(tokens) < 2:
        return data
    i, j = random.randrange(len(tokens)), random.randrange(len(tokens))
    tokens[i], tokens[j] = tokens[j], tokens[i]
    return b"".join(tokens)


def replace_token(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Put an odd word, or a token of another, in the place of a token."""
    tokens = TOKENS.findall(data)
    if not tokens:
        return data
    theirs = TOKENS.findall(random.choice(others)) or [b""]
    tokens[random.randrange(len(tokens))] = random.choice((random.choice(WORDS), random.choice(theirs)))
    return b"".join(tokens)


def swap_lines(data: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Exchange, indent, double or drop lines."""
    lines = data.split(b"\n")
    i, j = random.randrange(len(lines)), random.randrange(len(lines))
    change = random.randrange(4)
    if change == 0:
        lines[i], lines[j] = lines[j], lines[i]
    elif change == 1:
        lines[i] = random.choice((b" ", b"  ", b"\t", b"- ", b"? ")) + lines[i]
    elif change == 2:
        lines.insert(j, lines[i])
    else:
        del lines[i]
    return b"\n".join(lines)


BYTE_CHANGES: tuple[Callable[[bytes, Sequence[bytes], Random], bytes], ...] = (
    *(flip, insert, drop, repeat, truncate, splice),
    *(swap_tokens, replace_token, replace_token, replace_token, swap_lines, swap_lines),
)


def restructured(tree: Any, random: Random) -> Any:
    """A copy of parsed data with one to three values, keys or subtrees changed."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        paths = [path for path in _paths(tree) if path]
        if not paths:
            return random.choice(VALUES)
        _change(tree, random.choice(paths), random.choice(paths), random)
    return tree


def _paths(tree: Any, path: Path = ()) -> list[Path]:
    found = [path]
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        found += _paths(child, (*path, key))
    return found


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _change(tree: Any, path: Path, other: Path, random: Random) -> None:
    """Change what is at `path`: another value, a number beside it, a subtree from elsewhere, another key, nothing."""
    parent, key = _at(tree, path[:-1]), path[-1]
    old = parent[key]
    change = random.randrange(6)
    if change == 0:
        parent[key] = copy.deepcopy(random.choice(VALUES))
    elif change == 1:
        number = type(old) in (int, float)
        parent[key] = random.choice((old + 1, old - 1, -old, old * 2, old // 2)) if number else random.choice(VALUES)
    elif change == 2:
        parent[key] = copy.deepcopy(_at(tree, other))
    elif change == 3:
        del parent[key]
    elif change == 4 and isinstance(parent, dict):
        parent[random.choice(("", "x", "kind", "__class__", "a\nb", str(other[-1])))] = parent.pop(key)
    elif change == 5 and isinstance(parent, list):
        parent[key:key] = [copy.deepcopy(old)] * random.choice((1, 2, 300))
    else:
        parent[key] = [old]
