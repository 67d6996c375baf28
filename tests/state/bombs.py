"""A KeyboardInterrupt at a call of any part of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from runtime.engine import Engine

POINTS = (
    *("executor.prefill", "executor.replay", "executor.begin", "executor.save", "executor.restore", "executor.admit"),
    *("executor.arm", "executor.disarm", "executor.set_pages", "executor.score", "emitter.rows", "emitter.publish"),
    *("emitter.hold", "emitter.flush", "emitter.finish", "admission.seat", "admission.make_room", "admission.leave"),
    *("cache.publish", "cache.reserve", "cache.take_page", "cache.learn", "cache.hold", "cache.drop", "cache.evict"),
    *("cache.touch", "cache.pages.share", "cache.pages.drop", "cache.pages.take", "seats.admit", "seats.leave"),
    *("seats.begin_decoding", "queue.push", "queue.push_front", "queue.served", "roster.finish", "roster.enter"),
    *("roster.let_go", "roster.release_children", "tiers.fetch", "tiers.bring", "tiers.adopt", "tiers.offer"),
    *("tiers.demote", "tiers.collect", "tiers.device.load", "tiers.device.image", "tiers.host.put", "tiers.host.drop"),
)


class Bomb:
    """Goes off at the `number`-th call, before its work or after it."""

    def __init__(self, number: int, after: bool) -> None:
        self.number, self.after, self.calls, self.gone_off = number, after, 0, False

    def call(self, method: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> object:
        """The method, or its end."""
        self.calls += 1
        due = self.calls == self.number
        if due and not self.after:
            self._go_off()
        result = method(*arguments, **options)
        if due and self.after:
            self._go_off()
        return result

    def _go_off(self) -> None:
        self.gone_off = True
        raise KeyboardInterrupt


@contextmanager
def planted(engine: Engine, point: str, bomb: Bomb) -> Iterator[None]:
    """Inside, the method at this path from the scheduler has a bomb; nothing if there is no such part."""
    path, _, name = point.rpartition(".")
    owner = attrgetter(path)(engine.scheduler)
    if owner is None:
        yield
        return
    method, own = getattr(owner, name), vars(owner).get(name)
    vars(owner)[name] = lambda *arguments, **options: bomb.call(method, arguments, options)
    try:
        yield
    finally:
        del vars(owner)[name]
        if own is not None:
            vars(owner)[name] = own
