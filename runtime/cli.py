"""`python -m runtime`: generate text with a built package, measure it, and make random weights."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from runtime.bench import (
    BenchOptions,
    ChatOptions,
    CostOptions,
    DraftsOptions,
    LoadOptions,
    Model,
    StartupOptions,
    run_bench,
    run_chat,
    run_cost,
    run_drafts,
    run_load,
    run_startup,
)
from runtime.bench.common import Progress
from runtime.bench.tables import show
from runtime.cpu.errors import CpuBackendError
from runtime.engine import Engine
from runtime.errors import BadOption, OutputFailed, RuntimeStateError, WeightsNotFound
from runtime.files import read_regular
from runtime.package import Package, open_package
from runtime.request import Request
from runtime.sampling import SEED_RANGE

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 1
MOST_DIGITS = 12
TEXT_BYTES = 64 << 20
EXIT_DOES_NOT_HOLD = 1
HELP = """Run a package that `python -m codegen build` made.

A package holds the compiled decode step of one model. It needs that model's weights: --weights FILE, or
specs/<name>/weights.safetensors below the current folder.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
notes = Console(stderr=True, highlight=False, emoji=False)

Directory = Annotated[Path, typer.Argument(help="Folder of the package, e.g. build/tiny_hybrid.", show_default=False)]
Weights = Annotated[Path | None, typer.Option(help="safetensors file; default: specs/<name>/weights.safetensors.")]
Drafts = Annotated[
    int | None, typer.Option(help="Tokens drafted per step; 0 turns drafting off. Default: 3, or all allowed.")
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
    except UnicodeEncodeError as error:
        raise OutputFailed(detail=f"it takes {error.encoding} only; set PYTHONIOENCODING=utf-8") from None
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
    top_k: Annotated[int, typer.Option(help="Most likely tokens to draw from; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Share of probability to draw from.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Least probability to draw, as a share of the largest.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Against tokens of prompt and output; 1: none.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(help="Off the logit of what was put out.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, per time.")] = 0.0,
    min_tokens: Annotated[int, typer.Option(help="Tokens of the answer before any stop.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end token.")] = False,
    drafts: Drafts = None,
    threads: Threads = None,
    target: Target = None,
    eager: Annotated[bool, typer.Option("--eager", help="Launch kernel by kernel: same output, slower.")] = False,
    stream: Annotated[bool, typer.Option(help="Print text as it comes.")] = True,
    as_json: Json = False,
) -> None:
    """Continue a prompt. docs/sampling.md defines how its tokens are drawn.

    Example: python -m runtime generate build/tiny_hybrid --prompt "def main():" --max-new-tokens 64
    """
    with _user_errors():
        if prompt == "-" and sys.stdin is None:
            raise BadOption(option="--prompt", value="-", allowed="text: standard input is closed")
        text = sys.stdin.buffer.read() if prompt == "-" else prompt
        package = open_package(directory, target)
        engine = Engine(package, find_weights(package, weights), drafts=drafts, threads=threads, eager=eager)
        request = engine.submit(
            text,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            min_tokens=min_tokens,
            stop=stop or (),
            stop_at_eos=not ignore_eos,
        )
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write seeded random weights for a package, to try a spec before it is trained. A file that is there stays.

    Example: python -m runtime random-weights build/mine -o build/mine.safetensors
    """
    from runtime.random_weights import random_weights as make
    from runtime.safetensors_file import safetensors_chunks
    from runtime.whole_file import output_file, write_chunks

    with _user_errors():
        if not output.name or (os.path.lexists(output) and not os.path.isfile(output)):
            raise BadOption(option="--output", value=str(output), allowed="the name of a regular file")
        if seed not in SEED_RANGE:
            raise BadOption(option="--seed", value=seed, allowed="a 64-bit signed integer")
        plan = open_package(directory).plan
        try:
            with output_file(output, overwrite) as file:  # opened first: weights may take minutes to draw
                tensors = make(plan, seed)
                write_chunks(file, safetensors_chunks(tensors))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadOption(
                option="--output", value=str(output), allowed=f"a file that can be written ({why})"
            ) from None
    notes.print(f"{output}: {len(tensors)} tensors, seed {seed}")


class Scenario(StrEnum):
    """What `bench` measures."""

    DECODE = "decode"
    CHAT = "chat"
    LOAD = "load"
    COST = "cost"
    DRAFTS = "drafts"
    STARTUP = "startup"


OWN_OPTIONS = {
    Scenario.DECODE: ("prompt_tokens", "new_tokens", "batch", "temperature", "text", "eager", "profile"),
    Scenario.CHAT: ("interval", "temperature"),
    Scenario.LOAD: ("prompt_tokens", "new_tokens", "requests", "rounds", "budgets"),
    Scenario.COST: (),
    Scenario.DRAFTS: ("prompt_tokens", "new_tokens", "temperature", "requests", "rounds"),
    Scenario.STARTUP: ("prompt_tokens", "new_tokens", "rounds"),
}
DECODE_PANEL, CHAT_PANEL, LOAD_PANEL = ("Scenario decode", "Scenario chat", "Scenarios load and drafts")


@app.command()
def bench(
    directory: Directory,
    weights: Weights = None,
    scenario: Annotated[Scenario, typer.Option(help="What to measure: see above.")] = Scenario.DECODE,
    drafts: Drafts = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling noise and drawn traffic.")] = 0,
    target: Target = None,
    as_json: Json = False,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of each prompt; default 256. Of load: at most, default 400.", rich_help_panel=DECODE_PANEL
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of each answer, exactly; default 256. Of load: at most, default 128.",
            rich_help_panel=DECODE_PANEL,
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Requests at once; default 1.", rich_help_panel=DECODE_PANEL)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Default 0: greedy; of drafts 0.8. Also of chat.", rich_help_panel=DECODE_PANEL)
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="File to cut prompts from; default: built-in lines.", rich_help_panel=DECODE_PANEL),
    ] = None,
    eager: Annotated[
        bool | None, typer.Option("--eager", help="Without graphs: what they save.", rich_help_panel=DECODE_PANEL)
    ] = None,
    profile: Annotated[
        bool | None,
        typer.Option(help="Also time every launch and the read bandwidth; default.", rich_help_panel=DECODE_PANEL),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(help="Checkpoint every N tokens, or page; default 0: ends only.", rich_help_panel=CHAT_PANEL),
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Default 200; of drafts: 2.", rich_help_panel=LOAD_PANEL)] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            help="Timed runs per budget, default 5, or number of drafts, default 11; starts, default 5.",
            rich_help_panel=LOAD_PANEL,
        ),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(help="Of load: prompt tokens per step, as 128,64,16; default.", rich_help_panel=LOAD_PANEL),
    ] = None,
) -> None:
    """Measure one scenario.

    decode: speed of prefill and decode, the host's share, acceptance, every kernel against the read bandwidth. That
    bound is the time the machine takes to read a step's bytes (weights, states, KV) from a buffer of the size of its
    working set, all threads at once.

    chat: 8 conversations of 12 turns. What is restored, prefilled and kept, and whether the first token comes as soon
    after long texts as after short ones.

    load: random requests with priorities, deadlines and cancellations through all slots, with several prefill budgets.
    Every answer is also computed cold, token by token: for models of real size ask for fewer requests and one round.

    cost: what writing a checkpoint adds to a step, beside a memcpy, and how soon a resumed prompt decodes.

    drafts: decode speed on code, prose and random bytes with every fixed number of drafts, and with "auto".

    startup: fresh processes, from making an engine to the first token of 64, and their memory; beside the bounds.

    Kernels are compiled and graphs recorded before the clock starts. All but decode check what they promise, chat, load
    and cost the answers against a cold engine too: exit code 1 if anything does not hold.

    Example: python -m runtime bench build/tiny_hybrid --drafts 3 --threads 2 --json

    Example: python -m runtime bench build/tiny_hybrid --scenario chat --interval 0

    Example: python -m runtime bench build/mamba2_130m --scenario load --requests 16 --rounds 1 --budgets 64,16
    """
    given = {
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "batch": batch,
        "temperature": temperature,
        "text": text,
        "eager": eager,
        "profile": profile,
        "interval": interval,
        "requests": requests,
        "rounds": rounds,
        "budgets": budgets,
    }
    with _user_errors():
        chosen = _own_options(scenario, {name: value for name, value in given.items() if value is not None})
        if scenario is Scenario.DRAFTS and drafts is not None:
            raise BadOption(option="--drafts", value=drafts, allowed="not with --scenario drafts: it runs them all")
        package = open_package(directory, target)
        model = Model(package, find_weights(package, weights), drafts, threads)
        with notes.status("starting", spinner="dots") as status:
            figures = _measure(scenario, model, chosen | {"seed": seed}, lambda note: status.update(note))
        with _writing():
            if as_json:
                sys.stdout.write(json.dumps(_finite(figures), indent=1) + "\n")
            else:
                show(scenario, figures)
        _end_with(figures.get("checks", {}))


def _own_options(scenario: Scenario, given: dict[str, Any]) -> dict[str, Any]:
    """The options given. Raises BadOption for one that belongs to another scenario."""
    for name, value in given.items():
        if name not in OWN_OPTIONS[scenario]:
            owners = " or ".join(owner for owner, names in OWN_OPTIONS.items() if name in names)
            option = "--" + name.replace("_", "-")
            raise BadOption(option=option, value=value, allowed=f"only with --scenario {owners}")
    return given


def _measure(scenario: Scenario, model: Model, chosen: dict[str, Any], progress: Progress) -> dict[str, Any]:
    if scenario is Scenario.CHAT:
        return run_chat(model, ChatOptions(**chosen | {"interval": _interval(chosen.get("interval", "0"))}), progress)
    if scenario is Scenario.LOAD:
        return run_load(model, _load_options(chosen), progress)
    if scenario is Scenario.DRAFTS:
        return run_drafts(model, DraftsOptions(**chosen), progress)
    if scenario is Scenario.STARTUP:
        return run_startup(model, StartupOptions(**chosen), progress)
    if scenario is Scenario.COST:
        return run_cost(model, CostOptions(), progress)
    content, eager = _read_text(chosen.pop("text", None)), chosen.pop("eager", False)
    chosen["profile"] = chosen.get("profile", True) and not eager
    engine = Engine(
        model.package, model.weights, drafts=model.drafts, threads=model.threads, eager=eager, checkpoints=False
    )
    return run_bench(engine, BenchOptions(**chosen), content, progress)


def _load_options(chosen: dict[str, Any]) -> LoadOptions:
    """Those of the command line. Lengths given are the largest; no budget is always among the budgets."""
    options = LoadOptions(**{name: chosen[name] for name in chosen.keys() & {"requests", "rounds", "seed"}})
    longest = chosen.get("prompt_tokens", options.prompt_tokens[1])
    answer = chosen.get("new_tokens", options.answer_tokens[1])
    budgets = options.budgets if "budgets" not in chosen else (None, *_budgets(chosen["budgets"]))
    return replace(
        options,
        prompt_tokens=(options.prompt_tokens[0], longest),
        answer_tokens=(min(options.answer_tokens[0], answer), answer),
        budgets=budgets,
    )


def _budgets(text: str) -> list[int]:
    """Numbers of tokens, each once."""
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if _plain(part)]
    if len(set(numbers) - {0}) < len(parts):
        raise BadOption(option="--budgets", value=text, allowed="numbers of tokens from 1, each once, as 128,64,16")
    return numbers


def _interval(text: str) -> int | None:
    """Tokens between checkpoints; None for every page."""
    if text == "page":
        return None
    if not _plain(text):
        raise BadOption(option="--interval", value=text, allowed="page, or a number of tokens, 0 for none")
    return int(text)


def _plain(text: str) -> bool:
    """Whether it is a number of a few digits, 0 to 9."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def _end_with(checks: dict[str, bool]) -> None:
    """A line for everything that does not hold, and exit code 1 if there is any."""
    failed = [name for name, holds in checks.items() if not holds]
    for name in failed:
        notes.print(Text("does not hold ", style="red") + Text(name, style=""), soft_wrap=True)
    if failed:
        raise typer.Exit(EXIT_DOES_NOT_HOLD)


def _read_text(path: Path | None) -> bytes:
    try:
        content = b"" if path is None else read_regular(path, TEXT_BYTES)
    except OSError as error:
        raise BadOption(option="--text", value=str(path), allowed=f"a readable file ({error.strerror})") from error
    if path is not None and not content:
        raise BadOption(option="--text", value=str(path), allowed="a file that is not empty")
    return content


def _finite(value: Any) -> Any:
    """JSON has no nan: None instead."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def main() -> None:
    """Entry point."""
    app()
