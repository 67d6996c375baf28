"""An independent account of slots, pages, rows, host pool and tree: nothing leaks, nothing is both free and used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.engine import Engine
from runtime.seats import Seat
from tests.state.differences import holds, same
from tests.state.texts import prefix_of


def partition(what: str, free: Iterable[int], used: Iterable[int], count: int) -> None:
    """Free and used ones are all there are, each once."""
    same(f"free and used {what}", sorted([*free, *used]), list(range(count)))


def check_allocator(engine: Engine) -> None:
    """Everything, between two operations."""
    scheduler, cache = engine.scheduler, engine.scheduler.cache
    kept, seats = cache.all(), scheduler.seats.all()
    partition("slots", scheduler.seats.free, [seat.slot for seat in seats], scheduler.seats.slots)
    partition("rows", cache.free_rows(), [c.index for c in kept if c.index is not None], cache.capacity)
    _check_pages(engine, kept, seats)
    _check_writers(engine, kept, seats)
    _check_holders(engine, kept)
    _check_host(engine, kept)
    _check_tree(engine, kept)


def _check_pages(engine: Engine, kept: list[Checkpoint], seats: list[Seat]) -> None:
    pool = engine.scheduler.cache.pages
    count = Counter(page for owner in (*kept, *seats) for page in owner.pages)
    same("references of pages", [pool.references(page) for page in range(pool.num_pages)],
         [count[page] for page in range(pool.num_pages)])  # fmt: skip
    partition("pages", pool.free_pages(), count, pool.num_pages)
    for owner in (*kept, *seats):
        same("pages of one owner, each once", len(set(owner.pages)), len(owner.pages))
    for checkpoint in kept:
        wanted = -(-checkpoint.position // pool_page_size(engine)) if checkpoint.index is not None else 0
        same(f"pages of the checkpoint at {checkpoint.position}", len(checkpoint.pages), wanted)


def pool_page_size(engine: Engine) -> int:
    """Entries of a page; none without KV caches."""
    return engine.package.plan.limits.page_size


def _check_writers(engine: Engine, kept: list[Checkpoint], seats: list[Seat]) -> None:
    """A page that a slot will write to is nobody else's, but for entries that the slot has done with."""
    size, lag = pool_page_size(engine), int(engine.scheduler.executor.drafting)
    table, width = engine.scheduler.executor.views["page_table"], engine.package.plan.limits.pages_per_slot
    done = {seat.slot: seat.committed_len for seat in seats}
    writers: dict[int, tuple[int, int]] = {}
    for seat in seats:
        same(f"page table of slot {seat.slot}", table[seat.slot * width :][: len(seat.pages)].tolist(), seat.pages)
        for number, page in enumerate(seat.pages):
            if (number + 1) * size > done[seat.slot] - lag:
                holds(page not in writers, f"slots {writers.get(page)} and {seat.slot} both write page {page}")
                writers[page] = (seat.slot, number)
    for seat in seats:
        for number, page in enumerate(seat.pages):
            same(f"writer and reader of page {page}", writers.get(page, (seat.slot, number)), (seat.slot, number))
    for checkpoint in kept:
        for number, page in enumerate(checkpoint.pages):
            slot, at = writers.get(page, (None, number))
            fine = at == number and (slot is None or min(checkpoint.position, (number + 1) * size) <= done[slot])
            holds(fine, f"slot {slot} writes page {page} of the checkpoint at {checkpoint.position}")


def _check_holders(engine: Engine, kept: list[Checkpoint]) -> None:
    """Held by those who will resume from it; what nobody holds is published."""
    unfinished = engine.scheduler.unfinished()
    holders = Counter(id(request.held) for request in unfinished if request.held is not None)
    writing = set(engine.scheduler.tiers._writing)
    for checkpoint in kept:
        name = f"the checkpoint at {checkpoint.position}"
        same(f"holders of {name}", checkpoint.holders, holders[id(checkpoint)])
        holds(checkpoint.published or checkpoint.holders, f"{name} is neither published nor held")
        holds(checkpoint.index is not None or checkpoint.copy is not None, f"{name} is nowhere")
        same(f"{name} is busy", checkpoint.busy, int(checkpoint.key in writing))


def _check_host(engine: Engine, kept: list[Checkpoint]) -> None:
    host = engine.scheduler.tiers.host
    copies = [c.copy for c in kept if c.copy is not None]
    if host is None:
        same("copies without a host pool", copies, [])
        return
    rows = next(iter(host.rows.values())).shape[0]
    partition("host rows", host._free_rows, [copy.row for copy in copies], rows)
    places = {place: key for copy in copies for key, place in copy.pages}
    keys = {key: place for copy in copies for key, place in copy.pages}
    same("places of host pages by key", {key: places[place] for key, place in keys.items()}, {key: key for key in keys})
    partition("host pages", host._free_pages, places, next(iter(host.pages.values())).shape[0])
    holds(host._holders == Counter(key for copy in copies for key, _ in copy.pages), "holders of host pages")


def _check_tree(engine: Engine, kept: list[Checkpoint]) -> None:
    """Every checkpoint is at the node of its own tokens, and nowhere else."""
    tree, found = engine.scheduler.cache.tree, {}
    size = 0
    pending = [(tree.root, ())]
    while pending:
        node, text = pending.pop()
        for token, child in node.children.items():
            holds(child.edge and child.edge[0] == token and child.parent is node, "the tree is torn")
            size += len(child.edge)
            whole = (*text, *child.edge)
            same("end of a node", child.end, len(whole))
            if child.checkpoint is not None:
                found[whole] = child.checkpoint
            pending.append((child, whole))
    same("tokens in the tree", tree.size, size)
    same("checkpoints in the tree", set(found), {prefix_of(c) for c in kept})
    for checkpoint in kept:
        text = prefix_of(checkpoint)
        holds(found[text] is checkpoint, f"the tree has another checkpoint at {checkpoint.position}")
