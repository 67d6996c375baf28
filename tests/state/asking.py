"""Operations on requests: submit, cancel, preempt, fork, rewind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from runtime.errors import BadOption, NotRetained, QueueFull
from runtime.request import Request
from tests.state.differences import holds, same
from tests.state.prompts import SAMPLING, prompt
from tests.state.tracks import Track
from tests.state.world import World

EOS = 257
PAST, FUTURE = 1e-9, 1e6


def submit(
    world: World, source: int, cut: int, tail: int, sampling: int, new: int, stops: int, priority: int, client: int,
    deadline: int, asked: int, logprobs: int,
) -> None:  # fmt: skip
    """A request: a prompt of the pool or an earlier text, with everything that can be asked."""
    cold, context = world.subject.cold, world.subject.package.plan.limits.max_context
    texts = [*world.memory, *(tuple(track.seen) for track in world.tracks)]
    text = prompt(source, cut, tail, texts, context - 1)
    temperature, seed = SAMPLING[sampling]
    chosen = cold.answer(text, temperature, seed, new)[4 * (stops - 6) :][:1] if stops >= 6 else []
    positions = _asked(asked, len(text))
    options = {
        "max_new_tokens": new,
        "temperature": temperature,
        "seed": seed,
        "stop_tokens": chosen,
        "stop_at_eos": stops % 2 == 0,
        "priority": priority,
        "client": "ab"[client],
        "deadline": {7: FUTURE, 9: PAST}.get(deadline),
        "checkpoints": positions,
        "logprobs": max(0, logprobs - 6) if logprobs > 5 else None,
    }
    request = _unless_full(world, lambda: world.engine.submit(list(text), **options))
    if request is None:
        return
    absolute = frozenset(p if p > 0 else len(text) + p for p in positions)
    track = Track(
        request, text, temperature, seed, frozenset([*chosen, *([EOS] if stops % 2 == 0 else [])]),
        min(len(text) + new, context), frozenset(p for p in absolute if p > 0), request.options.logprobs, len(text),
        expired=deadline == 9, seen=list(text),
    )  # fmt: skip
    world.add(track)


def _asked(number: int, length: int) -> tuple[int, ...]:
    """Positions to keep, most often none."""
    some = {3: (-1,), 4: (3,), 5: (5, -2), 6: (length + 3,), 7: (-1000, 1000), 8: (1, length), 9: (-(length // 2),)}
    return some.get(number, ())


def _unless_full(world: World, ask: Callable[[], Request]) -> Request | None:
    """Ask; None if the queue is full and that was said."""
    waiting = len(world.unfinished()) - len(world.running())
    try:
        return ask()
    except QueueFull:
        holds(waiting >= world.setup.max_queue, f"the queue of {waiting} is said to be full")
        world.tally.hit("queue full")
        return None


def cancel(world: World, pick: int) -> None:
    """End one."""
    track = _of(world.unfinished(), pick)
    world.tally.hit(f"cancelled: {track.request.progress}")
    track.request.cancel()
    track.ended = "cancelled"


def preempt(world: World, pick: int) -> None:
    """Take a slot away."""
    _of(world.running(), pick).request.preempt()


def fork(world: World, pick: int, at: int, seed: int, new: int) -> None:
    """Another continuation of all or some of a text. at: 0 all of it."""
    parent = _of(world.tracks, pick)
    request, context = parent.request, world.subject.package.plan.limits.max_context
    kept = _kept(parent, at)
    limit = min(kept + new, context) if new else request.limit_len
    where = None if at == 0 and not request.finished else kept
    phase = _phase(parent)
    if kept >= limit:
        with suppress(BadOption):
            world.engine.fork(request, SAMPLING[seed][1], at=where, max_new_tokens=new or None)
            holds(False, f"a fork at {kept} with the limit {limit} is not refused")
        return
    made = {"at": where, "max_new_tokens": new or None}
    child = _unless_full(world, lambda: world.engine.fork(request, SAMPLING[seed][1], **made))
    if child is None:
        return
    _flushed_by_fork(world, parent, kept)
    world.tally.hit(f"forked: {phase}")
    base = tuple(parent.seen[:kept])
    track = Track(
        child, base, parent.temperature, SAMPLING[seed][1], parent.stops, limit, parent.asked, parent.logprobs,
        parent.prompt_len, scored=parent.scored, seen=list(base), checked=kept,
    )  # fmt: skip
    world.add(track)


def _kept(parent: Track, at: int) -> int:
    first, last = parent.prompt_len, len(parent.seen)
    return (last, first, (first + last) // 2, max(first, last - 1))[at]


def _phase(track: Track) -> str:
    request = track.request
    waits = "preempted" if request.pending else "waiting"
    return waits if request.progress == "waiting" else str(request.progress)


def _flushed_by_fork(world: World, parent: Track, kept: int) -> None:
    """A fork of all that a slot has processed writes what is due there."""
    seated = world.model.of(parent.request)
    if seated is not None and parent.request.pending and kept == len(parent.seen):
        world.model.flush(seated)


def rewind(world: World, pick: int, to: int, seed: int) -> None:
    """Back to a retained position. seed: 0 the same."""
    track = _of(world.having(lambda request: bool(request.output)), pick)
    request, model = track.request, world.model
    seated = model.of(request)
    if seated is not None:
        model.flush(seated)
    own = tuple(track.seen[: request.target_len])
    kept = {len(text) for text in model.published() | model.due if own[: len(text)] == text}
    positions = sorted(position for position in kept if position >= track.prompt_len) or [track.prompt_len]
    position, new_seed = positions[-1 - to % len(positions)], SAMPLING[seed][1] if seed else None
    phase = _phase(track)
    try:
        request.rewind(position, new_seed)
    except QueueFull:
        holds(
            request.finished and len(world.unfinished()) - len(world.running()) >= world.setup.max_queue, "queue full"
        )
        return
    except NotRetained:
        holds(position not in kept or world.before.lost() or world.before.host, f"{position} cannot be gone back to")
        world.tally.hit("rewind refused")
        return
    model.settle()
    same("waiting tokens after a rewind", request.tokens, track.seen[:position])
    track.back_to(position, new_seed)
    world.tally.hit(f"rewound: {phase}")


def _of(tracks: list[Track], pick: int) -> Track:
    """Those not finished first, of these the newest."""
    ordered = sorted(tracks, key=lambda track: (track.request.finished, -track.request.id))
    return ordered[pick % len(ordered)]
