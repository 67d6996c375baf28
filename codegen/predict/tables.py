"""Predictions for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from codegen.predict.step import Assumptions, Bound, Prediction, bound_of

MARK = "predicted, never measured"


def tables(predictions: Sequence[Prediction]) -> Iterator[Table]:
    """By section and by kind of layer, a pair of columns for each GPU; nothing without predictions.

    All of them are under the same assumptions, which are the caption.
    """
    if not predictions:
        return
    (assumed,) = {found.assumptions for found in predictions}
    yield _table("by section", [found.by_section() for found in predictions], predictions, _caption(assumed))
    yield _table("by kind of layer", [found.by_layer() for found in predictions], predictions, None)


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Microseconds: of the step, of sections and of kinds of layers, by what decides them."""
    return {
        "measured": False,
        "step_us": 1e6 * prediction.seconds,
        "bound": str(prediction.bound),
        "by_bound_us": _micro(prediction.by_bound()),
        "sections": {name: _entry(seconds) for name, seconds in prediction.by_section().items()},
        "layers": {name: _entry(seconds) for name, seconds in prediction.by_layer().items()},
        "assumptions": asdict(prediction.assumptions),
        "source": prediction.accelerator.source,
    }


def _table(
    title: str,
    groups: Sequence[Mapping[str, Mapping[Bound, float]]],
    predictions: Sequence[Prediction],
    caption: str | None,
) -> Table:
    table = Table(title=f"time {title}: {MARK}", caption=caption, title_justify="left", caption_justify="left")
    table.add_column("")
    for found in predictions:
        table.add_column(f"{found.accelerator.name}, µs", justify="right")
        table.add_column("bound by", no_wrap=True)
    for name in groups[0]:
        table.add_row(name, *(cell for group in groups for cell in _cells(group[name])))
    table.add_row("total", *(cell for found in predictions for cell in _cells(found.by_bound())))
    return table


def _cells(seconds: Mapping[Bound, float]) -> tuple[str, str]:
    total = sum(seconds.values())
    bound = bound_of(seconds)
    share = seconds[bound] / total if total else 0.0
    return f"{1e6 * total:.1f}", f"{bound} ({share:.0%})"


def _caption(assumed: Assumptions) -> str:
    return (
        f"assumed: {assumed.bandwidth_share:.0%} of the data sheet's bandwidth, {assumed.compute_share:.0%} of its "
        f"operations, {1e6 * assumed.launch_seconds:g} µs per launch, at most {assumed.draw:g} even shares of the "
        "bandwidth per multiprocessor"
    )


def _entry(seconds: Mapping[Bound, float]) -> dict[str, Any]:
    return {"us": 1e6 * sum(seconds.values()), "bound": str(bound_of(seconds)), "by_bound_us": _micro(seconds)}


def _micro(seconds: Mapping[Bound, float]) -> dict[str, float]:
    return {str(bound): 1e6 * value for bound, value in seconds.items()}
