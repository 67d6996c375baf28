"""docs/predictions.md, written from the specs of this folder and the model of codegen.predict."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from codegen.cost import Shape, step_costs
from codegen.lower import lower
from codegen.memory import total_bytes
from codegen.plan import Plan
from codegen.predict import ACCELERATORS, Accelerator, Assumptions, of_target, predict
from dsl import ModelSpec, load_spec
from dsl.tensors import weight_shapes

COMMAND = "python -m benchmarks.predictions"
SPECS = Path(__file__).parent
TARGET, CONTEXT, BUCKETS = "cuda:90", 1024, (1, 8, 32)

INTRODUCTION = f"""# Predictions

**Nothing on this page was measured.** Stepforge's kernels compile for these GPUs ([GPU targets](gpu-targets.md)) but
have run on none. These are tokens per second of decoding, predicted from data sheets and the assumptions below; the
page exists to be proven wrong. Written by `{COMMAND} > docs/predictions.md`. For any spec, by section and by kind of
layer:

    python -m codegen explain SPEC --target cuda:90 --bucket 8 --context 1024 [--json]

## The model

A step is one chain of launches in a CUDA graph. Each launch takes a latency, and the longest of three times: of its
bytes at the memory's rate, of its operations, and of its bytes at the rate that as few multiprocessors as it has
programs for can draw. Bytes are those of weights, states and KV, each read or written once; activations stay in the
cache. What most of the time goes to is the step's bound. `codegen/predict/step.py` is the whole of it.
"""

LEFT_OUT = """## Not here

- Zamba2: its attention blocks share weights between depths, with low-rank differences; in a spec every layer has its
  own.
- Granite 4.0 H Tiny and Small, Nemotron 3 Nano: mixtures of experts; the spec language has none.
- Prefill, several GPUs, quantised weights; and drafts, for none of these models has an MTP module that a spec
  describes.
"""


@dataclass(frozen=True)
class Model:
    """A spec of this folder. about: the comment that opens its file, a sentence or two per entry."""

    spec: ModelSpec
    about: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return sum(math.prod(weight.shape) for weight in weight_shapes(self.spec).values())


def models() -> Iterator[Model]:
    """Every spec of this folder, small ones first."""
    found = [Model(load_spec(path), _comment(path)) for path in SPECS.glob("*.yaml")]
    yield from sorted(found, key=lambda model: model.parameters)


def _comment(path: Path) -> tuple[str, ...]:
    """Lines of the opening comment; one that goes on is indented by two more."""
    joined: list[str] = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("#   "):
            joined[-1] += f" {line[4:]}"
        else:
            joined.append(line[2:])
    return tuple(joined)


def page() -> str:
    """The text of docs/predictions.md."""
    known = list(models())
    parts = [INTRODUCTION, assumptions(), _speeds([(model, lower(model.spec, TARGET)) for model in known])]
    parts += ["## The models\n", *(_about(model) for model in known), LEFT_OUT]
    return "\n".join(parts)


def assumptions() -> str:
    """The named assumptions and the data sheets."""
    assumed = Assumptions()
    values = {
        "share of the data sheet's bandwidth": (
            f"{assumed.bandwidth_share:.0%}",
            "what long copies reach; short ones less",
        ),
        "share of its operations": (f"{assumed.compute_share:.0%}", "a guess; it decides nothing at these batches"),
        "latency of a launch": (
            f"{1e6 * assumed.launch_seconds:g} µs",
            "a guess: one kernel drains, the next of the graph starts, and its first bytes arrive",
        ),
        "bandwidth of one multiprocessor": (
            f"{assumed.draw:g} even shares",
            "a guess: how many bytes it can have on their way",
        ),
        "batch": ("", f"every slot decodes, {CONTEXT} tokens of context each"),
        "host": ("", "nothing: the graph is replayed before the last one ends"),
    }
    rows = [
        f"| {gpu.name} | {gpu.target} | {gpu.bandwidth / 1e12:g} | {gpu.bf16 / 1e12:g} | {gpu.fp32 / 1e12:g} | "
        f"{gpu.memory / 1e9:g} | {gpu.multiprocessors} | {gpu.source} |"
        for gpu in ACCELERATORS.values()
    ]
    return f"""## Assumptions

| assumed | value | why |
|---|---|---|
{chr(10).join(f"| {name} | {value} | {why} |" for name, (value, why) in values.items())}

"bound" below takes none of them: the data sheet's rates, no latency. No step that moves these bytes is faster.

| GPU | target | TB/s | bf16 TFLOP/s, dense | fp32 TFLOP/s | GB | multiprocessors | source |
|---|---|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def _speeds(plans: list[tuple[Model, Plan]]) -> str:
    gpus = of_target(TARGET)
    head = "".join(f" {gpu.name} bound | {gpu.name} predicted | bound by |" for gpu in gpus)
    lines = [
        "## Tokens per second, all slots together: predicted, never measured\n",
        f"| model | parameters | memory, GB | slots | GB per step | launches |{head}",
        f"|---|---|---|---|---|---|{'---|---|---|' * len(gpus)}",
    ]
    lines += [_row(model, plan, bucket, gpus) for model, plan in plans for bucket in BUCKETS]
    return "\n".join([*lines, ""])


def _row(model: Model, plan: Plan, bucket: int, gpus: tuple[Accelerator, ...]) -> str:
    shape = Shape(bucket, 0, CONTEXT)
    costs = list(step_costs(plan, shape))
    moved, launches = sum(cost.count * cost.bytes for cost in costs), sum(cost.count for cost in costs)
    facts = (
        f"{model.parameters / 1e9:.1f} B | {total_bytes(plan) / 1e9:.0f} | {bucket} | {moved / 1e9:.2f} | {launches}"
    )
    return f"| {model.spec.name} | {facts} |{''.join(_cells(plan, shape, gpu) for gpu in gpus)}"


def _cells(plan: Plan, shape: Shape, gpu: Accelerator) -> str:
    if total_bytes(plan) > gpu.memory:
        return " does not fit | | |"
    bound = predict(plan, shape, gpu, Assumptions.data_sheet())
    found = predict(plan, shape, gpu)
    share = found.by_bound()[found.bound] / found.seconds
    speeds = (f" {shape.bucket / step.seconds:.0f} |" for step in (bound, found))
    return f"{''.join(speeds)} {found.bound} ({share:.0%}) |"


def _about(model: Model) -> str:
    return f"**{model.spec.name}**: {' '.join(model.about)}\n"
