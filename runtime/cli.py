"""`python -m runtime`: generate text with a built package, and measure it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors import SafetensorError

from runtime.bench import BenchOptions, run_bench
from runtime.cpu.errors import CpuBackendError
from runtime.engine import Engine
from runtime.errors import BadOption, OutputFailed, RuntimeStateError, WeightsNotFound
from runtime.package import Package, open_package
from runtime.request import Request

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 1
HELP = """Run a package that `python -m codegen build` made.

A package holds the compiled decode step of one model. It needs that model's weights: --weights FILE, or
specs/<name>/weights.safetensors below the current folder.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
notes = Console(stderr=True, highlight=False)

Directory = Annotated[Path, typer.Argument(help="Folder of the package, e.g. build/tiny_hybrid.", show_default=False)]
Weights = Annotated[Path | None, typer.Option(help="safetensors file; default: specs/<name>/weights.safetensors.")]
Drafts = Annotated[
    int | None, typer.Option(help="Tokens drafted per step; 0 turns MTP off. Default: 3, or all allowed.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads; default: all there are. Never changes output.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy; sampling depends on --seed only.")]
Seed = Annotated[int, typer.Option(help="Seed of the sampling noise.")]
Target = Annotated[str | None, typer.Option(help="Target to run, e.g. cpu; default: a usable GPU target, else cpu.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@contextmanager
def _user_errors() -> Iterator[None]:
    """One clear line and exit code 2 for what the user can put right; 130 when interrupted."""
    try:
        yield
    except (RuntimeStateError, CpuBackendError) as error:
        notes.print(Text("error ", style="red") + Text(str(error).splitlines()[0], style=""), soft_wrap=True)
        raise typer.Exit(EXIT_USER_ERROR) from None
    except KeyboardInterrupt:
        notes.print("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _writing() -> Iterator[None]:
    """Standard output is complete after it. A reader that went away ends the program quietly; else OutputFailed."""
    try:
        if sys.stdout is None:
            raise OutputFailed(detail="it is closed")
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(EXIT_NO_READER) from None
    except OSError as error:
        _discard_output()
        raise OutputFailed(detail=error.strerror) from None


def _discard_output() -> None:
    """What is still buffered goes nowhere, or it would fail again when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str) -> None:
    with _writing():
        sys.stdout.write(text)


def find_weights(package: Package, given: Path | None) -> Path:
    """The weights file to use. Raises WeightsNotFound, saying where one was looked for."""
    default = Path("specs") / package.name / "weights.safetensors"
    if given is None and not default.is_file():
        raise WeightsNotFound(path=default, hint=" (the default below the current folder); pass --weights FILE")
    return default if given is None else given


@app.command()
def generate(
    directory: Directory,
    prompt: Annotated[str, typer.Option(help="Text to continue; - reads standard input.", show_default=False)],
    weights: Weights = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of the answer at most.")] = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    drafts: Drafts = None,
    threads: Threads = None,
    target: Target = None,
    eager: Annotated[bool, typer.Option("--eager", help="Launch kernel by kernel: same output, slower.")] = False,
    stream: Annotated[bool, typer.Option(help="Print text as it comes.")] = True,
    as_json: Json = False,
) -> None:
    """Continue a prompt.

    Example: python -m runtime generate build/tiny_hybrid --prompt "def main():" --max-new-tokens 64
    """
    with _user_errors():
        text = sys.stdin.buffer.read() if prompt == "-" else prompt
        package = open_package(directory, target)
        engine = Engine(package, find_weights(package, weights), drafts=drafts, threads=threads, eager=eager)
        request = engine.submit(text, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        _answer(engine, request, show=stream and not as_json)
        result = engine.result(request)
        if as_json:
            _write(json.dumps({"text": result.text, "tokens": list(result.tokens), **_facts(request)}) + "\n")
        elif not stream:
            _write(result.text + "\n")
        _report(request)


def _answer(engine: Engine, request: Request, show: bool) -> None:
    """Run a request to its end, printing its text as it comes if `show`."""
    with notes.status("compiling what is new", spinner="dots") as status:
        for piece in engine.stream(request):
            status.stop()
            if show:
                _write(piece.text)
    if show:
        _write("\n")


def _facts(request: Request) -> dict[str, Any]:
    assert request.first_token_at is not None and request.finished_at is not None
    seconds = request.finished_at - request.first_token_at
    decoded = len(request.output) - 1
    return {
        "finish_reason": request.finish_reason,
        "prompt_tokens": request.prompt_len,
        "output_tokens": len(request.output),
        "first_token_ms": 1e3 * (request.first_token_at - request.submitted_at),
        "decode_tokens_per_s": decoded / seconds if decoded and seconds else None,
        "steps": request.steps,
        "tokens_per_step": request.tokens_per_step if request.steps else None,
        "acceptance": [accepted / proposed for accepted, proposed in request.acceptance() if proposed],
    }


def _report(request: Request) -> None:
    facts = _facts(request)
    parts = [f"{facts['output_tokens']} tokens ({facts['finish_reason']})"]
    if facts["decode_tokens_per_s"]:
        parts.append(f"{facts['decode_tokens_per_s']:.0f} tokens/s, {facts['tokens_per_step']:.2f} per step")
    if facts["acceptance"]:
        parts.append("drafts accepted " + " ".join(f"{share:.0%}" for share in facts["acceptance"]))
    notes.print("[dim]" + " · ".join(parts) + "[/dim]")


@app.command("random-weights")
def random_weights(
    directory: Directory,
    output: Annotated[Path, typer.Option("-o", "--output", help="safetensors file to write.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Seed of the weights.")] = 0,
) -> None:
    """Write seeded random weights for a package, to try a spec before it is trained.

    Example: python -m runtime random-weights build/mine -o build/mine.safetensors
    """
    from safetensors.torch import save_file

    from runtime.random_weights import random_weights as make

    with _user_errors():
        tensors = make(open_package(directory).plan, seed)
        partial = output.with_name(f".{output.name}.partial")
        try:
            save_file(tensors, partial)
            partial.replace(output)
        except (OSError, SafetensorError) as error:
            partial.unlink(missing_ok=True)
            raise BadOption(
                option="--output", value=str(output), allowed=f"a file that can be written ({error})"
            ) from None
    notes.print(f"{output}: {len(tensors)} tensors, seed {seed}")


@app.command()
def bench(
    directory: Directory,
    weights: Weights = None,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 256,
    new_tokens: Annotated[int, typer.Option(help="Tokens of each answer, exactly.")] = 256,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 1,
    drafts: Drafts = None,
    threads: Threads = None,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    text: Annotated[Path | None, typer.Option(help="File to cut prompts from; default: built-in lines.")] = None,
    target: Target = None,
    eager: Annotated[bool, typer.Option("--eager", help="Without graphs: what they save.")] = False,
    profile: Annotated[bool, typer.Option(help="Also time every launch and the machine's read bandwidth.")] = True,
    as_json: Json = False,
) -> None:
    """Measure prefill and decode speed, the host's share, acceptance, and every kernel against the read bandwidth.

    The bound is the time the machine takes to read the bytes of a step (weights, states, KV) from a buffer of the size
    of the step's working set, all threads at once. Kernels are compiled and graphs recorded before the clock starts.
    Example: python -m runtime bench build/tiny_hybrid --drafts 3 --threads 2 --json
    """
    with _user_errors():
        package = open_package(directory, target)
        content = _read_text(text)
        engine = Engine(
            package, find_weights(package, weights), drafts=drafts, threads=threads, eager=eager, checkpoints=False
        )
        options = BenchOptions(prompt_tokens, new_tokens, batch, temperature, seed, profile and not eager)
        with notes.status("starting", spinner="dots") as status:
            figures = run_bench(engine, options, content, lambda note: status.update(note))
        if as_json:
            _write(json.dumps(_finite(figures), indent=1) + "\n")
        else:
            with _writing():
                _show(figures)


def _read_text(path: Path | None) -> bytes:
    try:
        content = b"" if path is None else path.read_bytes()
    except OSError as error:
        raise BadOption(option="text", value=str(path), allowed=f"a readable file ({error.strerror})") from error
    if path is not None and not content:
        raise BadOption(option="text", value=str(path), allowed="a file that is not empty")
    return content


def _finite(value: Any) -> Any:
    """JSON has no nan: None instead."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value != value else value


ROWS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("decode", lambda f: f"{f['decode_tokens_per_s']:,.0f} tokens/s"),
    ("prefill", lambda f: f"{f['prefill_tokens_per_s']:,.0f} tokens/s"),
    ("first token", lambda f: f"{f['first_token_ms']['p50']:.1f} ms (max {f['first_token_ms']['max']:.1f})"),
    ("step", lambda f: "{p50:.0f} / {p90:.0f} / {p99:.0f} µs (p50 / p90 / p99)".format(**f["step_us"])),
    ("host between replays", lambda f: "{p50:.1f} / {p90:.1f} / {p99:.1f} µs".format(**f["host_us"])),
    ("tokens per step", lambda f: f"{f['tokens_per_step']:.2f}"),
    ("drafts accepted", lambda f: " ".join(f"{share:.0%}" for share in f["acceptance"]) or "none drafted"),
    ("launches per step", lambda f: f"{f['launches']}"),
    ("bytes per step", lambda f: f"{f['bytes_per_step'] / 1e6:.2f} MB"),
    ("working set", lambda f: f"{f['working_set_bytes'] / 1e6:.2f} MB"),
    ("peak memory", lambda f: f"{f['peak_rss_mib']:.0f} MiB, buffers {sum(f['memory'].values()) / 2**20:.1f} MiB"),
)


def _show(figures: dict[str, Any]) -> None:
    """The figures as tables on standard output."""
    out = Console(highlight=False)
    title = f"batch {figures['batch']}, drafts {figures['drafts']}"
    table = Table(title=title, show_header=False, title_justify="left")
    for name, text in ROWS:
        table.add_row(name, text(figures))
    bound = figures.get("bound", {})
    if "step_us" in bound:
        speed = f"{bound['read_bandwidth_gb_per_s']:.0f} GB/s read by {bound['threads']} threads"
        table.add_row("bound", f"{bound['step_us']:.0f} µs at {speed}: {bound['share_of_p50']:.0%} of the step")
    elif bound:
        table.add_row("bound", bound["unavailable"])
    out.print(table)
    if "kernels" in figures:
        out.print(_kernel_table(figures["kernels"]))


def _kernel_table(rows: list[dict[str, Any]]) -> Table:
    table = Table("kernel", title="launches of one step", title_justify="left")
    for name in ("launches", "µs", "share", "MB", "of the bound"):
        table.add_column(name, justify="right")
    total = sum(row["microseconds"] for row in rows)
    for row in rows:
        share, size = row["microseconds"] / total, row["bytes"] / 1e6
        bound = f"{row['bound_share']:.0%}" if row["bytes"] else ""
        table.add_row(
            row["kernel"], str(row["launches"]), f"{row['microseconds']:.1f}", f"{share:.0%}", f"{size:.2f}", bound
        )
    return table


def main() -> None:
    """Entry point."""
    app()
