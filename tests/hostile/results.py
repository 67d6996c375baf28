"""Hostile files of tuned results: how a good one is changed. All are refused, but those of ODD, which are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from codegen.lower import lower
from codegen.tuned import MEASURED, Result, identity
from codegen.tuned_format import RESULT_BYTES
from codegen.tuned_store import export
from tests.cpu.engine.toys import toy_spec

Edit = Callable[[dict[str, Any]], Any]  # of the first result
REFUSED = "tuned-file"
TIMES = {"tuned": 1e-6, "untuned": 2e-6, "ratio": 0.5}
DETAIL: dict[str, Any] = {
    "scenes": {"decode": TIMES, "batch": TIMES},
    "roofline": {"decode": {"bytes": 100, "flops": 7, "seconds": 1e-7, "bound": "memory"}},
    "trials": [
        {"values": {"BLOCK_N": 16, "row_tiles": [1, 2]}, "state": "rejected", "ratio": None, "why": "y[0] is <b>1"},
        {"values": {"BLOCK_N": 32}, "state": "complete", "ratio": 0.9, "why": ""},
    ],
    "resources": [{"row_tile": 16, "registers": 40}],
    "noise": 0.01,
    "bandwidth": 4e10,
    "peak": 1e12,
    "launches": 3,
    "space": 48,
    "candidates": 40,
    "explored": 2,
}


@cache
def good_results() -> bytes:
    """An export of two results of the toy on this machine."""
    plan = lower(toy_spec(), "cpu")
    kernels = [kernel for kernel in plan.kernels if kernel.tunables][:2]
    results = [Result(identity(plan, kernel), {}, 0.8, MEASURED, DETAIL) for kernel in kernels]
    return export(results).encode()


def on_first(edit: Edit) -> Callable[[], bytes]:
    """The good file with a change of its first result; NaN, infinity and what UTF-8 cannot hold as JSON spells them."""

    def make() -> bytes:
        data = json.loads(good_results())
        edit(data["results"][0])
        return json.dumps(data).encode()

    return make


def on_identity(**fields: Any) -> Callable[[], bytes]:
    """Other words of what the first result is for."""
    return on_first(lambda result: result["identity"].update(fields))


def on_detail(**fields: Any) -> Callable[[], bytes]:
    """Other details of the first result."""
    return on_first(lambda result: result["detail"].update(fields))


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    tree: Any = []
    for _ in range(depth):
        tree = [tree]
    return tree


HUGE = int("9" * 400)
RESULTS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "null": lambda: b"null",
    "a list": lambda: b"[]",
    "no results": lambda: b"{}",
    "results that are a number": lambda: b'{"results": 5}',
    "results that are an object": lambda: b'{"results": {}}',
    "not UTF-8": lambda: b"\xff",
    "nested without end": lambda: b"[" * 100_000,
    "a number of 5000 digits": lambda: b'{"results": [' + b"1" * 5000 + b"]}",
    "a result that is null": lambda: b'{"results": [null]}',
    "a result that is empty": lambda: b'{"results": [{}]}',
    "another format": on_first(lambda r: r.update(format=99)),
    "a ratio of 400 digits": on_first(lambda r: r.update(ratio=HUGE)),
    "a ratio that is no number": on_first(lambda r: r.update(ratio=float("nan"))),
    "a ratio without end": on_first(lambda r: r.update(ratio=float("inf"))),
    "a ratio below zero": on_first(lambda r: r.update(ratio=-1)),
    "a ratio of zero": on_first(lambda r: r.update(ratio=0)),
    "a ratio that is text": on_first(lambda r: r.update(ratio="0.5")),
    "a ratio that is true": on_first(lambda r: r.update(ratio=True)),
    "no ratio": on_first(lambda r: r.pop("ratio")),
    "a kind nobody knows": on_first(lambda r: r.update(kind="guessed")),
    "predicted for this processor": on_first(lambda r: r.update(kind="predicted")),
    "measured on a prediction": on_identity(device="predicted"),
    "values that are a list": on_first(lambda r: r.update(values=[1])),
    "a value of 400 digits": on_first(lambda r: r["values"].update(BLOCK_N=HUGE)),
    "a value that is true": on_first(lambda r: r["values"].update(row_tiles=[True])),
    "a value without a name": on_first(lambda r: r["values"].update({"": 1})),
    "a value of half a character": on_first(lambda r: r["values"].update({"\ud800": 1})),
    "numerics nobody knows": on_identity(numerics="whatever"),
    "no device": on_first(lambda r: r["identity"].pop("device")),
    "a device that is a number": on_identity(device=7),
    "a device of no letters": on_identity(device=""),
    "a device that clears the screen": on_identity(device="\x1b[2J"),
    "a device of half a character": on_identity(device="\ud800"),
    "a device of two lines": on_identity(device="a\nb"),
    "a device that turns the text around": on_identity(device="\u202e"),
    "a device of a long name": on_identity(device="x" * 5000),
    "a kernel of half a character": on_identity(kernel="\udfff"),
    "a target of two lines": on_identity(target="cpu\n"),
    "a shape that is an object": on_identity(shape={"ab": 1, "cd": 2}),
    "a shape of threes": on_identity(shape=[["a", "b", "c"]]),
    "a shape of trees": on_identity(shape=[["a", {"b": 1}]]),
    "a workload that is no number": on_identity(workload=[["max_slots", float("nan")]]),
    "a workload named by a number": on_identity(workload=[[1, 2]]),
    "a detail that is a list": on_first(lambda r: r.update(detail=[])),
    "no detail": on_first(lambda r: r.pop("detail")),
    "trials that are a number": on_detail(trials=5),
    "a trial that is empty": on_detail(trials=[{}]),
    "a trial in a state nobody knows": on_detail(trials=[DETAIL["trials"][0] | {"state": "won"}]),
    "a trial of half a character": on_detail(trials=[DETAIL["trials"][0] | {"why": "\ud800"}]),
    "scenes that are a list": on_detail(scenes=[1]),
    "a scene that is a number": on_detail(scenes={"decode": 1}),
    "a scene of no time": on_detail(scenes={"decode": TIMES | {"tuned": 0}}),
    "a scene of next to no time": on_detail(scenes={"decode": TIMES | {"tuned": 5e-324}}),
    "a scene of 400 digits": on_detail(scenes={"decode": TIMES | {"untuned": HUGE}}),
    "a roofline that is null": on_detail(roofline=None),
    "a roofline without seconds": on_detail(roofline={"decode": {}}),
    "noise that is text": on_detail(noise="x"),
    "noise that is no number": on_detail(noise=float("nan")),
    "launches of 400 digits": on_detail(launches=HUGE),
    "a bandwidth without end": on_detail(bandwidth=float("inf")),
    "more than a file of its own may have": on_detail(trials=[DETAIL["trials"][0]] * (RESULT_BYTES // 100)),
}
# Nobody is harmed by these: taken, shown as they are spelled, and what no reader knows is left out.
ODD: dict[str, Callable[[], bytes]] = {
    "a device that looks like markup": on_identity(device="[/x]"),
    "a kernel that looks like markup": on_identity(kernel="[/bold][link=x]"),
    "a target that looks like markup": on_identity(target="[/x]"),
    "a device that looks like HTML": on_identity(device="<script>alert(1)</script>"),
    "a scene that looks like markup": on_detail(scenes={"[/x]": TIMES}),
    "a value that looks like markup": on_first(lambda r: r["values"].update({"[/x]": 1})),
    "a detail that nobody knows": on_detail(deep=nested(200), half="\ud800"),
    "no scenes": on_detail(scenes={}),
    "no detail at all": on_first(lambda r: r["detail"].clear()),
    "the largest numbers": on_detail(
        noise=1e29,
        launches=(1 << 63) - 1,
        scenes={"decode": {"tuned": 86400, "untuned": 1e-12, "ratio": 1e-300}},
        roofline={"decode": {"bytes": (1 << 63) - 1, "flops": 0, "seconds": 86400, "bound": "memory"}},
    ),
}
