"""The package computes what its spec means: logits, hidden states and drafts beside the fp32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from codegen.verify.modes import Session
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.plain import Chain, Plain
from codegen.verify.probe import Replay
from codegen.verify.report import Finding
from codegen.verify.subject import COLD, Subject
from codegen.verify.tokens import SHOWN, with_drafts
from codegen.verify.tolerance import allowed, error
from dsl.reference.sampling import choose, gumbel
from runtime.executor import Phase

MOST_TEXT = 120  # tokens of a text beside the reference, which runs token by token
MOST_CASES = 3
MOST_CHAINS = 12


def referenced(subject: Subject) -> list[int]:
    """The cases that the reference runs: one long text, and a short one of each other temperature."""
    cases = subject.cases
    by_length = sorted(range(len(cases)), key=lambda i: len(cases[i].prompt) + cases[i].new_tokens)
    fitting = [i for i in by_length if len(cases[i].prompt) + cases[i].new_tokens <= MOST_TEXT] or by_length[:1]
    chosen = {cases[fitting[-1]].temperature: fitting[-1]}
    for i in fitting:
        chosen.setdefault(cases[i].temperature, i)
    return [*chosen.values()][:MOST_CASES]


def plain(subject: Subject, case: int) -> Plain:
    """The reference over the text of a cold run."""
    tokens = [*subject.cases[case].prompt, *subject.cold[case].trace.tokens]
    return Plain(subject.spec, subject.weights, tokens)


@dataclass(frozen=True)
class Rows:
    """What one text gave at some positions: by the package, by the fp32 reference, by plain PyTorch in bf16."""

    case: int
    positions: list[int]
    found: Tensor
    exact: Tensor
    rough: Tensor


def limit_of(texts: Sequence[Rows]) -> float:
    """The error allowed in all texts together: of a single one the largest is a matter of luck."""
    return allowed(torch.cat([rows.rough for rows in texts]), torch.cat([rows.exact for rows in texts]))


def check_target(subject: Subject, name: str, references: dict[int, Plain]) -> Outcome:
    """Hidden states and logits are within tolerance; tokens are the reference's unless it is undecided between them."""
    hidden = [_rows(i, subject.cold[i].hidden, p.target.hidden, p.target_bf16.hidden) for i, p in references.items()]
    logits = [_rows(i, subject.cold[i].logits, p.target.logits, p.target_bf16.logits) for i, p in references.items()]
    findings, suspects, worst = list[Finding](), list[int](), 0.0
    for what, texts in (("hidden states", hidden), ("logits", logits)):
        limit = limit_of(texts)
        for rows in texts:
            far = (rows.found - rows.exact).abs().amax(-1)
            worst = max(worst, float(far.max()) / limit)
            if not bool((far <= limit).all()):
                at = int(torch.nonzero(~(far <= limit))[0])
                text = f"{subject.cases[rows.case]}: {what} are {float(far[at]):.3g} off, {limit:.3g} is allowed"
                findings.append(Finding(name, ("reference", COLD.name), rows.positions[at], "head", "", text))
                suspects.append(rows.case)
    undecided, wrong = _tokens(subject, name, logits)
    suspects += [case for case, _ in wrong]
    findings += [finding for _, finding in wrong]
    detail = f"largest error {100 * worst:.0f} % of what is allowed, {undecided} tokens differ within it"
    compared = sum(rows.found.numel() for rows in [*hidden, *logits])
    suspect = Suspect(COLD, suspects[0]) if suspects else None
    return Outcome(compared, findings[:SHOWN], detail, "values", suspect)


def _rows(case: int, found: dict[int, Tensor], exact: Tensor, rough: Tensor) -> Rows:
    """Of the positions that both have. exact, rough: [1, n, ...]."""
    at = sorted(position for position in found if position < exact.shape[1])
    return Rows(case, at, torch.stack([found[position] for position in at]), exact[0, at], rough[0, at])


def _tokens(subject: Subject, name: str, logits: list[Rows]) -> tuple[int, list[tuple[int, Finding]]]:
    """How many tokens differ where the reference is undecided, and (case, finding) of those it is decided about."""
    undecided, wrong, margin = 0, [], 2 * limit_of(logits)
    for rows in logits:
        case, tokens = subject.cases[rows.case], subject.cold[rows.case].trace.tokens
        for row, scores in zip(rows.positions[: len(tokens)], rows.exact, strict=False):
            token = tokens[row + 1 - len(case.prompt)]
            gap = score_gap(scores, token, case.temperature, case.seed, row + 1)
            undecided += 0 < gap <= margin
            if gap > margin:
                text = f"{case}: token {token} is {gap:.3g} below the reference's choice, {margin:.3g} is allowed"
                wrong.append((rows.case, Finding(name, ("reference", COLD.name), row + 1, "head", "targets", text)))
    return undecided, wrong


def score_gap(logits: Tensor, token: int, temperature: float, seed: int, position: int) -> float:
    """How much the reference prefers its own token to `token`, in units of logits; 0 if it chooses the same."""
    if int(choose(logits, temperature, seed, position)) == token:
        return 0.0
    scores = logits if temperature == 0.0 else logits + temperature * gumbel(seed, position, logits.shape[-1])
    return float(scores.max() - scores[token])


class DraftLogits:
    """A hook that keeps the drafter's last logits of every begin and step, by the position it drafts from."""

    def __init__(self, session: Session) -> None:
        self.buffers, self.rows = session.engine.buffers, dict[int, Tensor]()

    def __call__(self, replay: Replay) -> None:
        """After a replay of one slot."""
        if replay.phase in (Phase.BEGIN, Phase.STEP) and replay.next_drafts:
            self.rows[int(self.buffers["committed_len"][replay.slots[0]])] = self.buffers["logits"][0].clone()


def check_drafter(subject: Subject, name: str, references: dict[int, Plain]) -> Outcome:
    """Each draft is the reference drafter's, given the drafts before it, or in tolerance of it; so are its logits."""
    mode = with_drafts(subject.package.plan.limits.max_drafts)
    with subject.session(mode) as session:
        drafted = [_drafted(subject, session, i, reference) for i, reference in references.items()]
    texts = [text for text in drafted if text is not None]
    if not texts:
        return Outcome(0, [], "no text is long enough", "drafts")
    limit = limit_of([rows for rows, _ in texts])
    findings, compared, same, worst, suspect = list[Finding](), 0, 0, 0.0, None
    for rows, chains in texts:
        case, logits = subject.cases[rows.case], iter(rows.exact)
        for chain, found in zip(chains, rows.found[_last_rows(chains)], strict=True):
            mine = [next(logits) for _ in chain.drafts]
            gaps = [
                score_gap(scores, draft, case.temperature, case.seed, chain.position + 1 + k)
                for k, (draft, scores) in enumerate(zip(chain.drafts, mine, strict=True))
            ]
            far = error(found, mine[-1])
            compared, same = compared + len(gaps), same + sum(gap == 0.0 for gap in gaps)
            worst = max(worst, far / limit)
            if not (far <= limit and max(gaps) <= 2 * limit):
                suspect = suspect or Suspect(mode, rows.case)
                text = f"{case}: drafts {list(chain.drafts)}, logits {far:.3g} off, {limit:.3g} is allowed"
                findings.append(Finding(name, ("reference", mode.name), chain.position, "mtp head", "tokens", text))
    detail = f"{same} of {compared} equal, others in tolerance; largest error {100 * worst:.0f} % of it"
    return Outcome(compared, findings[:SHOWN], "" if findings else detail, "drafts", suspect)


def _drafted(subject: Subject, session: Session, i: int, reference: Plain) -> tuple[Rows, list[Chain]] | None:
    """Run a case; its chains of drafts, and their logits: one row per draft, of the package only that of the last."""
    kept = DraftLogits(session)
    session.probe.after[:] = [kept]
    trace = session.ask(subject.cases[i], i)
    chains = [Chain(step.after, step.drafts) for step in trace.steps if step.drafts]
    chains = [chain for chain in chains if chain.position < reference.tokens.shape[1]]
    chains = chains[:: max(1, len(chains) // MOST_CHAINS)]
    if not chains:
        return None
    exact, rough = torch.cat(reference.chains(chains, exact=True)), torch.cat(reference.chains(chains, exact=False))
    found = torch.full_like(exact, float("nan"))
    found[_last_rows(chains)] = torch.stack([kept.rows[chain.position] for chain in chains])
    return Rows(i, [chain.position for chain in chains], found, exact, rough), chains


def _last_rows(chains: list[Chain]) -> list[int]:
    """The row of each chain's last draft, where all drafts lie one after the other."""
    return [end - 1 for end in accumulate(len(chain.drafts) for chain in chains)]
