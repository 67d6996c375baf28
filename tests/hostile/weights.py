"""Hostile safetensors files: how a good one is changed, and the code of the refusal."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

Change = Callable[[bytes], bytes]
Header = dict[str, Any]
FIRST = "embed.weight"


def split(data: bytes) -> tuple[Header, bytes]:
    """The header and the tensors of a file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def split_text(data: bytes) -> bytes:
    """The header as text."""
    return json.dumps(split(data)[0]).encode()


def joined(header: Any, body: bytes) -> bytes:
    """A file of a header, as JSON or as bytes, and tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def on_header(change: Callable[[Header], Any]) -> Change:
    """Change the header in place, or to what `change` returns."""

    def apply(data: bytes) -> bytes:
        header, body = split(data)
        result = change(header)
        return joined(header if result is None else result, body)

    return apply


def on_first(**fields: Any) -> Change:
    """Change the entry of the first tensor."""
    return on_header(lambda header: header[FIRST].update(fields))


def raw_header(text: bytes) -> Change:
    """Another header."""
    return lambda data: joined(text, split(data)[1])


def entry(header: Header, key: str) -> Any:
    return header[FIRST][key]


def overlapping(header: Header) -> None:
    """Two tensors of one size at one place, the place of the other one free."""
    names = [name for name in header if name.endswith("q_proj.weight")]
    header[names[0]]["data_offsets"] = list(header[names[1]]["data_offsets"])


def twice(data: bytes) -> bytes:
    """The first tensor twice, both times with the same entry: no check of offsets sees it."""
    header, body = split(data)
    text = json.dumps(header)
    return joined((text[:-1] + f', "{FIRST}": {json.dumps(header[FIRST])}}}').encode(), body)


def swapped(data: bytes) -> bytes:
    """A vector whose shape has the same number of elements, but is another."""
    header, body = split(data)
    header["final_norm.weight"]["shape"] = [2, header["final_norm.weight"]["shape"][0] // 2]
    return joined(header, body)


def renamed(old: str, new: str) -> Change:
    def change(header: Header) -> Header:
        return {new if name == old else name: value for name, value in header.items()}

    return on_header(change)


def repickled(data: bytes) -> bytes:
    """A pickle that would call something if it were loaded."""

    class Call:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("owned",)

    return pickle.dumps(Call())


UNREADABLE = "weights-unreadable"
WEIGHTS: dict[str, tuple[Change, str]] = {
    "empty": (lambda data: b"", UNREADABLE),
    "seven bytes": (lambda data: data[:7], UNREADABLE),
    "only a length": (lambda data: data[:8], UNREADABLE),
    "cut in the header": (lambda data: data[:100], UNREADABLE),
    "cut by a byte": (lambda data: data[:-1], UNREADABLE),
    "a byte too many": (lambda data: data + b"\0", UNREADABLE),
    "a header of 2**64 - 1 bytes": (lambda data: b"\xff" * 8 + data[8:], UNREADABLE),
    "a header of 2**63 bytes": (lambda data: (1 << 63).to_bytes(8, "little") + data[8:], UNREADABLE),
    "a header past the end": (lambda data: len(data).to_bytes(8, "little") + data[8:], UNREADABLE),
    "a header of no bytes": (lambda data: bytes(8) + data[8:], UNREADABLE),
    "a header that is no JSON": (raw_header(b"{'a': 1}"), UNREADABLE),
    "a header that is a list": (raw_header(b"[]"), UNREADABLE),
    "a header that is null": (raw_header(b"null"), UNREADABLE),
    "a header of a hundred thousand brackets": (raw_header(b'{"a":' + b"[" * 100_000), UNREADABLE),
    "a header with a number of 5000 digits": (raw_header(b'{"a":' + b"1" * 5000 + b"}"), UNREADABLE),
    "a header that is not UTF-8": (raw_header(b'{"\xff": 1}'), UNREADABLE),
    "a header in UTF-16": (raw_header('{"a": 1}'.encode("utf-16")), UNREADABLE),
    "a name twice": (twice, UNREADABLE),
    "a key of an entry twice": (
        lambda data: joined(split_text(data).replace(b'"shape"', b'"shape": [1], "shape"', 1), split(data)[1]),
        UNREADABLE,
    ),
    "an entry that is a list": (on_header(lambda h: h.update({FIRST: []})), UNREADABLE),
    "an entry with more": (on_first(file="/etc/passwd"), UNREADABLE),
    "overlapping tensors": (on_header(overlapping), UNREADABLE),
    "offsets past the end": (on_first(data_offsets=[0, 1 << 40]), UNREADABLE),
    "offsets that are negative": (on_first(data_offsets=[-8, 0]), UNREADABLE),
    "offsets backwards": (on_header(lambda h: entry(h, "data_offsets").reverse()), UNREADABLE),
    "offsets that are floats": (on_header(lambda h: h[FIRST].update(data_offsets=[0.0, 10320.0])), UNREADABLE),
    "three offsets": (on_header(lambda h: entry(h, "data_offsets").append(3)), UNREADABLE),
    "a size of 2**70": (on_first(shape=[1 << 70]), UNREADABLE),
    "sizes whose product wraps to the right one": (
        on_header(lambda h: entry(h, "shape").append((1 << 64) + 1)),
        UNREADABLE,
    ),
    "sizes whose product wraps to nothing": (on_first(shape=[1 << 32, 1 << 32]), UNREADABLE),
    "a negative size": (on_header(lambda h: h[FIRST].update(shape=[-n for n in entry(h, "shape")])), UNREADABLE),
    "a size that is true": (on_first(shape=[True]), UNREADABLE),
    "a size that is text": (on_first(shape=["258", "20"]), UNREADABLE),
    "a dtype nobody knows": (on_first(dtype="F13"), UNREADABLE),
    "a dtype that is a number": (on_first(dtype=16), UNREADABLE),
    "metadata that is no text": (on_header(lambda h: h.update({"__metadata__": {"a": 1}})), UNREADABLE),
    "a name that clears the screen": (renamed(FIRST, "embed\x1b[2J"), UNREADABLE),
    "a name of a megabyte": (renamed(FIRST, "x" * (1 << 20)), UNREADABLE),
    "a pickle": (repickled, UNREADABLE),
    "a zip archive": (lambda data: b"PK\x03\x04" + data, UNREADABLE),
    "the same number of elements": (swapped, "weights-shape"),
    "another dtype of the same size": (on_first(dtype="F16"), "weights-dtype"),
    "a tensor less": (renamed("final_norm.weight", "final_norm.bias"), "weights-missing"),
    "a tensor more": (
        on_header(lambda h: h.update(x={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})),
        "weights-foreign",
    ),
}
