"""The page of `report`: what a template needs of results, all of it decided here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from autotune.scenes import in_order
from codegen.render import environment
from codegen.tunables import plain
from codegen.tuned import MEASURED, Identity, Result

TEMPLATE = "autotune/report.html.j2"
REJECTED_SHOWN = 8


@dataclass(frozen=True)
class Bar:
    """One scene of a kernel. Widths are per cent of the slower of tuned and untuned; roofline_at: place of its mark."""

    scene: str
    tuned: str
    untuned: str
    roofline: str
    ratio: str
    share: str
    bound: str
    tuned_width: float
    untuned_width: float
    roofline_at: float


@dataclass(frozen=True)
class Row:
    """One kernel."""

    kernel: str
    values: str
    note: str
    verdict: str
    tried: str
    bars: tuple[Bar, ...]
    rejected: tuple[tuple[str, str], ...]
    shape: str


@dataclass(frozen=True)
class Group:
    """The kernels of one target on one device. predicted: nothing of it was measured."""

    title: str
    predicted: bool
    about: str
    rows: tuple[Row, ...]


def page(results: Iterable[Result], today: Collection[Identity]) -> str:
    """One HTML document that needs nothing else. today: what kernels are still compiled as."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.identity.target, result.identity.device, result.kind), []).append(result)
    found = [_group(*name, group, today) for name, group in groups.items()]
    return environment().get_template(TEMPLATE).render(groups=found)


def _group(target: str, device: str, kind: str, results: list[Result], today: Collection[Identity]) -> Group:
    detail = results[0].detail
    title = f"{target} on {device}" if kind == MEASURED else target
    bandwidth, peak = detail.get("bandwidth", 0.0), detail.get("peak", 0.0)
    about = f"roofline: {bandwidth / 1e9:.1f} GB/s and {peak / 1e12:.2f} Tflop/s of bf16 products"
    if kind != MEASURED:
        about += f"; a model of {detail.get('device', target)}, not a measurement"
    rows = sorted(results, key=lambda result: -_weight(result))
    return Group(title, kind != MEASURED, about, tuple(_row(result, today) for result in rows))


def _weight(result: Result) -> float:
    """Seconds of a plain step that the kernel takes."""
    scenes = result.detail.get("scenes", {})
    first = next((scenes[name] for name in in_order(scenes)), {"tuned": 0.0})
    return float(result.detail.get("launches", 1) * first["tuned"])


def _row(result: Result, today: Collection[Identity]) -> Row:
    trials = result.detail.get("trials", [])
    rejected = [(_text(trial["values"]), trial["why"]) for trial in trials if trial["state"] == "rejected"]
    bounds = result.detail.get("roofline", {})
    scenes = result.detail.get("scenes", {})
    bars = (_bar(name, scenes[name], bounds.get(name, {})) for name in in_order(scenes))
    noise = result.detail.get("noise", 0.0)
    faster = f"{result.ratio:.3f} of the untuned time, noise {noise:.1%}"
    return Row(
        kernel=result.identity.kernel,
        values=_text({name: plain(value) for name, value in result.values.items()}) or "as untuned",
        note="" if result.identity in today else f"Of another toolchain ({result.kind}).",
        verdict=faster
        if result.values
        else f"no candidate beats the untuned values by more than the noise ({noise:.1%})",
        tried=f"{len(trials)} of {result.detail.get('space', '?')} candidates tried, {len(rejected)} rejected",
        bars=tuple(bars),
        rejected=tuple(rejected[:REJECTED_SHOWN]),
        shape=" ".join(f"{name}={value}" for name, value in result.identity.shape),
    )


def _bar(scene: str, times: dict[str, Any], bound: dict[str, Any]) -> Bar:
    tuned, untuned, least = times["tuned"], times["untuned"], bound.get("seconds", 0.0)
    widest = max(tuned, untuned, least)
    return Bar(
        scene=scene,
        tuned=_time(tuned),
        untuned=_time(untuned),
        roofline=_time(least),
        ratio=f"{times['ratio']:.3f}",
        share=f"{least / tuned:.0%}" if least else "no bytes of weights or states",
        bound=str(times.get("bound", bound.get("bound", ""))),
        tuned_width=round(100 * tuned / widest, 2),
        untuned_width=round(100 * untuned / widest, 2),
        roofline_at=round(100 * least / widest, 2),
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _text(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
