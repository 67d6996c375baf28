"""Operations that let the engine run, disturb it, or look at it."""

from __future__ import annotations

from tests.state.differences import holds, same
from tests.state.poison import poison as poison_all
from tests.state.witness import INTERRUPTED, Bomb
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


def interrupt(world: World, method: int, number: int, after: int) -> None:
    """A KeyboardInterrupt at some call of an executor's method within the next steps."""
    bomb = world.witness.bomb = Bomb(INTERRUPTED[method % len(INTERRUPTED)], number, bool(after))
    waiting = [track for track in world.unfinished() if track.request.progress == "waiting"]
    try:
        for _ in range(PATIENCE):
            world.step()
    except KeyboardInterrupt:
        holds(bomb.gone_off, "somebody else's KeyboardInterrupt")
        world.tally.hit(f"interrupted: {bomb.method}")
        world.before.partial = True
        world.interrupted()
        _check_waiting(world, waiting)
    finally:
        world.witness.bomb = None


def _check_waiting(world: World, waiting: list[object]) -> None:
    """Those who were not admitted wait on."""
    for track in waiting:
        if track.request.id not in world.model.ever_admitted and not track.expired:
            holds(track.request.progress == "waiting", f"request {track.request.id} did not run, and does not wait")


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
