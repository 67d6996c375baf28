"""The figures of a scenario as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from runtime.request import ANSWERED

Figures = dict[str, Any]

DECODE_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
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


def show(scenario: str, figures: Figures) -> None:
    """Print the figures of a scenario on standard output, and what of its checks holds."""
    out = Console(highlight=False, emoji=False)
    for table in TABLES[scenario](figures):
        out.print(table)
    for name, holds in figures.get("checks", {}).items():
        out.print(("[green]ok  [/green]" if holds else "[red]FAIL[/red]") + f"  {name}")


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """The first column to the left, the others to the right."""
    table = Table(columns[0], title=title, title_justify="left")
    for name in columns[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _beside(title: str, names: Sequence[str], rows: Iterable[tuple[str, Sequence[object]]]) -> Table:
    """One column for each of what is compared, one row for each figure."""
    return _table(title, ("", *names), ((name, *cells) for name, cells in rows))


def _spread(name: str, found: Sequence[Figures], digits: int = 0) -> Iterator[tuple[str, Sequence[str]]]:
    """A row for each percentile."""
    for share in ("p50", "p90", "p99"):
        yield f"{name}, {share}", [_number(row[share], digits) for row in found]


def _number(value: float, digits: int = 0) -> str:
    return "" if value != value else f"{value:,.{digits}f}"


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f}"


# Decode


def decode_tables(figures: Figures) -> Iterable[Table]:
    """Figures of `run_bench`."""
    title = f"batch {figures['batch']}, drafts {figures['drafts']}"
    table = Table(title=title, show_header=False, title_justify="left")
    for name, text in DECODE_ROWS:
        table.add_row(name, text(figures))
    bound = figures.get("bound", {})
    if "step_us" in bound:
        speed = f"{bound['read_bandwidth_gb_per_s']:.0f} GB/s read by {bound['threads']} threads"
        table.add_row("bound", f"{bound['step_us']:.0f} µs at {speed}: {bound['share_of_p50']:.0%} of the step")
    elif bound:
        table.add_row("bound", bound["unavailable"])
    yield table
    if "kernels" in figures:
        yield _kernels(figures["kernels"])


def _kernels(rows: Sequence[Figures]) -> Table:
    total = sum(row["microseconds"] for row in rows)
    cells = (
        (
            row["kernel"],
            row["launches"],
            f"{row['microseconds']:.1f}",
            f"{row['microseconds'] / total:.0%}",
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['bound_share']:.0%}" if row["bytes"] else "",
        )
        for row in rows
    )
    return _table("launches of one step", ("kernel", "launches", "µs", "share", "MB", "of the bound"), cells)


# Chat


def chat_tables(figures: Figures) -> Iterable[Table]:
    """Figures of `run_chat`."""
    turns = figures["turns"]
    numbers = sorted({turn["turn"] for turn in turns})
    columns = ("turn", "prompt", "best", "restored", "prefilled", "recomputed", "first token ms")
    title = f"{figures['options']['conversations']} conversations, medians over them; best: all that was kept"
    yield _table(title, columns, (_turn(number, [t for t in turns if t["turn"] == number]) for number in numbers))
    pool, kept = figures["pool"], figures["kept"].values()
    title = f"checkpoints in {pool['rows']} rows and {pool['pages']} pages, {_mib(pool['bytes'])} MiB"
    rows = (
        ("written", [row["written"] for row in kept]),
        ("written MiB", [_mib(row["written_bytes"]) for row in kept]),
        ("evicted", [row["evicted"] for row in kept]),
        ("held after turn 2 MiB", [_mib(row["by_turn"][1]["bytes"]) for row in kept]),
        ("held at most MiB", [_mib(row["peak_bytes"]) for row in kept]),
        ("of the pool", [f"{row['peak_bytes'] / pool['bytes']:.0%}" for row in kept]),
        ("tokens prefilled", [row["prefilled_tokens"] for row in kept]),
        ("tokens recomputed", [row["recomputed_tokens"] for row in kept]),
    )
    interval = figures["options"]["interval"]
    yield _beside(title, ("as asked: every page" if interval is None else f"interval {interval}", "every page"), rows)


def _turn(number: int, turns: Sequence[Figures]) -> Sequence[object]:
    names = ("prompt_tokens", "best", "restored", "prefilled", "recomputed")
    cells = [f"{median(turn[name] or 0 for turn in turns):.0f}" for name in names]
    return number, *cells, f"{median(turn['first_token_ms'] for turn in turns):.2f}"


# Load


def load_tables(figures: Figures) -> Iterable[Table]:
    """Figures of `run_load`."""
    decode, budgets = figures["decode_step_us"], list(figures["budgets"].values())
    by_slots = decode["p50_by_slots"].items()
    spread = [(name, decode[name]) for name in ("p50", "p90", "p99")]
    yield _table(
        "steps that only decode",
        ("slots", "µs"),
        [
            *((f"{slots}, p50", _number(us)) for slots, us in by_slots),
            *((f"all, {n}", _number(us)) for n, us in spread),
        ],
    )
    names = [f"budget {budget}" for budget in figures["budgets"]]
    rows = [
        ("steps with prefill", [row["steps_with_prefill"] for row in budgets]),
        ("all steps", [row["steps"] for row in budgets]),
        ("time of the budget's tokens µs", [_number(row["budget_us"]) for row in budgets]),
        *_spread("more than decode µs", [row["extra_us"] for row in budgets]),
        *_spread("of the budget's time", [row["budget_share"] for row in budgets], 2),
        *_spread("of so many tokens alone", [row["alone_share"] for row in budgets], 2),
        *_spread("host µs", [row["host_us"] for row in budgets]),
        ("prefill tokens/s", [_number(row["prefill_tokens_per_s"]) for row in budgets]),
        ("of that without a budget", [f"{row['throughput_share']:.0%}" for row in budgets]),
    ]
    yield _beside("steps with prefill", names, rows)
    rows = [
        *_spread("queue ms", [row["queue_ms"] for row in budgets], 1),
        *_spread("first token ms", [row["first_token_ms"] for row in budgets], 1),
        ("preempted", [row["preemptions"] for row in budgets]),
        ("tokens restored", [row["restored_tokens"] for row in budgets]),
        ("answered", [sum(row["finished"].get(reason, 0) for reason in ANSWERED) for row in budgets]),
        ("cancelled", [row["finished"].get("cancelled", 0) for row in budgets]),
    ]
    yield _beside("requests", names, rows)


# Cost


def cost_tables(figures: Figures) -> Iterable[Table]:
    """Figures of `run_cost`."""
    found = list(figures["emission"].values())
    title = f"one checkpoint: {found[0]['bytes']:,} bytes in {found[0]['buffers']} buffers, µs"
    names = ("step_us", "emitting_step_us", "kernels_us", "host_us")
    labels = ("a step", "a step that writes one", "more in kernels", "more on the host")
    rows = [
        *((label, [_number(row[name], 1) for row in found]) for label, name in zip(labels, names, strict=True)),
        ("memcpy", [_number(min(row["memcpy_us"].values()), 1) for row in found]),
        ("kernels to memcpy", [_number(row["kernels_ratio"], 2) for row in found]),
        ("in all to memcpy", [_number(row["ratio"], 2) for row in found]),
    ]
    yield _beside(title, [f"from token {context}" for context in figures["emission"]], rows)
    resumes = list(figures["resume"].values())
    rows = [
        ("p50 ms", [_number(row["ms"]["p50"], 3) for row in resumes]),
        ("max ms", [_number(row["ms"]["max"], 3) for row in resumes]),
        ("max ms of the quietest batch", [_number(row["slowest_ms"], 3) for row in resumes]),
        *((f"{part} µs", [_number(row["parts_us"][part]) for row in resumes]) for part in resumes[0]["parts_us"]),
    ]
    yield _beside("from submit to the first decode step's replay", list(figures["resume"]), rows)


# Drafts


def drafts_tables(figures: Figures) -> Iterable[Table]:
    """Figures of `run_drafts`."""
    found = figures["tokens_per_s"]
    names = [name for name in next(iter(found.values())) if name not in ("best", "auto_to_best")]
    rows = [(name, [_number(row[name]) for row in found.values()]) for name in names]
    rows += [("auto to the best", [_number(row["auto_to_best"], 2) for row in found.values()])]
    yield _beside("decode tokens/s by drafts", list(found), rows)


# Startup


def startup_tables(figures: Figures) -> Iterable[Table]:
    """Figures of `run_startup`."""
    found = [figures["first"], figures["warm"]]
    rows = [
        ("load s", [_number(row["load_s"], 3) for row in found]),
        ("first token s", [_number(row["first_token_s"], 3) for row in found]),
        ("both s", [_number(row["load_s"] + row["first_token_s"], 3) for row in found]),
        ("after imports MiB", [_number(row["imported_mib"]) for row in found]),
        ("more than that MiB", [_number(row["steady_mib"]) for row in found]),
        ("at its peak MiB", [_number(row["peak_mib"]) for row in found]),
    ]
    title = (
        f"weights of {figures['weights_mib']:.0f} MiB; allowed {figures['allowed_mib']:.0f} MiB and "
        f"{figures['allowed_s']} s; fresh memory {figures['fresh_memory_gb_per_s']:.1f} GB/s"
    )
    yield _beside(title, ("first process", "median of the others"), rows)


TABLES: dict[str, Callable[[Figures], Iterable[Table]]] = {
    "decode": decode_tables,
    "chat": chat_tables,
    "load": load_tables,
    "cost": cost_tables,
    "drafts": drafts_tables,
    "startup": startup_tables,
}
