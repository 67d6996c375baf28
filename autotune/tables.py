"""What `python -m autotune` prints. Names and numbers may be a stranger's: no text of theirs is taken for markup."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autotune.scenes import DECODE, in_order
from codegen.tunables import plain
from codegen.tuned import Identity, Result
from dsl.errors import printable

out = Console(emoji=False)
err = Console(stderr=True, emoji=False)
PLAIN_WIDTH = 160
WIDE = 120  # characters of a terminal that has room for every column
NAME_WIDTH = 24
NARROW_COLUMNS = ("of untuned", "tried")
COLUMNS = ("of untuned", "noise", "µs", "of roofline", "tried", "slower", "refused")  # refused: wrong bits, or a race
OTHER_TOOLCHAIN = "other toolchain"


def say(text: str) -> None:
    """A line. Control characters, as names of folders may have them, are shown escaped."""
    out.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """A line beside the answer."""
    err.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _shown(text: str) -> str:
    return escape(printable(text))


def show_table(table: Table) -> None:
    """A table, at full width where it goes to a file."""
    (out if out.is_terminal else Console(width=PLAIN_WIDTH, emoji=False)).print(table)


def results_table(title: str, results: list[Result], today: Collection[Identity] | None = None) -> Table:
    """A row for each result. today: the identities that kernels are still compiled as; without it, all are."""
    table = Table(title=_shown(title), title_justify="left")
    table.add_column("kernel", overflow="fold", min_width=NAME_WIDTH)
    table.add_column("values", overflow="fold")
    narrow = out.is_terminal and out.width < WIDE
    columns = NARROW_COLUMNS if narrow else COLUMNS
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("kind")
    for result in results:
        stale = today is not None and result.identity not in today
        kernel, values, *cells = _cells(result)
        named = dict(zip(COLUMNS, cells, strict=True))
        kind = f"{result.kind}, {OTHER_TOOLCHAIN}" if stale else result.kind
        table.add_row(*map(escape, (kernel, values, *(named[name] for name in columns), kind)))
    return table


def _cells(result: Result) -> tuple[str, ...]:
    trials = result.detail.get("trials", [])
    wrong, slower = (sum(trial["state"] == state for trial in trials) for state in ("rejected", "slow"))
    scene = next(iter(in_order(result.detail.get("scenes", {}))), DECODE)
    noise = f"{result.detail.get('noise', 0.0):.1%}"
    tried = f"{len(trials)}/{result.detail.get('space', '?')}"
    found = (result.identity.kernel, _values(result), f"{result.ratio:.3f}", noise, *_microseconds(result, scene))
    return (*found, tried, str(slower), str(wrong))


def _values(result: Result) -> str:
    return " ".join(f"{name}={plain(value)}" for name, value in result.values.items()) or "as untuned"


def _microseconds(result: Result, scene: str) -> tuple[str, str]:
    """Time of a launch in a scene and its share of the roofline, as text."""
    times = result.detail.get("scenes", {}).get(scene)
    bound = result.detail.get("roofline", {}).get(scene)
    if not times:
        return "", ""
    share = f"{bound['seconds'] / times['tuned']:.0%}" if bound and bound["seconds"] else ""
    return f"{scene} {times['tuned'] * 1e6:.1f}", share


def difference_table(title: str, rows: list[dict[str, Any]], one: str, other: str) -> Table:
    """A row for each difference (autotune.compare). one, other: what the two sets are called."""
    table = Table(title=_shown(title), title_justify="left")
    for name in ("kernel", "target", "device", one, "of untuned", other, "of untuned"):
        table.add_column(_shown(name), overflow="fold")
    for row in rows:
        cells = (row[name] for name in ("kernel", "target", "device", "one", "ratio_one", "other", "ratio_other"))
        table.add_row(*(escape("" if cell is None else str(cell)) for cell in cells))
    return table
