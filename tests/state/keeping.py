"""Operations on what is kept: evict, clear, pin, files, and engines that end."""

from __future__ import annotations

from dataclasses import replace

from runtime.errors import CheckpointFileForeign, NotCached, PinRefused
from tests.state.differences import holds, same
from tests.state.setup import Setup
from tests.state.texts import Text, prefix_of
from tests.state.world import World


def evict(world: World, times: int) -> None:
    """Take rows of what is worth least."""
    cache = world.engine.scheduler.cache
    for _ in range(times):
        free, possible = len(cache.free_rows()), bool(cache.evictable())
        same("evicted", cache.evict(), possible)
        same("rows freed", len(cache.free_rows()) - free, int(possible))


def clear(world: World, pick: int) -> None:
    """Give up what is kept of one text, or all. pick: 0 all."""
    texts = [tuple(track.seen) for track in world.tracks]
    chosen = texts[-pick % len(texts)] if pick and texts else ()
    cache, before = world.engine.scheduler.cache, world.model.published()
    stays = {prefix_of(c) for c in cache.all() if c.busy or c.pins or c.holders}
    going = {text for text in before - stays if _on_the_way(text, chosen)}
    found = world.engine.cache.evict(list(chosen)) if chosen else world.engine.cache.clear()
    same("given up", found, len(going))
    same("kept after clearing", world.model.published(), before - going)
    world.before.published -= going


def _on_the_way(text: Text, chosen: Text) -> bool:
    shorter = min(len(text), len(chosen))
    return text[:shorter] == chosen[:shorter]


def pin(world: World, pick: int) -> None:
    """Keep the longest checkpoint of a text on the device."""
    text = tuple(world.tracks[pick % len(world.tracks)].seen)
    kept = [c for c in world.engine.scheduler.cache.all() if c.published and prefix_of(c) == text[: c.position]]
    best = max(kept, key=lambda c: c.position, default=None)
    on_device = best is not None and best.index is not None
    try:
        position = world.engine.cache.pin(list(text))
    except NotCached:
        holds(not on_device, "what is on the device cannot be pinned")
    except PinRefused:
        holds(not _can_be_pinned(world, best), "refused to pin, and slots would lack nothing")
        world.tally.hit("pin refused")
    else:
        same("pinned at", position, best.position)
        world.pins[text[:position]] = world.pins.get(text[:position], 0) + 1
        world.tally.hit("pinned")


def _can_be_pinned(world: World, wanted: object) -> bool:
    cache, limits = world.engine.scheduler.cache, world.engine.package.plan.limits
    pinned = {id(c): c for c in cache.all() if c.pins or c is wanted}.values()
    pages = {page for c in pinned for page in c.pages}
    reserved = world.setup.slots * limits.pages_per_slot
    return len(pinned) < cache.capacity and cache.pages.num_pages - len(pages) >= reserved


def unpin(world: World, pick: int) -> None:
    """Let one go."""
    text = sorted(world.pins)[pick % len(world.pins)]
    world.engine.cache.unpin(list(text))
    world.pins[text] -= 1
    if not world.pins[text]:
        del world.pins[text]


# Files


def save(world: World) -> None:
    """Everything published into one file."""
    published = world.model.published()
    report = world.engine.checkpoints.save(world.folder / "archive")
    same("images saved", report.images, len(published))
    world.archive, world.archived_drafting = published, world.setup.drafting


def load(world: World) -> None:
    """And back."""
    try:
        count = world.engine.checkpoints.load(world.folder / "archive")
    except CheckpointFileForeign:
        holds(world.archived_drafting is not world.setup.drafting, "our own archive is foreign")
        world.tally.hit("foreign archive refused")
        return
    holds(world.archived_drafting is world.setup.drafting, "a foreign archive was loaded")
    holds(count <= len(world.archive), f"{count} of {len(world.archive)} images loaded")
    world.before.published |= world.archive if count == len(world.archive) else world.model.published() & world.archive
    world.tally.hit("images loaded", count)


def write(world: World, count: int) -> None:
    """Let the writer write."""
    written = world.writer.written
    world.writer.work(count)
    same("failed writes", world.writer.failed, 0)
    world.tally.hit("files written", world.writer.written - written)


def reopen(world: World, kill: int, change: int) -> None:
    """A new engine over the same directory, after the old one was closed, or just vanished."""
    for track in world.tracks:
        world.remember(tuple(track.seen))
    if not kill:
        _close(world)
    elif world.writer is not None:
        world.tally.hit("images lost in a crash", world.writer.pending)
    world.tally.hit("killed" if kill else "closed")
    world.open(changed(world.setup, change))
    world.before = world.new_before()


def _close(world: World) -> None:
    on_device = {c.key for c in world.engine.scheduler.cache.all() if c.index is not None and c.published}
    unfinished = world.unfinished()
    world.engine.close()
    for track in unfinished:
        same("finish reason after close", track.request.finish_reason, "cancelled")
    if world.writer is not None and world.setup.files_bytes is None:
        holds(on_device <= set(world.engine.scheduler.tiers.directory.keys()), "closed, and not all is in files")


def changed(setup: Setup, change: int) -> Setup:
    """Another configuration for the next engine."""
    return (
        setup,
        setup,
        replace(setup, interval=5),
        replace(setup, prefill_chunk=3),
        replace(setup, slots=2),
        replace(setup, interval=0),
        replace(setup, prefill_budget=7),
        replace(setup, drafting=not setup.drafting),
    )[change]
