"""Operations that let the engine run, disturb it, or look at it."""

from __future__ import annotations

from contextlib import suppress

from runtime.errors import NotCached, PinRefused
from tests.state.asking import rewind
from tests.state.bombs import POINTS, Bomb, planted
from tests.state.differences import holds, same
from tests.state.poison import poison as poison_all
from tests.state.tracks import Track
from tests.state.world import World

PATIENCE = 6


def step(world: World, times: int) -> None:
    """Some steps; what each has to publish is checked at once."""
    for number in range(times):
        if number:
            world.between()
        world.step()


def set_drafts(world: World, drafts: int) -> None:
    """Another K from the next step on."""
    world.engine.set_drafts(drafts)


def poison(world: World, number: int) -> None:
    """Nonsense in everything that is free."""
    poison_all(world.engine, world.bits, number)


def interrupt(world: World, point: int, number: int, after: int, during: int) -> None:
    """A KeyboardInterrupt at some call of some part, within the next steps or during another call of the engine."""
    bomb, waiting = Bomb(number, bool(after)), world.having(lambda request: request.progress == "waiting")
    seated_at = {track: track.request.admitted_at for track in waiting}
    try:
        with planted(world.engine, POINTS[point % len(POINTS)], bomb):
            DURING[during % len(DURING)](world)
        world.note_pins()
    except KeyboardInterrupt:
        holds(bomb.gone_off, "somebody else's KeyboardInterrupt")
        world.tally.hit("interrupted")
        world.tally.hit(f"interrupted: {POINTS[point % len(POINTS)]}")
        world.before.partial = True
        world.interrupted()
        world.note_pins()
        _check_waiting(seated_at)


def _check_waiting(seated_at: dict[Track, float | None]) -> None:
    """Those who waited, and got no slot before the interruption, wait on."""
    for track, at in seated_at.items():
        request = track.request
        if request.admitted_at == at and not track.expired:
            holds(request.progress == "waiting", f"request {request.id} did not run, and does not wait")


def _steps(world: World) -> None:
    for _ in range(PATIENCE):
        world.step()


def _preempt(world: World) -> None:
    for track in world.running():
        track.request.preempt()


def _cache(world: World) -> None:
    """Calls of the cache; what they give up is no loss that has to be counted."""
    world.before.forgive()
    texts = [list(track.seen) for track in world.tracks]
    for text in texts[-2:]:
        with suppress(NotCached, PinRefused):
            world.engine.cache.pin(text)
    for text in texts[:2]:
        world.engine.cache.evict(text)
    if world.archive is not None and world.archived_drafting is world.setup.drafting:
        world.before.allow(world.archive)
        world.engine.checkpoints.load(world.folder / "archive")


def _rewind(world: World) -> None:
    """With another seed."""
    if any(track.request.output for track in world.tracks):
        rewind(world, 0, 1, 1)


DURING = (_steps, _steps, _steps, _preempt, _cache, _rewind)


def inspect(world: World, pick: int) -> None:
    """Compare with cold states."""
    world.inspect(pick)


def look(world: World, pick: int) -> None:
    """What an application can ask for: the account of the cache, what would be restored, logits."""
    track = world.tracks[pick % len(world.tracks)]
    account, cache = world.engine.cache.explain(), world.engine.scheduler.cache
    same("kept, as explained", len(account.kept), len(cache.all()))
    same("free rows, as explained", account.rows_free, len(cache.free_rows()))
    same("free pages, as explained", account.pages_free, cache.pages.free)
    holds(str(account), "the account prints")
    turns = sorted(row.leaves for row in account.kept if row.leaves is not None)
    same("turns of those who may leave", turns, list(range(len(turns))))
    own = tuple(track.seen)
    wanted = max((len(text) for text in world.model.published() if own[: len(text)] == text), default=0)
    same("found for a text", world.engine.cache.find(list(own)), wanted)
    for other in world.having(lambda request: request.progress == "decode")[:1]:
        logits = world.engine.logits(other.request)
        expected = world.subject.cold.logits(other.seen[:-1])
        same(f"logits of request {other.request.id}", logits.tolist(), expected.tolist())
