"""Checkpoints: what they hold, and what resumes from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from codegen.verify.cases import Case, grid, junction
from codegen.verify.content import first_difference, parts, stored_content
from codegen.verify.modes import Mode, Session, Trace
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.probe import Replay
from codegen.verify.report import Finding
from codegen.verify.subject import Subject, extension, processed
from codegen.verify.tokens import draft_difference, typical_drafts
from runtime.checkpoints.checkpoint import Key
from runtime.checkpoints.retention import prefix_digests, retained, worth_keeping

Differences = list[tuple[int, Finding]]


@dataclass
class Resumes:
    """What one engine with checkpoints did with every case: cold, again, extended. Differences by case.

    texts: all that it has processed so far, request by request.
    """

    mode: Mode
    texts: list[tuple[int, ...]] = field(default_factory=list)
    contents: Differences = field(default_factory=list)
    retention: Differences = field(default_factory=list)
    again: Differences = field(default_factory=list)
    extended: Differences = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)


def resumes(subject: Subject) -> Resumes:
    """Run every case on one engine: once, again, and extended by the first half of its answer. Raises RunFailed."""
    mode = Mode("resumed", drafts=typical_drafts(subject), drafting=True, checkpoints=True)
    result, known = Resumes(mode), _texts(subject)
    with subject.session(mode) as session:
        origins = Origins(session)
        for i in range(len(subject.cases)):
            _resume(subject, session, i, result)
            _contents(subject, session, known, result)
    result.origins = origins.counts
    return result


def _resume(subject: Subject, session: Session, i: int, result: Resumes) -> None:
    """One case three times."""
    case, cold = subject.cases[i], subject.cold[i].trace
    expected = _longest(session, case)
    if not expected:
        _forget(session)
    first = _ask(session, case, i, result)
    result.extended += _resumed(case, i, cold, first, session, expected, "extended")
    again = _ask(session, case, i, result)
    result.again += _resumed(case, i, cold, again, session, len(case.prompt), "resumed")
    if subject.drafting and (found := draft_difference(subject, "resumed", session.mode, i, again)) is not None:
        result.again.append((i, found))
    longer, tail = extended(case, cold), replace(cold, tokens=subject.cold[i].answer[extension(case) :])
    expected = _longest(session, longer)
    more = _ask(session, longer, i, result)
    result.extended += _resumed(longer, i, tail, more, session, expected, "extended")
    result.compared["again"] += len(again.tokens)
    result.compared["extended"] += len(more.tokens) + len(first.tokens)


def _ask(session: Session, case: Case, i: int, result: Resumes) -> Trace:
    """Run a case, and compare what it published with what retention keeps."""
    before = {checkpoint.key for checkpoint in session.engine.scheduler.cache}
    trace = session.ask(case, i)
    result.retention += _retention(session, case, i, before, result.texts, trace)
    result.texts.append(processed(case, trace))
    return trace


class Origins:
    """Counts how checkpoints came about: written by a prefill, by the step that passed them, or by a save."""

    def __init__(self, session: Session) -> None:
        self.counts: Counter[str] = Counter()
        self._written, self._store = 0, session.engine.scheduler.cache
        self._last: str = ""
        session.probe.before.append(self)

    def __call__(self, replay: Replay) -> None:
        """What was published since the replay before this one is of that replay's phase."""
        written = self._store.counts.written
        if self._last and written > self._written:
            self.counts[self._last] += written - self._written
        self._written, self._last = written, str(replay.phase.value)


def _texts(subject: Subject) -> dict[Key, tuple[int, int]]:
    """(case, position) by the key that a checkpoint of its text has there."""
    found: dict[Key, tuple[int, int]] = {}
    for i, case in enumerate(subject.cases):
        tokens = [*case.prompt, *subject.cold[i].trace.tokens]
        for key in prefix_digests(tokens, subject.cold[i].contents):
            found.setdefault(key, (i, key[0]))
    return found


def _unfolded(subject: Subject) -> set[Key]:
    """Where extensions by a whole answer end: cold runs sample its last token and fold it no more."""
    whole = [i for i, case in enumerate(subject.cases) if extension(case) == case.new_tokens]
    texts = [[*subject.cases[i].prompt, *subject.cold[i].trace.tokens] for i in whole]
    return {key for text in texts for key in prefix_digests(text, [len(text)])}


def _contents(subject: Subject, session: Session, known: dict[Key, tuple[int, int]], result: Resumes) -> None:
    """Compare every published checkpoint with the cold content of its prefix; also those that were resumed from."""
    buffers, executor = session.engine.buffers, session.engine.scheduler.executor
    chosen = parts(buffers.plan, executor.drafting)
    chosen_cold = {part.buffer: at for at, part in enumerate(subject.parts)}
    for checkpoint in session.engine.scheduler.cache:
        if checkpoint.key not in known:
            if checkpoint.key not in _unfolded(subject):
                detail = "a checkpoint of a text that no cold run has"
                unknown = Finding("checkpoints", ("cold", result.mode.name), checkpoint.position, "", "", detail)
                result.retention.append((0, unknown))
            continue
        i, position = known[checkpoint.key]
        cold = subject.cold[i].contents[position]
        cold = replace(cold, values=tuple(cold.values[chosen_cold[part.buffer]] for part in chosen))
        found = stored_content(buffers, chosen, checkpoint)
        result.compared["contents"] += sum(value.numel() for value in found.values)
        result.compared["checkpoints"] += 1
        difference = first_difference(chosen, cold, found)
        if difference is not None:
            part, detail = difference.part, f"{subject.cases[i]}: {difference.detail}"
            name = part.checkpoint or part.buffer
            modes = ("cold", result.mode.name)
            result.contents.append((i, Finding("checkpoints", modes, position, part.layer, name, detail)))


def _retention(
    session: Session, case: Case, i: int, before: set[Key], texts: list[tuple[int, ...]], trace: Trace
) -> Iterator[tuple[int, Finding]]:
    """Published are exactly the prefixes that retention keeps, unless the pool was too small for all of them.

    before: those that were there already; texts: what was processed before.
    """
    store = session.engine.scheduler.cache
    if store.counts.evicted or store.counts.skipped:
        return
    kept = _kept(session, case, trace.restored, _junctions(session, case, before, texts))
    wanted = set(prefix_digests([*case.prompt, *trace.tokens], kept)) - before
    found = {checkpoint.key for checkpoint in store} - before
    if found != wanted and len(wanted) <= store.capacity:
        position = min(found ^ wanted)[0]
        detail = f"{case}: checkpoints at {_positions(found)}, retention keeps {_positions(wanted)}"
        yield i, Finding("checkpoints", ("retention", "published"), position, "", "", detail)


def _kept(session: Session, case: Case, restored: int, junctions: list[int]) -> list[int]:
    """Positions after `restored` that a case keeps: grid, prompt end, junctions, answer end."""
    limits, committed = session.engine.package.plan.limits, len(case.prompt) + case.new_tokens - 1
    points = [*junctions, committed]
    return retained(len(case.prompt), limits.checkpoint_interval, limits.page_size, committed, restored, points)


def _junctions(session: Session, case: Case, before: set[Key], texts: list[tuple[int, ...]]) -> list[int]:
    """Where the prompt leaves the texts processed before it, if that is far enough from what is kept before."""
    limits, leaves = session.engine.package.plan.limits, junction(case.prompt, texts)
    if leaves is None:
        return []
    on_grid = leaves // grid(limits) * grid(limits)
    above = [position for position, _ in before & set(prefix_digests(case.prompt, range(1, leaves + 1)))]
    return [leaves] if worth_keeping(leaves, max(on_grid, *above, 0), limits.page_size) else []


def _positions(keys: set[Key]) -> list[int]:
    return sorted(position for position, _ in keys)


def _forget(session: Session) -> None:
    """Evict everything, so that the pool is large enough for what the next case publishes."""
    store = session.engine.scheduler.cache
    while store.evict():
        store.counts.evicted -= 1


def extended(case: Case, cold: Trace) -> Case:
    """The case with the first half of its answer as part of the prompt."""
    count = extension(case)
    return replace(case, prompt=case.prompt + cold.tokens[:count], new_tokens=max(1, case.new_tokens - count))


def _longest(session: Session, case: Case) -> int:
    """The longest published prefix of a prompt, found by comparing tokens with keys one by one."""
    keys = {checkpoint.key for checkpoint in session.engine.scheduler.cache}
    tokens = list(case.prompt)
    return max((p for p, digest in prefix_digests(tokens, range(len(tokens) + 1)) if (p, digest) in keys), default=0)


def _resumed(
    case: Case, i: int, cold: Trace, trace: Trace, session: Session, restored: int, name: str
) -> Iterator[tuple[int, Finding]]:
    """Resumed at exactly `restored`, nothing before it run again, and the same tokens."""
    start = len(case.prompt)
    if (trace.restored, trace.prefilled) != (restored, start - restored):
        detail = f"{case}: resumed at {trace.restored}, {trace.prefilled} tokens run; a checkpoint is at {restored}"
        yield i, Finding(name, ("cold", session.mode.name), restored, "", "", detail)
    count = len(trace.tokens)
    if trace.tokens != cold.tokens[:count] or count < min(case.new_tokens, len(cold.tokens)):
        at = next((k for k in range(count) if trace.tokens[k : k + 1] != cold.tokens[k : k + 1]), count)
        detail = f"{case}: tokens {list(trace.tokens[at : at + 3])} instead of {list(cold.tokens[at : at + 3])}"
        yield i, Finding(name, ("cold", session.mode.name), start + at, "", "", detail)


def check_checkpoints(result: Resumes) -> Outcome:
    """Every published checkpoint holds, in bits, what a cold engine holds after the same tokens."""
    found = [*result.contents, *result.retention]
    how = ", ".join(f"{count} by {origin}" for origin, count in sorted(result.origins.items()))
    detail = f"{result.compared['checkpoints']} checkpoints, written {how or 'by none'}"
    return _outcome(result, found, result.compared["contents"], detail, "values")


def check_again(result: Resumes) -> Outcome:
    """The same prompt again is restored at its end, recomputes nothing and answers the same."""
    return _outcome(result, result.again, result.compared["again"], "0 tokens recomputed", "tokens")


def check_extended(result: Resumes) -> Outcome:
    """An extension of a prompt recomputes only what is new, and answers the same."""
    return _outcome(result, result.extended, result.compared["extended"], "only the extension recomputed", "tokens")


def _outcome(result: Resumes, found: Differences, compared: int, detail: str, unit: str) -> Outcome:
    suspect = Suspect(result.mode, found[0][0]) if found else None
    return Outcome(compared, [finding for _, finding in found], "" if found else detail, unit, suspect)
