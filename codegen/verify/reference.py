"""The package computes what its spec means: logits, hidden states and drafts beside the fp32 reference."""

from __future__ import annotations

import torch
from torch import Tensor

from codegen.verify.modes import Session
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.plain import Chain, Plain
from codegen.verify.probe import Replay, Step
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


def check_target(subject: Subject, name: str, references: dict[int, Plain]) -> Outcome:
    """Hidden states and logits are within tolerance; tokens are the reference's unless it is undecided between them."""
    findings, compared, worst, undecided, suspect = [], 0, 0.0, 0, None
    for i, reference in references.items():
        case, cold = subject.cases[i], subject.cold[i]
        exact, rough = reference.target, reference.target_bf16
        rows = sorted(row for row in cold.logits if row < exact.logits.shape[1])
        at = sorted(row for row in cold.hidden if row < exact.hidden.shape[1])
        for what, positions, found, ref, bf16 in (
            ("hidden states", at, torch.stack([cold.hidden[p] for p in at]), exact.hidden[0, at], rough.hidden[0, at]),
            ("logits", rows, torch.stack([cold.logits[p] for p in rows]), exact.logits[0, rows], rough.logits[0, rows]),
        ):
            limit = allowed(bf16, ref)
            compared += found.numel()
            worst = max(worst, error(found, ref) / limit)
            if not error(found, ref) <= limit:
                far = (found - ref).abs().amax(-1)
                first = int(torch.nonzero(~(far <= limit))[0])
                text = f"{case}: {what} are {float(far[first]):.3g} from the reference, {limit:.3g} is allowed"
                findings.append(Finding(name, ("reference", COLD.name), positions[first], "head", "", text))
                suspect = suspect or Suspect(COLD, i)
        limit = allowed(rough.logits[0, rows], exact.logits[0, rows])
        for row in rows[: case.new_tokens]:
            token = cold.trace.tokens[row + 1 - len(case.prompt)]
            gap = score_gap(exact.logits[0, row], token, case.temperature, case.seed, row + 1)
            undecided += gap > 0
            if gap > 2 * limit:
                text = f"{case}: token {token} is {gap:.3g} below the reference's choice, {2 * limit:.3g} is allowed"
                findings.append(Finding(name, ("reference", COLD.name), row + 1, "head", "targets", text))
                suspect = suspect or Suspect(COLD, i)
    detail = f"largest error {100 * worst:.0f} % of what is allowed, {undecided} tokens differ within it"
    return Outcome(compared, findings[:SHOWN], detail, "values", suspect)


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
    most = subject.package.plan.limits.max_drafts
    mode = with_drafts(most)
    session = subject.session(mode)
    findings, compared, same, worst, suspect = [], 0, 0, 0.0, None
    for i, reference in references.items():
        case, kept = subject.cases[i], DraftLogits(session)
        session.probe.after[:] = [kept]
        trace = session.ask(case, i)
        chains = [c for c in map(_chain, trace.steps) if 0 < c.position < reference.tokens.shape[1] and c.drafts]
        chains = chains[:: max(1, len(chains) // MOST_CHAINS)]
        if not chains:
            continue
        exact, rough = reference.chains(chains, exact=True), reference.chains(chains, exact=False)
        limit = allowed(torch.cat(rough), torch.cat(exact))
        for chain, logits in zip(chains, exact, strict=True):
            found = kept.rows[chain.position]
            far = error(found, logits[-1])
            gaps = [
                score_gap(logits[k], draft, case.temperature, case.seed, chain.position + 1 + k)
                for k, draft in enumerate(chain.drafts)
            ]
            compared += len(gaps)
            same += sum(gap == 0.0 for gap in gaps)
            worst = max(worst, far / limit)
            if far <= limit and max(gaps) <= 2 * limit:
                continue
            suspect = suspect or Suspect(mode, i)
            text = f"{case}: drafts {list(chain.drafts)}, logits {far:.3g} from the reference, {limit:.3g} is allowed"
            findings.append(Finding(name, ("reference", mode.name), chain.position, "mtp head", "tokens", text))
    detail = f"{same} of {compared} equal, others in tolerance; largest error {100 * worst:.0f} % of it"
    return Outcome(compared, findings[:SHOWN], "" if findings else detail, "drafts", suspect)


def _chain(step: Step) -> Chain:
    """Drafts of a step follow the token at its committed_len, which the step has advanced; a begin has not."""
    return Chain(step.position + (step.accepted if step.verified >= 0 else 0), step.drafts)
