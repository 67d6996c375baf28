"""Properties of tokens and drafts: the same ones, whatever the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from codegen.verify.cases import Case
from codegen.verify.modes import Answers, Mode, Trace
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.probe import Step
from codegen.verify.report import Finding
from codegen.verify.subject import Subject

CHUNKED = Mode("chunked prefill", eager=True, one_thread=True)
THREADS = Mode("all threads", eager=True)
REPLAY = Mode("graph replay")
SHOWN = 4


def with_drafts(drafts: int, eager: bool = False) -> Mode:
    """K drafts in every step."""
    return Mode(f"K = {drafts}" + (", eager" if eager else ""), drafts=drafts, eager=eager, drafting=True)


def changing(most: int, eager: bool = False) -> Mode:
    """K changed before every step."""
    schedule = tuple(min(drafts, most) for drafts in (1, 3, 0, 2, 7, 1))
    return Mode("K changing" + (", eager" if eager else ""), schedule=schedule, drafting=True, eager=eager)


def batched(drafts: int, poison: bool = False) -> Mode:
    """Waves of requests for every bucket."""
    name = f"batched, K = {drafts}" + (", poisoned" if poison else "")
    return Mode(name, drafts=drafts, together=True, poison=poison, drafting=True)


def typical_drafts(subject: Subject) -> int:
    """K of the modes that want one."""
    return min(3, subject.package.plan.limits.max_drafts)


def check_tokens(subject: Subject, name: str, mode: Mode) -> Outcome:
    """All answers in a mode are those of the cold runs."""
    cold = [run.trace for run in subject.cold]
    answers = subject.answers(mode)
    found = list(token_differences(name, mode.name, subject.cases, cold, answers))
    verified = [step for _, trace in answers for step in trace.steps if step.verified > 0]
    detail = ""
    if verified:
        accepted, proposed = sum(s.accepted - 1 for s in verified), sum(s.verified for s in verified)
        detail = f"{accepted} of {proposed} drafts accepted"
    return Outcome(
        sum(len(trace.tokens) for _, trace in answers),
        [finding for _, finding in found],
        detail,
        suspect=Suspect(mode, found[0][0]) if found else None,
    )


def check_batched(subject: Subject, name: str, mode: Mode) -> Outcome:
    """The same, of requests that run together, join and leave."""
    outcome = check_tokens(subject, name, mode)
    buckets = sorted(subject.ran(mode).buckets)
    return replace(outcome, detail=", ".join([f"buckets {' '.join(map(str, buckets))}", outcome.detail]).strip(", "))


def check_cut(subject: Subject, name: str, mode: Mode) -> Outcome:
    """Answers cut by a stop token, or by the limit, end there: at any draft of a step."""
    session, findings, compared, suspect = subject.session(mode), [], 0, None
    for i, case in enumerate(subject.cases):
        cold = subject.cold[i].trace.tokens
        at = case.new_tokens * (i % 3 + 1) // 4
        stop = cold[at]
        stopped = cold[: cold.index(stop) + 1]
        limited = max(1, case.new_tokens - 1 - i % 3)
        for cut, tokens, reason in (
            (replace(case, stop_tokens=(stop,)), stopped, "stop"),
            (replace(case, new_tokens=limited), cold[:limited], "limit"),
        ):
            trace = session.ask(cut, i)
            compared += len(trace.tokens)
            if (trace.tokens, trace.finish_reason) != (tokens, reason):
                suspect = suspect or Suspect(mode, i)
                end = f"{len(trace.tokens)} tokens to the {trace.finish_reason}, not {len(tokens)} to the {reason}"
                at_token = len(case.prompt) + _first(tokens, trace.tokens)
                findings.append(Finding(name, ("cold", mode.name), at_token, "", "", f"{case}: {end}"))
    return Outcome(compared, findings, suspect=suspect)


def check_drafts(subject: Subject, name: str, mode: Mode, other: Mode) -> Outcome:
    """Drafts, and how many were accepted, are the same in two modes, step by step."""
    expected = {i: trace.steps for i, trace in subject.answers(other)}
    compared, findings, suspect = 0, [], None
    for i, trace in subject.answers(mode):
        compared += sum(len(step.drafts) + 1 for step in trace.steps)
        difference = step_difference(expected[i], trace.steps)
        if difference is not None:
            suspect = suspect or Suspect(mode, i)
            position, buffer, detail = difference
            text = f"{subject.cases[i]}: {detail}"
            findings.append(Finding(name, (other.name, mode.name), position, "", buffer, text))
    return Outcome(compared, findings[:SHOWN], unit="drafts", suspect=suspect)


def token_differences(
    name: str, mode: str, cases: list[Case], expected: list[Trace], answers: Answers
) -> Iterable[tuple[int, Finding]]:
    """(case, finding) of each answer that differs from the expected one."""
    for i, trace in answers:
        wanted = expected[i].tokens
        if trace.tokens != wanted:
            at = _first(wanted, trace.tokens)
            detail = f"{cases[i]}: token {_at(trace.tokens, at)} instead of {_at(wanted, at)}"
            yield i, Finding(name, ("cold", mode), len(cases[i].prompt) + at, "", "", detail)


def step_difference(expected: tuple[Step, ...], found: tuple[Step, ...]) -> tuple[int, str, str] | None:
    """(position, buffer, what) of the first step that differs."""
    for a, b in zip(expected, found, strict=False):
        if (a.position, a.verified, a.accepted) != (b.position, b.verified, b.accepted):
            return b.position, "num_accepted", f"{_counts(b)}, not {_counts(a)}"
        if a.drafts != b.drafts:
            return b.position, "tokens", f"drafts {list(b.drafts)} instead of {list(a.drafts)}"
    if len(expected) != len(found):
        return found[-1].position if found else 0, "num_accepted", f"{len(found)} steps instead of {len(expected)}"
    return None


def _counts(step: Step) -> str:
    return f"{step.accepted} tokens accepted of {step.verified} drafts at {step.position}"


def _first(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Index of the first difference of two answers."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _at(tokens: tuple[int, ...], index: int) -> int | str:
    return tokens[index] if index < len(tokens) else "the end"
