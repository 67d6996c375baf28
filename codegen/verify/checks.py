"""The properties of a package: which checks there are, in which modes, in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from codegen.verify.isolation import check_one_replay, check_padding
from codegen.verify.modes import Mode
from codegen.verify.outcome import Outcome
from codegen.verify.plain import Plain
from codegen.verify.reference import check_drafter, check_target, plain, referenced
from codegen.verify.states import Resumes, check_again, check_checkpoints, check_extended, resumes
from codegen.verify.static import check_launches, check_plan
from codegen.verify.subject import Subject
from codegen.verify.tokens import (
    CHUNKED,
    REPLAY,
    THREADS,
    batched,
    changing,
    check_batched,
    check_cut,
    check_drafts,
    check_tokens,
    typical_drafts,
    with_drafts,
)

DRAFTS = (1, 3, 7)


@dataclass(frozen=True)
class Property:
    """A check to be made. name: short, for programs; title: what holds if it passes."""

    name: str
    title: str
    check: Callable[[], Outcome]


def properties(subject: Subject) -> Iterator[Property]:
    """All that is to be checked of a package; without a drafter, nothing about drafts."""
    yield Property("cold", "cold runs: eager, 1 thread, K = 0", lambda: _cold(subject))
    yield Property("plan", "the spec lowers to this plan", lambda: check_plan(subject))
    yield Property("launches", "launches are the plan's", lambda: check_launches(subject))
    yield from _same_tokens(subject)
    if subject.drafting:
        yield from _same_drafts(subject)
    yield from _states(subject)
    yield from _isolation(subject)
    yield from _reference(subject)


def _cold(subject: Subject) -> Outcome:
    """The runs that all others are compared with."""
    count = sum(len(run.trace.tokens) for run in subject.cold)
    return Outcome(count, [], f"{len(subject.cases)} prompts, token by token")


def _tokens(subject: Subject, name: str, title: str, mode: Mode) -> Property:
    return Property(name, title, lambda: check_tokens(subject, name, mode))


def _drafts(subject: Subject, name: str, title: str, mode: Mode) -> Property:
    return Property(name, title, lambda: check_drafts(subject, name, mode))


def _same_tokens(subject: Subject) -> Iterator[Property]:
    most = subject.package.plan.limits.max_drafts
    yield _tokens(subject, "chunked", "cold == prefilled in chunks", CHUNKED)
    if subject.threads > 1:
        yield _tokens(subject, "threads", f"cold == on {subject.threads} threads", THREADS)
    yield _tokens(subject, "replay", "cold == graph replay", REPLAY)
    if subject.drafting:
        for drafts in sorted({min(drafts, most) for drafts in DRAFTS}):
            yield _tokens(subject, f"drafts-{drafts}", f"cold == K = {drafts}", with_drafts(drafts))
        yield _tokens(subject, "drafts-changing", "cold == K changed between steps", changing(most))
    yield Property("cut", "cold == cut by stop tokens or limit", lambda: check_cut(subject, "cut", with_drafts(most)))
    together = batched(typical_drafts(subject))
    yield Property("batched", "cold == batched, joining, leaving", lambda: check_batched(subject, "batched", together))


def _same_drafts(subject: Subject) -> Iterator[Property]:
    most, typical = subject.package.plan.limits.max_drafts, typical_drafts(subject)
    for name, title, mode in (
        ("same-drafts-replay", "drafts, accepted: graph == eager", with_drafts(most)),
        ("same-drafts-changing", "drafts, accepted: K changing == alike", changing(most)),
        ("same-drafts-batched", "drafts, accepted: batched == alone", batched(typical)),
    ):
        yield _drafts(subject, name, title, mode)


def _states(subject: Subject) -> Iterator[Property]:
    @cache
    def resumed() -> Resumes:
        return resumes(subject)

    yield Property("checkpoints", "checkpoints == cold states", lambda: check_checkpoints(resumed()))
    yield Property("resumed", "cold == resumed, 0 tokens recomputed", lambda: check_again(resumed()))
    yield Property("extended", "cold == extension resumed", lambda: check_extended(resumed()))


def _isolation(subject: Subject) -> Iterator[Property]:
    poisoned = batched(typical_drafts(subject), poison=True)

    def poison() -> Outcome:
        outcome = check_tokens(subject, "poison", poisoned)
        return outcome if outcome.findings or not subject.drafting else check_drafts(subject, "poison", poisoned)

    yield Property("poison", "poison in what is free changes nothing", poison)
    yield Property("padding", "other slots and padding untouched", lambda: check_padding(subject, "padding"))
    yield Property("one-replay", "a step is one graph replay", lambda: check_one_replay(subject, "one-replay"))


def _reference(subject: Subject) -> Iterator[Property]:
    @cache
    def beside() -> dict[int, Plain]:
        return {i: plain(subject, i) for i in referenced(subject)}

    yield Property("reference", "target ~ fp32 reference", lambda: check_target(subject, "reference", beside()))
    if subject.drafting and subject.package.plan.has_drafter:
        name = "reference-drafts"
        yield Property(name, "drafts are the reference's", lambda: check_drafter(subject, name, beside()))
