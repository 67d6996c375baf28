"""All checks of a package, in order, each timed; a check that raises has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from codegen.verify.bisect import beside_reference, locate
from codegen.verify.cases import draw_cases, given_cases
from codegen.verify.errors import CannotVerify
from codegen.verify.isolation import check_one_replay, check_padding
from codegen.verify.modes import RunFailed
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.plain import Plain
from codegen.verify.reference import check_drafter, check_target, plain, referenced
from codegen.verify.report import Check, Finding, Report
from codegen.verify.states import Resumes, check_again, check_checkpoints, check_extended, resumes
from codegen.verify.static import check_files, check_launches, check_plan, open_checked
from codegen.verify.subject import Subject, encode, read_weights
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
from runtime.errors import PackageDamaged, RuntimeStateError

SEED = 0
PROMPTS = 8
NEW_TOKENS = 24
DRAFTS = (1, 3, 7)
Prompts = int | Sequence[str | bytes | Sequence[int]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Property:
    """A check that is still to be made."""

    name: str
    title: str
    check: Callable[[], Outcome]


def verify_package(
    directory: str | Path,
    weights: str | Path | None = None,
    *,
    prompts: Prompts = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    seed: int = SEED,
    target: str | None = None,
    bisect: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Prove on this machine that the bits of a token depend only on its prefix, its seed and the build.

    weights: a safetensors file; None takes seeded random ones. prompts: how many to draw, or the prompts. new_tokens: per
    prompt. bisect: name the first buffer that differs where a check fails. progress(title, done, total): before each check.
    Raises CannotVerify for what cannot be verified at all: no package, weights of another model.
    """
    start, directory = perf_counter(), Path(directory)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch only compares and copies here; its threads would compete with the kernels'
    try:
        files = timed(Property("files", "the manifest's files are unchanged", lambda: check_files(directory)))
        if not files.passed:
            return Report(str(directory), "", "", (files,), perf_counter() - start)
        subject, label = open_subject(directory, weights, prompts, new_tokens, seed, target)
        todo = list(properties(subject))
        done = [files]
        for number, item in enumerate(todo):
            if progress is not None:
                progress(item.title, number, len(todo))
            done.append(timed(item, subject if bisect else None))
    finally:
        torch.set_num_threads(threads)
    return Report(str(directory), subject.package.plan.target, label, tuple(done), perf_counter() - start)


def open_subject(
    directory: Path, weights: str | Path | None, prompts: Prompts, new_tokens: int, seed: int, target: str | None
) -> tuple[Subject, str]:
    """The package with weights and cases, and what the weights are called. Raises CannotVerify."""
    if new_tokens < 1 or (isinstance(prompts, int) and prompts < 1):
        raise CannotVerify(detail="prompts and new tokens must be at least 1")
    try:
        subject = open_checked(directory, target)
    except PackageDamaged as error:
        raise CannotVerify(detail=str(error)) from error
    except RuntimeStateError as error:
        raise CannotVerify(detail=str(error)) from error
    subject.weights, label = read_weights(subject.package, subject.spec, Path(weights) if weights else None, seed)
    limits = subject.package.plan.limits
    if isinstance(prompts, int):
        subject.cases = draw_cases(limits, prompts, new_tokens, seed)
    else:
        subject.cases = given_cases(limits, encode(subject.package, prompts), new_tokens, seed)
    return subject, label


def properties(subject: Subject) -> Iterator[Property]:
    """What is to be checked of a package, in order. Without a drafter, nothing about drafts."""
    most = subject.package.plan.limits.max_drafts
    drafting = subject.package.plan.has_drafter and most > 0
    typical = typical_drafts(subject)
    alone, together, wiped = with_drafts(typical), batched(typical), batched(typical, poison=True)
    made: list[Resumes] = []
    references: dict[int, Plain] = {}

    def resumed() -> Resumes:
        if not made:
            made.append(resumes(subject))
        return made[0]

    def beside() -> dict[int, Plain]:
        references.update({i: plain(subject, i) for i in referenced(subject) if i not in references})
        return references

    def same(name: str, title: str, mode: object) -> Property:
        return Property(name, title, lambda: check_tokens(subject, name, mode))  # type: ignore[arg-type]

    yield Property("cold", "cold runs: eager, 1 thread, K = 0, token by token", lambda: _cold(subject))
    yield Property("plan", "lowering the spec again gives the same plan", lambda: check_plan(subject))
    yield Property("launches", "launches and arguments are the plan's", lambda: check_launches(subject))
    yield same("chunked", "cold == prefilled in chunks", CHUNKED)
    if subject.threads > 1:
        yield same("threads", f"cold == on {subject.threads} threads", THREADS)
    yield same("replay", "cold == graph replay", REPLAY)
    for drafts in sorted({min(drafts, most) for drafts in DRAFTS} if drafting else set()):
        yield same(f"drafts-{drafts}", f"cold == K = {drafts}", with_drafts(drafts))
    if drafting:
        yield same("drafts-changing", "cold == K changed between steps", changing(most))
    yield Property("cut", "answers cut by a stop token or the limit", lambda: check_cut(subject, "cut", with_drafts(most)))
    yield Property(
        "batched", "cold == batched, others joining and leaving", lambda: check_batched(subject, "batched", together)
    )
    if drafting:
        for name, title, mode, other in (
            ("same-drafts-replay", "drafts and acceptance: graph == eager", alone, with_drafts(typical, eager=True)),
            ("same-drafts-changing", "the same, K changing", changing(most), changing(most, eager=True)),
            ("same-drafts-batched", "drafts and acceptance: alone == batched", together, alone),
        ):
            yield Property(name, title, _drafts_check(subject, name, mode, other))
    yield Property("checkpoints", "checkpoints == cold state, bit by bit", lambda: check_checkpoints(subject, resumed()))
    yield Property("resumed", "cold == resumed, nothing recomputed", lambda: check_again(subject, resumed()))
    yield Property("extended", "cold == an extension resumed", lambda: check_extended(subject, resumed()))
    yield Property("poison", "poison in all that is free changes nothing", _poison_check(subject, wiped, alone, drafting))
    yield Property("padding", "others and padding stay untouched", lambda: check_padding(subject, "padding"))
    yield Property("one-replay", "a step is one graph replay", lambda: check_one_replay(subject, "one-replay"))
    yield Property(
        "reference", "target within tolerance of the reference", lambda: check_target(subject, "reference", beside())
    )
    if drafting:
        yield Property(
            "reference-drafts", "drafts are the reference's", lambda: check_drafter(subject, "reference-drafts", beside())
        )


def _cold(subject: Subject) -> Outcome:
    """The runs that all others are compared with."""
    return Outcome(sum(len(run.trace.tokens) for run in subject.cold), [], f"{len(subject.cases)} prompts")


def _drafts_check(subject: Subject, name: str, mode: object, other: object) -> Callable[[], Outcome]:
    return lambda: check_drafts(subject, name, mode, other)  # type: ignore[arg-type]


def _poison_check(subject: Subject, wiped: object, alone: object, drafting: bool) -> Callable[[], Outcome]:
    def check() -> Outcome:
        outcome = check_tokens(subject, "poison", wiped)  # type: ignore[arg-type]
        if outcome.findings or not drafting:
            return outcome
        return check_drafts(subject, "poison", wiped, alone)  # type: ignore[arg-type]

    return check


def timed(item: Property, subject: Subject | None = None) -> Check:
    """Make a check. subject: look closer where it fails. Only CannotVerify is passed on."""
    start = perf_counter()
    try:
        outcome = item.check()
    except CannotVerify:
        raise
    except RunFailed as failure:
        outcome = _broken(item.name, ("", failure.mode.name), failure.error, Suspect(failure.mode, failure.case))
    except Exception as error:
        outcome = _broken(item.name, ("", ""), error, None)
    findings = outcome.findings
    if findings and subject is not None:
        findings = [*closer(item.name, outcome.suspect, subject), *findings]
    seconds, passed = perf_counter() - start, not findings
    return Check(
        item.name, item.title, passed, outcome.compared, outcome.unit, seconds, outcome.detail, tuple(findings)
    )


def _broken(name: str, modes: tuple[str, str], error: Exception, suspect: Suspect | None) -> Outcome:
    """A check that could not be made to its end."""
    return Outcome(0, [Finding(name, modes, -1, "", "", f"{type(error).__name__}: {error}")], suspect=suspect)


def closer(name: str, suspect: Suspect | None, subject: Subject) -> list[Finding]:
    """Bisect a failed check."""
    if suspect is None:
        return []
    try:
        if name.startswith("reference"):
            return beside_reference(subject, name, suspect.case, plain(subject, suspect.case))
        return locate(subject, name, suspect)
    except Exception as error:
        return [Finding(name, ("", ""), -1, "", "", f"bisecting failed: {type(error).__name__}: {error}")]


__all__ = ["Property", "properties", "verify_package"]
