"""What the header of a safetensors file claims, checked against the file before a byte of a tensor is mapped.

The safetensors library checks most of this too; it takes the last of two tensors with one name, its messages do not
say which tensor is wrong, and what it has mapped stays resident.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from typing import Any

from runtime.checked import integer, items, mapping
from runtime.files import unique_keys

HEADER_BYTES = 16 << 20
MOST_TENSORS = 1 << 16
MOST_NAME = 512  # characters
METADATA = "__metadata__"
BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64"), 64),
}


@dataclass(frozen=True)
class Stored:
    """A tensor of a file. dtype: a key of BITS; begin, stop: bytes from the start of the file."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    stop: int


def read_layout(stream: BufferedReader) -> dict[str, Stored]:
    """Tensors by name: distinct names, known dtypes, one after another over the whole rest of the file.

    Reads the header only. Raises ValueError that says what is wrong.
    """
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    if size < 8:
        raise ValueError(f"it has {size} bytes, the length of the header alone takes 8")
    if length > HEADER_BYTES:
        raise ValueError(f"its header claims {length} bytes, at most {HEADER_BYTES} are read")
    if length > size - 8:
        raise ValueError(f"its header claims {length} bytes, {size - 8} are left")
    header = _parsed(stream.read(length))
    if len(header) > MOST_TENSORS:
        raise ValueError(f"it claims {len(header)} tensors, at most {MOST_TENSORS} are read")
    end, stored = 0, {}
    for begin, stop, name in sorted(_place(name, entry) for name, entry in header.items() if name != METADATA):
        if begin != end:
            raise ValueError(f"{_shown(name)} starts at {begin}, where {end} is due: tensors overlap, or leave a gap")
        end, entry = stop, header[name]
        stored[name] = Stored(tuple(entry["shape"]), entry["dtype"], 8 + length + begin, 8 + length + stop)
    if end != size - 8 - length:
        raise ValueError(f"its tensors take {end} bytes, the file has {size - 8 - length} for them")
    return stored


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content.decode("utf-8"), object_pairs_hook=unique_keys)
        entries = dict(mapping(header))
        if not all(isinstance(value, str) for value in mapping(entries.get(METADATA, {})).values()):
            raise ValueError("its metadata is no text")
        return entries
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"its header cannot be read ({error})") from None


def _place(name: str, entry: Any) -> tuple[int, int, str]:
    """Where a tensor begins and ends, as its dtype and shape say too."""
    try:
        if len(name) > MOST_NAME or not name.isprintable():
            raise ValueError(f"its name is not printable text of at most {MOST_NAME} characters")
        entry = mapping(entry)
        if set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError("its entry needs dtype, shape and data_offsets, and nothing else")
        if not isinstance(entry["dtype"], str) or entry["dtype"] not in BITS:
            raise ValueError(f"its dtype is {_shown(entry['dtype'])}")
        shape, offsets = items(entry["shape"], integer), items(entry["data_offsets"], integer)
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            raise ValueError("its data_offsets are no beginning and end")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{_shown(name)}: {error}") from None
    begin, stop = offsets
    wanted = prod(shape) * BITS[entry["dtype"]] // 8
    if stop - begin != wanted:
        raise ValueError(f"{_shown(name)}: {stop - begin} bytes, its dtype and shape need {_size(wanted)}")
    return begin, stop, name


def _size(number: int) -> str:
    return str(number) if number < 1 << 64 else "more than there can be"


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:80]}..."
