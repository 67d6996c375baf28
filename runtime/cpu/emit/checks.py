"""Code that checks memory accesses before they happen; the C side is native/check.h.

Every operation that touches memory is a *site*: a row of the C table `cp_sites` and of the description that travels in
the kernel's metadata, from which a report gets its names and lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..analysis.placement import address_values
from ..analysis.provenance import ANYWHERE, find_sources
from ..ttir.ir import Function, Op, Value
from ..ttir.verify import unsupported
from .ctypes import c_type, size_of
from .exact import Exact, ExactScalars, Link
from .nest import ZERO, At, Index, Nest, deepest, flat

if TYPE_CHECKING:
    from .emitter import Emitter

_MEMORY = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")


class Checks:
    """Sites of one kernel, and the statements that check them."""

    def __init__(self, function: Function, mode: str) -> None:
        """mode: `bounds` or `race`, as in checks/mode.py."""
        self.function, self.races = function, mode == "race"
        self.scalars = ExactScalars()
        self.sites: list[dict] = []
        self.links: list[dict] = []
        self._sources = find_sources(function)
        self._offsets = address_values(list(function.walk()))
        self._numbers: dict[Op, int] = {}
        self._link_numbers: dict[Op, int] = {}

    # ---- statements

    def element(self, nest: Nest, op: Op, index: Index, mask: At | None = None, value: str = "") -> At:
        """Statement that checks one element of the pointer tensor of `op`, and the loop level it belongs to."""
        pointer = op.operands[0]
        address, exact = nest.at(pointer, index), Exact(nest, self.scalars)
        meant = exact.at(pointer, index)
        level = deepest((address, meant, *([mask] if mask else [])))
        lane = flat(pointer.type.dims, tuple(at if at.level <= level else ZERO for at in index))
        return At(self._statement(op, address.code, meant.code, exact.links, lane, value), level)

    def scalar(self, e: Emitter, op: Op, value: str = "") -> str:
        """Statement that checks the one address of `op`."""
        pointer = op.operands[0]
        meant = self.scalars.code(pointer, e.names[pointer])
        return self._statement(op, e.names[pointer], meant, self.scalars.links.get(pointer, []), "0", value)

    def follow(self, op: Op, names: dict[Value, str], fresh: str) -> list[str]:
        """Declaration of the exact result of a scalar operation on the way to an address."""
        if not op.result.type.is_pointer and op.result not in self._offsets:
            return []
        line = self.scalars.follow(op, names, fresh)
        return [line] if line else []

    def lane_of_tile(self, op: Op, index: str, size: int, lane: str) -> str:
        """Statement that checks an index into a tile (tl.gather)."""
        site = self._site(op, "gather", [size])
        return f"if ((uint64_t)({index}) >= {size}) cp_stop(check, CP_FAIL_TILE, {site}, (uint64_t)({index}), {lane});"

    def _statement(self, op: Op, address: str, meant: str, links: list[Link], lane: str, value: str) -> str:
        kind = _kind(op)
        site = self._site(op, kind, list(op.operands[0].type.dims))
        stored = f", , &({c_type(op.operands[1].type.elem)}){{{value}}}" if kind == "store" else ""
        test = f"CP_CHECK({kind}, check, {site}, (uint64_t)({address}), {lane}{stored})"
        return f"{{ {self._wrapped(site, address, meant, links, lane)}{test} }}"

    def _wrapped(self, site: int, address: str, meant: str, links: list[Link], lane: str) -> str:
        if not links:
            return ""
        which = "0"
        for link in reversed(links):
            which = f"({link.exact} != {link.wrapped}) ? cp_link(check, {self._link(link.op)}, {link.exact}) : {which}"
        failed = f"(void)({which}); cp_stop(check, CP_FAIL_OVERFLOW, {site}, (uint64_t)({address}), {lane});"
        return f"if (cp_unlikely((int64_t)({address}) != {meant})) {{ {failed} }} "

    # ---- tables

    def _site(self, op: Op, kind: str, shape: list[int]) -> int:
        if op not in self._numbers:
            self._numbers[op] = len(self.sites)
            sources = sorted(self._sources.get(op.operands[0], {ANYWHERE})) if kind != "gather" else []
            elem = op.operands[0].type.pointee if kind != "gather" else op.result.type.elem
            self.sites.append(
                {"kind": kind, "location": op.location, "shape": shape, "sources": sources, "size": size_of(elem)}
            )
        return self._numbers[op]

    def _link(self, op: Op) -> int:
        if op not in self._link_numbers:
            self._link_numbers[op] = len(self.links)
            self.links.append({"op": op.name, "location": op.location})
        return self._link_numbers[op]

    def describe(self) -> dict:
        """What a report needs, as JSON-able data. Raises UnsupportedOp if an access went without a check."""
        for op in self.function.walk():
            if op.name in _MEMORY and op not in self._numbers:
                raise unsupported(self.function, op, "no check for this access: run it without STEPFORGE_CPU_CHECK")
        return {"kernel": self.function.name, "sites": self.sites, "links": self.links}

    def tables(self) -> list[str]:
        """C: one row per site."""
        lists, rows = [], []
        for k, site in enumerate(self.sites):
            known = [] if ANYWHERE in site["sources"] else site["sources"]
            lists.append(f"static const int32_t cp_from{k}[] = {{{', '.join(map(str, known or [0]))}}};")
            rows.append(f"{{{site['size']}, {len(known)}, cp_from{k}}}")
        return [*lists, f"static const cp_site cp_sites[] = {{{', '.join(rows) or '{1, 0, 0}'}}};"]


def _kind(op: Op) -> str:
    """Names the C function that looks for races."""
    match op.name:
        case "tt.load":
            return "volatile" if op.attrs.get("isVolatile") == "true" else "load"
        case "tt.store":
            return "store"
    return "relaxed" if "relaxed" in op.attrs["words"] else "atomic"


def guarded(nest: Nest, op: Op, index: Index, access: str, value: str = "") -> str:
    """The statement `access` to one element at the deepest level of `nest`, after its check if there is one."""
    checks = nest.emitter.checks
    return f"{{ {checks.element(nest, op, index, None, value).code} {access} }}" if checks else access
