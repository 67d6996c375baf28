"""liger-kernel: losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from liger_kernel.ops import (
    LigerCrossEntropyFunction,
    LigerFusedLinearCrossEntropyFunction,
    LigerFusedLinearJSDFunction,
    LigerJSDFunction,
    LigerKLDivLossFunction,
    LigerTVDLossFunction,
)

from tests.cpu.third_party.check import Case, Inputs

ROWS, D, CLASSES = 50, 96, 1000


def _target() -> torch.Tensor:
    target = torch.randint(0, CLASSES, (ROWS,))
    target[::7] = -100
    return target


def _classified() -> Inputs:
    return {"logits": torch.randn(ROWS, CLASSES) * 3, "target": _target()}


def _projected() -> Inputs:
    return {"x": torch.randn(ROWS, D), "weight": torch.randn(CLASSES, D) / 8, "target": _target()}


def _log_probabilities() -> Inputs:
    return {name: torch.randn(ROWS, CLASSES).log_softmax(-1) for name in ("p", "q")}


def _probabilities() -> Inputs:
    return {name: value.exp() for name, value in _log_probabilities().items()}


def _cross_entropy(logits, target):
    return LigerCrossEntropyFunction.apply(logits, target, None, -100, 0.0, 0.1, "mean", 30.0)[0]


def _capped_cross_entropy(logits, target):
    return F.cross_entropy(30 * torch.tanh(logits / 30), target, label_smoothing=0.1)


def _linear_cross_entropy(x, weight, target):
    return LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0]


def _jsd(p, q):
    """Generalised Jensen-Shannon divergence, beta 1/2, of log probabilities p (student) and q."""
    middle = ((p.exp() + q.exp()) / 2).log()
    halves = (F.kl_div(middle, x, log_target=True, reduction="batchmean") for x in (p, q))
    return sum(halves) / 2


def _linear_jsd_inputs() -> Inputs:
    return {
        "student": torch.randn(ROWS, D), "student_weight": torch.randn(CLASSES, D) / 8,
        "teacher": torch.randn(ROWS, D), "teacher_weight": torch.randn(CLASSES, D) / 8,
    }  # fmt: skip


def _linear_jsd(student, student_weight, teacher, teacher_weight):
    return LigerFusedLinearJSDFunction.apply(student, student_weight, teacher, teacher_weight)


def _projected_jsd(student, student_weight, teacher, teacher_weight):
    return _jsd((student @ student_weight.T).log_softmax(-1), (teacher @ teacher_weight.T).log_softmax(-1))


def _case(name, inputs, kernel, reference, **options) -> Case:
    return Case(name, "liger_kernel", inputs, kernel, reference, **options)


CASES = [
    _case("cross_entropy", _classified, _cross_entropy, _capped_cross_entropy),
    _case("cross_entropy", _classified, _cross_entropy, _capped_cross_entropy, dtype=torch.bfloat16),
    _case(
        "fused_linear_cross_entropy", _projected, _linear_cross_entropy,
        lambda x, weight, target: F.cross_entropy(x @ weight.T, target),
    ),
    _case("jsd", _log_probabilities, lambda p, q: LigerJSDFunction.apply(p, q), _jsd, fixed=frozenset({"q"})),
    _case(
        "fused_linear_jsd", _linear_jsd_inputs, _linear_jsd, _projected_jsd,
        fixed=frozenset({"teacher", "teacher_weight"}),
    ),
    _case(
        "kl_div", lambda: {"p": torch.randn(ROWS, CLASSES).log_softmax(-1), "q": torch.rand(ROWS, CLASSES)},
        lambda p, q: LigerKLDivLossFunction.apply(p, q),
        lambda p, q: F.kl_div(p, q, reduction="batchmean"), fixed=frozenset({"q"}),
    ),
    _case(
        "tvd", _probabilities, lambda p, q: LigerTVDLossFunction.apply(p, q),
        lambda p, q: (p - q).abs().sum() / 2 / ROWS, fixed=frozenset({"q"}),
    ),
]  # fmt: skip
