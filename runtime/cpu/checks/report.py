"""What a failed check says: kernel, line, operation, program, lane, argument, element and what is allowed."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from ..errors import CpuBackendError, DataRace, LaneConflict, OffsetOverflow, OutOfBounds, UninitialisedRead
from .extents import CFailure, Extent

BOUNDS, OVERFLOW, TILE, RACE, LANES, POISON = range(1, 7)
_VERBS = {"load": "load", "volatile": "volatile load", "store": "store", "atomic": "atomic", "relaxed": "atomic"}
_OTHER_VERBS = {1: "load", 2: "store", 3: "atomic"}
_SIGNS = {"arith.addi": "addition", "arith.subi": "subtraction", "arith.muli": "multiplication", "arith.shli": "shift"}


@dataclass(frozen=True)
class _Place:
    """The argument an address belongs to (or is nearest to), and the element of it."""

    extent: Extent
    element: int
    rest: int

    @property
    def text(self) -> str:
        return f"element {self.element}" + (f" plus {self.rest} bytes" if self.rest else "")


def error(checks: dict, failure: CFailure, extents: list[Extent], grid: tuple[int, int, int]) -> CpuBackendError:
    """The error of a failure recorded by native/check.h."""
    site = checks["sites"][failure.site]
    fields: dict[str, Any] = {
        "kernel": checks["kernel"], "location": _line(site["location"]), "source": _source(site["location"]),
        "lines": _lines(site["location"]),
        "op": _VERBS.get(site["kind"], site["kind"]), "program": _program(failure.program, grid),
        "lane": _lane(failure.lane, site["shape"]), "shape": tuple(site["shape"]),
    }  # fmt: skip
    fields["where"] = f"program {fields['program']}" + (f", lane {_short(fields['lane'])}" if site["shape"] else "")
    if failure.kind == TILE:
        return _tile(fields, failure, site)
    place = _place_of(site, failure.address, extents)
    fields |= {"argument": place.extent.name, "element": place.element, "offset_text": place.text}
    if failure.kind == RACE:
        return _race(checks, failure, fields, extents, grid)
    if failure.kind in (LANES, POISON):
        return (LaneConflict if failure.kind == LANES else UninitialisedRead)(**fields)
    fields |= _allowed(place.extent, site["size"])
    fields["detail"] = _landing(failure.address, place.extent, extents)
    if failure.kind == OVERFLOW:
        link = checks["links"][failure.link]
        fields |= {
            "exact": failure.exact, "link": _line(link["location"]), "link_op": _SIGNS.get(link["op"], "conversion"),
            "link_source": _source(link["location"]), "lines": _lines(link["location"]),
        }  # fmt: skip
        return OffsetOverflow(**fields)
    return OutOfBounds(**fields)


def _tile(fields: dict, failure: CFailure, site: dict) -> OutOfBounds:
    index = failure.address - (1 << 64 if failure.address >> 63 else 0)
    size = site["shape"][0]
    fields |= {"lane": failure.lane, "where": f"program {fields['program']}, element {failure.lane} of the result"}
    allowed = {"argument": "the gathered tile", "element": index, "low": 0, "high": size - 1}
    return OutOfBounds(**fields, **allowed, offset_text=f"index {index}", allowed=f"0..{size - 1}", detail="")


def _race(checks: dict, failure: CFailure, fields: dict, extents: list[Extent], grid: tuple[int, int, int]) -> DataRace:
    other = checks["sites"][failure.other_site]
    place = _place_of(other, failure.address, extents)
    elsewhere = _line(other["location"]) != fields["location"]
    fields["lines"] += _lines(other["location"]) if elsewhere else ""
    return DataRace(
        **fields,
        other_program=_program(failure.other_program, grid),
        other_op=_OTHER_VERBS[failure.other_kind],
        other_argument=place.extent.name,
        other_element=place.element,
        other_name=f" through {place.extent.name} ({place.text})" if place.extent.name != fields["argument"] else "",
        other_location=_line(other["location"]),
        other_source=_source(other["location"]),
    )


def _place_of(site: dict, address: int, extents: list[Extent]) -> _Place:
    """In the arguments that the pointer of this site may come from."""
    return _place(address, [extents[k] for k in site["sources"] if k >= 0] or extents, site["size"])


def _place(address: int, extents: list[Extent], size: int) -> _Place:
    """In the nearest of `extents`, counted from its first element."""
    known = [e for e in extents if e.known and e.high] or extents
    best = min(known, key=lambda e: max(e.low - address, address + size - e.high, 0))
    item = best.item if best.argument is not None else size
    element, rest = divmod(address - _origin(best), item)
    return _Place(best, element, rest)


def _origin(extent: Extent) -> int:
    return extent.argument.data_ptr() if hasattr(extent.argument, "data_ptr") else extent.low


def _allowed(extent: Extent, size: int) -> dict[str, Any]:
    if extent.argument is None:
        return {"low": 0, "high": -1, "allowed": "nothing: the argument is None"}
    low = (extent.low - _origin(extent)) // extent.item
    high = (extent.high - _origin(extent)) // extent.item - 1
    text = f"{low}..{high}" if high >= low else "nothing: the tensor is empty"
    return {"low": low, "high": high, "allowed": f"{text}{_shape(extent)}"}


def _shape(extent: Extent) -> str:
    tensor = extent.argument
    if not hasattr(tensor, "stride"):
        return ""
    kind = str(tensor.dtype).removeprefix("torch.")
    text = f" ({kind}, shape {tuple(tensor.shape)}"
    return text + (f", strides {tuple(tensor.stride())}, gaps excluded)" if extent.gaps else ")")


def _landing(address: int, expected: Extent, extents: list[Extent]) -> str:
    for extent in extents:
        if extent is not expected and extent.known and extent.low <= address < extent.high:
            return f"; that is element {(address - _origin(extent)) // extent.item} of {extent.name}"
    tensor = expected.argument
    if hasattr(tensor, "untyped_storage"):
        storage = tensor.untyped_storage()
        if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
            return "; that is inside the storage this view shares"
    return ""


def _program(linear: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    gx, gy, _ = grid
    return linear % gx, linear // gx % gy, linear // gx // gy


def _lane(linear: int, shape: list[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        linear, i = divmod(linear, size)
        index.append(i)
    return tuple(reversed(index))


def _short(lane: tuple[int, ...]) -> str:
    return str(lane[0]) if len(lane) == 1 else str(lane)


def _line(location: str) -> str:
    """`file:line` of a location; of an inlined function too where it was called."""
    return " called from ".join(part.rsplit(":", 1)[0] for part in location.split(" <- ") if ":" in part) or location


def _source(location: str) -> str:
    """The text of the source line, empty if the file is not there."""
    file, _, rest = location.split(" <- ")[0].partition(":")
    number = rest.split(":")[0]
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""


def _lines(location: str) -> str:
    """The source line as a message ends with it."""
    text = _source(location)
    return f"\n    {text}" if text else ""
