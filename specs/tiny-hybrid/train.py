"""Train the weights of specs/tiny-hybrid.yaml, export and measure them.

`python specs/tiny-hybrid/train.py train --minutes 36`, then `export`, then `measure`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import corpus
import torch
import torch.nn.functional as F
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor

import dsl
from dsl.reference import decode, drafting, model, mtp
from dsl.reference.weights import expected_tensors, random_weights
from dsl.spec import NUM_BYTES, ModelSpec
from dsl.tensors import num_parameters

HERE = Path(__file__).resolve().parent
SPEC_PATH = HERE.parent / "tiny-hybrid.yaml"
WEIGHTS_PATH = HERE / "weights.safetensors"
STDLIB = corpus.default_folder()
STATE_PATH = HERE.parents[1] / "build" / "tiny-hybrid" / "train-state.pt"

TOKENS_PER_STEP = 4096
LENGTHS = ((0.0, 256), (0.45, 512), (0.85, 1024))  # from this fraction of the time on: tokens per row
DEPTHS = ((0.0, 1), (0.3, 3))  # from this fraction of the time on: depths of the module that are trained
MTP_LOSS = (0.4, 0.25, 0.15)  # weight per depth
DISTIL_TEMPERATURE = 0.8  # the temperature at which acceptance counts
PEAK_LR, FINAL_LR, WARMUP = 3e-3, 1.5e-4, 0.02
WEIGHT_DECAY = 0.1
LOG_SECONDS, SAVE_SECONDS = 15.0, 120.0

app = typer.Typer(add_completion=False, no_args_is_help=True)
Weights = dict[str, Tensor]


def initial_weights(spec: ModelSpec, seed: int) -> Weights:
    """fp32 parameters: `random_weights` with unit norms, smaller matrices, and residual projections smaller still."""
    residual = (2 * len(spec.pattern)) ** -0.5
    weights = {name: value.float() for name, value in random_weights(spec, seed).items()}
    for name, value in weights.items():
        if name.endswith(("norm.weight", ".D")):
            value.fill_(1.0)
        elif name.endswith("conv.bias"):
            value.zero_()
        elif name == "embed.weight":
            value.mul_(0.4)
        elif name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
            value.mul_(residual)
        value.requires_grad_()
    return weights


def make_optimizer(weights: Weights) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices only."""
    matrices = [value for name, value in weights.items() if value.ndim == 2 and "conv" not in name]
    others = [value for name, value in weights.items() if value.ndim != 2 or "conv" in name]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), fused=True)


def learning_rate(progress: float) -> float:
    """Linear warm-up, then half a cosine, over the fraction of the time that has passed."""
    if progress < WARMUP:
        return PEAK_LR * max(progress / WARMUP, 0.02)
    angle = math.pi * min((progress - WARMUP) / (1 - WARMUP), 1.0)
    return FINAL_LR + (PEAK_LR - FINAL_LR) * 0.5 * (1 + math.cos(angle))


def scheduled(steps: tuple[tuple[float, int], ...], progress: float) -> int:
    """The value of the last step at or before this fraction of the time."""
    return max(step for step in steps if step[0] <= progress)[1]


def losses(spec: ModelSpec, weights: Weights, tokens: Tensor, depth: int) -> tuple[Tensor, list[Tensor]]:
    """Cross-entropy of the next token, and per depth that of the module against the target's own distribution.

    tokens: [B, T]. The target's distribution is detached; the hidden states are not. All in nats per token.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model.forward(spec, weights, tokens, scan="chunked")
        drafted = mtp.forward(spec, weights, output.hidden, tokens, depth)
    logits = output.logits.float()
    target_loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    targets = F.softmax(logits.detach() / DISTIL_TEMPERATURE, dim=-1)
    draft_losses = [
        -(targets[:, k:] * F.log_softmax(draft.float() / DISTIL_TEMPERATURE, dim=-1)).sum(-1).mean()
        for k, draft in enumerate(drafted, start=1)
    ]
    return target_loss, draft_losses


@dataclass
class Run:
    """A training run: what is saved, restored and continued."""

    weights: Weights
    optimizer: torch.optim.AdamW
    seed: int
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def state(self) -> dict[str, Any]:
        """What `torch.load(weights_only=True)` can read back."""
        counters = {"seed": self.seed, "step": self.step, "tokens": self.tokens, "seconds": self.seconds}
        weights = {name: value.detach() for name, value in self.weights.items()}
        return {"counters": counters, "weights": weights, "optimizer": self.optimizer.state_dict()}

    def save(self, path: Path) -> None:
        """Write the state, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.state(), path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)


def start_run(spec: ModelSpec, seed: int) -> Run:
    """A run at step 0."""
    weights = initial_weights(spec, seed)
    return Run(weights, make_optimizer(weights), seed)


def resume_run(path: Path) -> Run:
    """The run that was saved at `path`."""
    state = torch.load(path, weights_only=True)
    weights = {name: value.requires_grad_() for name, value in state["weights"].items()}
    run = Run(weights, make_optimizer(weights), **state["counters"])
    run.optimizer.load_state_dict(state["optimizer"])
    return run


def train_step(spec: ModelSpec, run: Run, data: corpus.Corpus, progress: float) -> list[float]:
    """One update on a batch that depends only on seed and step (and the row length of this progress)."""
    length, depth = scheduled(LENGTHS, progress), scheduled(DEPTHS, progress)
    generator = torch.Generator().manual_seed(run.seed * 1_000_003 + run.step)
    bos = spec.tokenizer.special_id("bos")
    tokens = corpus.crops(data.train, TOKENS_PER_STEP // length, length, bos, generator)
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate(progress)
    target_loss, draft_losses = losses(spec, run.weights, tokens, depth)
    total = target_loss + sum(w * loss for w, loss in zip(MTP_LOSS, draft_losses, strict=False))
    run.optimizer.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(run.weights.values(), 1.0)
    run.optimizer.step()
    run.step += 1
    run.tokens += tokens.numel()
    return [loss.item() for loss in (target_loss, *draft_losses)]


@torch.no_grad()
def held_out_losses(spec: ModelSpec, run: Run, data: corpus.Corpus) -> list[float]:
    """The losses of a fixed sample of held-out rows."""
    tokens = corpus.crops(data.held_out, 32, 512, spec.tokenizer.special_id("bos"), torch.Generator().manual_seed(0))
    target_loss, draft_losses = losses(spec, run.weights, tokens, len(MTP_LOSS))
    return [loss.item() for loss in (target_loss, *draft_losses)]


def report(kind: str, run: Run, values: list[float], started: float, first: int) -> None:
    """One line of progress: losses in bits per byte, target first, then the module's depths."""
    rate = (run.tokens - first) / max(time.monotonic() - started, 1e-9)
    bits = " ".join(f"{value / math.log(2):.4f}" for value in values)
    print(f"{kind} step {run.step} tokens {run.tokens} {run.seconds:.0f} s {rate:.0f} tok/s bits {bits}", flush=True)


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="Folder of *.py files.")] = STDLIB,
    minutes: Annotated[float, typer.Option(help="Wall time of the whole run.")] = 35.0,
    seed: int = 0,
    resume: Annotated[bool, typer.Option(help="Continue from the saved state.")] = False,
    out: Annotated[Path, typer.Option(help="State file.")] = STATE_PATH,
) -> None:
    """Train; the learning rate and the row length follow the fraction of `minutes` that has passed."""
    spec = dsl.load_spec(SPEC_PATH)
    text = corpus.load_corpus(data, spec.tokenizer)
    run = resume_run(out) if resume else start_run(spec, seed)
    print(f"{num_parameters(spec)} parameters; files {text.num_files}, tokens {len(text.train)}, {len(text.held_out)}")
    print(f"corpus sha256 {text.sha256}", flush=True)
    started, before, first = time.monotonic(), run.seconds, run.tokens
    logged = saved = before
    window: list[list[float]] = []
    while (progress := run.seconds / (60 * minutes)) < 1.0:
        window.append(train_step(spec, run, text, progress))
        run.seconds = before + time.monotonic() - started
        if run.seconds - logged > LOG_SECONDS:
            report("train", run, [sum(v) / len(v) for v in zip(*window, strict=False)], started, first)
            logged, window = run.seconds, []
        if run.seconds - saved > SAVE_SECONDS:
            run.save(out)
            report("held-out", run, held_out_losses(spec, run, text), started, first)
            saved = run.seconds
    run.save(out)
    report("held-out", run, held_out_losses(spec, run, text), started, first)


@app.command()
def export(
    state: Annotated[Path, typer.Option(help="State file.")] = STATE_PATH,
    out: Annotated[Path, typer.Option(help="Weights file.")] = WEIGHTS_PATH,
) -> None:
    """Write the weights of a saved state in their stored dtypes: bf16 matrices, fp32 vectors."""
    spec = dsl.load_spec(SPEC_PATH)
    run = resume_run(state)
    stored = {
        name: run.weights[name].detach().to(dtype).contiguous() for name, (_, dtype) in expected_tensors(spec).items()
    }
    counters = {"seed": run.seed, "step": run.step, "tokens": run.tokens, "seconds": round(run.seconds)}
    save_file(stored, out, metadata={"spec": spec.name} | {name: str(value) for name, value in counters.items()})
    print(f"{out}: {out.stat().st_size} bytes, {counters}")


@torch.no_grad()
def bits_per_byte(spec: ModelSpec, weights: Weights, stream: Tensor) -> float:
    """Cross-entropy of a whole stream: every byte after the first window is predicted from 512 to 1023 tokens."""
    nats, num_bytes = 0.0, 0
    for windows in stream.long().unfold(0, 1024, 512).split(16):
        logits = model.forward(spec, weights, windows, scan="chunked").logits
        targets = windows[:, 512:]
        nats += F.cross_entropy(logits[:, 511:-1].flatten(0, 1), targets.flatten(), reduction="sum").item()
        num_bytes += int((targets < NUM_BYTES).sum())
    return nats / math.log(2) / num_bytes


@app.command()
def measure(
    data: Annotated[Path, typer.Option(help="Folder of *.py files.")] = STDLIB,
    weights_file: Annotated[Path, typer.Option("--weights", help="Weights file.")] = WEIGHTS_PATH,
    num_prompts: int = 64,
    prompt_tokens: int = 256,
    new_tokens: int = 128,
    seed: int = 0,
    skip_bits: Annotated[bool, typer.Option(help="Only measure acceptance.")] = False,
    draft_head: Annotated[list[str], typer.Option(help="bf16, int8 or int4; given twice, both drafters.")] = ["bf16"],  # noqa: B006
) -> None:
    """Measure the exported weights on held-out files, in fp32: bits per byte, acceptance of drafts, tokens per step.

    Prompts are bos and random held-out bytes; request i samples with seed `seed + i`.
    """
    spec = dsl.load_spec(SPEC_PATH)
    text = corpus.load_corpus(data, spec.tokenizer)
    weights = {name: value.float() for name, value in load_file(weights_file).items()}
    print(f"corpus sha256 {text.sha256}; files {text.num_files}")
    if not skip_bits:
        print(f"held-out bits per byte {bits_per_byte(spec, weights, text.held_out):.4f}", flush=True)
    bos = spec.tokenizer.special_id("bos")
    prompts = corpus.crops(text.held_out, num_prompts, prompt_tokens, bos, torch.Generator().manual_seed(seed))
    prompts[:, 0] = bos
    seeds = torch.arange(num_prompts) + seed
    for temperature in (0.8, 0.0):
        decoder = decode.EagerDecoder(spec, weights, num_prompts, prompt_tokens + new_tokens)
        tokens = decode.generate(decoder, prompts, new_tokens, temperature, seeds)
        for head in draft_head:
            print(f"temperature {temperature}, {head} head of drafts")
            drafter = with_draft_head(spec, head)
            matches = drafting.draft_matches(drafter, weights, tokens, spec.engine.max_drafts, temperature, seeds)
            show_acceptance(matches, prompt_tokens)


def with_draft_head(spec: ModelSpec, head: str) -> ModelSpec:
    """The spec with another head of drafts, which takes the same weights."""
    fields = spec.model_dump()
    return ModelSpec.model_validate(fields | {"mtp": fields["mtp"] | {"draft_head": head}})


def show_acceptance(matches: Tensor, prompt_tokens: int) -> None:
    """A line for every number of drafts. matches: as of `draft_matches`."""
    for max_drafts in range(1, matches.shape[-1] + 1):
        found = drafting.measure_acceptance(matches[..., :max_drafts], prompt_tokens)
        rates = " ".join(f"{rate:.3f}" for rate in found.per_position)
        print(f"  K {max_drafts}: {found.tokens_per_step:.3f} tokens per step, accepted {rates}", flush=True)


if __name__ == "__main__":
    app()
