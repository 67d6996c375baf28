"""Properties of tokens and drafts: the same ones, whatever the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def with_drafts(drafts: int) -> Mode:
    """K drafts in every step."""
    return Mode(f"K = {drafts}", drafts, drafting=True)


def changing(most: int) -> Mode:
    """K changed before every step."""
    return Mode("K changing", schedule=tuple(min(drafts, most) for drafts in (1, 3, 0, 2, 7, 1)), drafting=True)


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
    buckets = sorted(subject.buckets[mode])
    return replace(outcome, detail=", ".join([f"buckets {' '.join(map(str, buckets))}", outcome.detail]).strip(", "))


def check_cut(subject: Subject, name: str, mode: Mode) -> Outcome:
    """Answers cut by a stop token, or by the limit, end there: at any draft of a step."""
    compared, findings, suspect = 0, [], None
    with subject.session(mode) as session:
        for i, cut, tokens, reason in _cuts(subject):
            trace = session.ask(cut, i)
            compared += len(trace.tokens)
            if (trace.tokens, trace.finish_reason) != (tokens, reason):
                suspect = suspect or Suspect(mode, i)
                end = f"{len(trace.tokens)} tokens to the {trace.finish_reason}, not {len(tokens)} to the {reason}"
                position = len(cut.prompt) + _first(tokens, trace.tokens)
                findings.append(Finding(name, ("cold", mode.name), position, "", "", f"{cut}: {end}"))
    return Outcome(compared, findings, suspect=suspect)


def _cuts(subject: Subject) -> Iterator[tuple[int, Case, tuple[int, ...], str]]:
    """(case, the same cut short, its answer, its finish reason): by a token in it, and a little before its end."""
    for i, case in enumerate(subject.cases):
        answer = subject.cold[i].trace.tokens
        stop = answer[case.new_tokens * (i % 3 + 1) // 4]
        yield i, replace(case, stop_tokens=(stop,)), answer[: answer.index(stop) + 1], "stop"
        limit = max(1, case.new_tokens - 1 - i % 3)
        yield i, replace(case, new_tokens=limit), answer[:limit], "limit"


def check_drafts(subject: Subject, name: str, mode: Mode) -> Outcome:
    """Drafts depend only on the prefix they follow; how many are accepted, on them and the answer."""
    compared, findings, suspect = 0, [], None
    for i, trace in subject.answers(mode):
        compared += sum(len(step.drafts) + 1 for step in trace.steps)
        found = draft_difference(subject, name, mode, i, trace)
        if found is not None:
            suspect = suspect or Suspect(mode, i)
            findings.append(found)
    return Outcome(compared, findings[:SHOWN], unit="drafts", suspect=suspect)


def draft_difference(subject: Subject, name: str, mode: Mode, i: int, trace: Trace) -> Finding | None:
    """The first step of a trace that drafts or accepts what it should not."""
    drafts, case = subject.drafts[i], subject.cases[i]
    for step in trace.steps:
        expected = drafts.get(step.after, step.drafts)[: len(step.drafts)]
        wanted = _accepted(subject, i, step)
        at, buffer, detail = step.position, "num_accepted", f"{step.accepted} tokens accepted instead of {wanted}"
        if step.accepted == wanted and step.drafts != expected:
            at, buffer, detail = step.after, "tokens", f"drafts {list(step.drafts)} instead of {list(expected)}"
        if step.accepted != wanted or step.drafts != expected:
            return Finding(name, ("drafting", mode.name), at, "", buffer, f"{case}: {detail}")
    return None


def _accepted(subject: Subject, i: int, step: Step) -> int:
    """How many tokens a step has to accept: the drafts that the answer begins with, and one; no more than are asked."""
    case, answer = subject.cases[i], subject.cold[i].trace.tokens
    made = subject.drafts[i].get(step.position, ())[: max(0, step.verified)]
    follows = answer[step.position + 1 - len(case.prompt) :]
    equal = _first(made, follows[: len(made)])
    return 1 if step.verified < 0 else min(equal + 1, len(follows))


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


def _first(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Index of the first difference of two answers."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _at(tokens: tuple[int, ...], index: int) -> int | str:
    return tokens[index] if index < len(tokens) else "the end"
