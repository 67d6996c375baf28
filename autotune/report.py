"""The page of `report`: what a template needs of results, all of it decided here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from autotune.scenes import BATCH, DECODE, PREFILL, VERIFY, in_order
from codegen.render import environment
from codegen.tunables import plain
from codegen.tuned import MEASURED, Identity, Result

TEMPLATE = "autotune/report.html.j2"
REJECTED_SHOWN = 8


SCENES = {
    DECODE: "one row: a plain step of one request",
    VERIFY: "the row and all drafts of one request",
    BATCH: "a plain step with every slot taken",
    PREFILL: "one chunk of a prompt",
}
UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
SAME_KERNEL = "Both columns are the untuned kernel, raced against itself: what they differ by is noise."


@dataclass(frozen=True)
class Bar:
    """One scene of a kernel. Widths: per cent of the longest time; roofline_at: place of its mark; told: in words."""

    scene: str
    tuned: str
    untuned: str
    roofline: str
    ratio: str
    share: str
    bound: str
    told: str
    tuned_width: float
    untuned_width: float
    roofline_at: float


@dataclass(frozen=True)
class Row:
    """One kernel. more: how many were rejected beside those that are listed, in words."""

    kernel: str
    values: str
    note: str
    verdict: str
    tried: str
    bars: tuple[Bar, ...]
    rejected: tuple[tuple[str, str], ...]
    more: str
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
    return environment().get_template(TEMPLATE).render(groups=found, scenes=SCENES)


def _group(target: str, device: str, kind: str, results: list[Result], today: Collection[Identity]) -> Group:
    detail = results[0].detail
    title = f"{target} on {device}" if kind == MEASURED else target
    bandwidth, peak = detail.get("bandwidth", 0.0), detail.get("peak", 0.0)
    about = f"Roofline: {three(bandwidth / 1e9)} GB/s and {three(peak / 1e12)} Tflop/s of bf16 products"
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
    slow = sum(trial["state"] == "slow" for trial in trials)
    tried = f"{len(trials)} of {result.detail.get('space', '?')} candidates tried"
    left = len(rejected) - REJECTED_SHOWN
    return Row(
        kernel=result.identity.kernel,
        values=_text({name: plain(value) for name, value in result.values.items()}) or "as untuned",
        note="" if result.identity in today else f"Of another toolchain ({result.kind}).",
        verdict=_verdict(result),
        tried=f"{tried}: {slow} given up as slower, {len(rejected)} rejected",
        bars=tuple(bars),
        rejected=tuple(rejected[:REJECTED_SHOWN]),
        more=f"and {left} more" if left > 0 else "",
        shape=" ".join(f"{name}={value}" for name, value in result.identity.shape),
    )


def _verdict(result: Result) -> str:
    measured, noise = result.kind == MEASURED, result.detail.get("noise", 0.0)
    if result.values:
        said = "takes" if measured else "is predicted to take"
        return f"{said} {result.ratio:.1%} of the untuned time, over all scenes{f'; noise {noise:.1%}' * measured}."
    if measured:
        return f"no candidate beats the untuned values by more than the noise ({noise:.1%}). {SAME_KERNEL}"
    return "no candidate is predicted to beat the untuned values, which both columns show."


def _bar(scene: str, times: dict[str, Any], bound: dict[str, Any]) -> Bar:
    tuned, untuned, least = times["tuned"], times["untuned"], bound.get("seconds", 0.0)
    widest = max(tuned, untuned, least)
    roofline = time_text(least) if least else "none"  # it reads no weights or states
    return Bar(
        scene=scene,
        tuned=time_text(tuned),
        untuned=time_text(untuned),
        roofline=roofline,
        ratio=f"{times['ratio']:.1%}",
        share=f"{least / tuned:.0%}" if least else "-",
        bound=str(times.get("bound", bound.get("bound", ""))) if least or "bound" in times else "-",
        told=f"tuned {time_text(tuned)}, untuned {time_text(untuned)}, roofline {roofline}",
        tuned_width=round(100 * tuned / widest, 2),
        untuned_width=round(100 * untuned / widest, 2),
        roofline_at=round(100 * least / widest, 2),
    )


def time_text(seconds: float) -> str:
    """A time in the largest unit of which it has one, to three digits: 314 ns, 3.65 µs, 41.1 µs."""
    name, unit = next((pair for pair in UNITS if float(f"{seconds:.2e}") >= pair[1]), UNITS[-1])
    return f"{three(seconds / unit)} {name}"


def three(value: float) -> str:
    """A number to three digits, without an exponent."""
    rounded = float(f"{value:.2e}")
    decimals = max(0, 2 - math.floor(math.log10(rounded))) if rounded else 0
    return f"{rounded:.{decimals}f}"


def _text(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
