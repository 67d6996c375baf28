"""Hostile packages: how a good one is changed, with its manifest made to match where it can, and the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import places

Change = Callable[[Path], None]
MANIFEST = "manifest.json"
PLAN = "cpu/plan.json"
DAMAGED = "package-damaged"


def on_manifest(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the manifest in place."""

    def apply(package: Path) -> None:
        data = json.loads((package / MANIFEST).read_text())
        change(data)
        (package / MANIFEST).write_text(json.dumps(data))

    return apply


def sealed(name: str, content: bytes | Callable[[bytes], bytes]) -> Change:
    """Change a file, and its hash in the manifest: what somebody does who knows how."""

    def apply(package: Path) -> None:
        file = package / name
        data = content if isinstance(content, bytes) else content(file.read_bytes())
        file.write_bytes(data)
        on_manifest(lambda m: m["files"].update({name: hashlib.sha256(data).hexdigest()}))(package)

    return apply


def on_plan(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the plan in place, sealed."""

    def edit(content: bytes) -> bytes:
        plan = json.loads(content)
        change(plan)
        return json.dumps(plan).encode()

    return sealed(PLAN, edit)


def replaced(name: str, make: places.Make) -> Change:
    """Something else where a file is."""

    def apply(package: Path) -> None:
        (package / name).unlink()
        make(package / name)

    return apply


def rewritten(content: bytes) -> Change:
    """Another manifest."""
    return lambda package: (package / MANIFEST).write_bytes(content) and None


def manifest_twice(package: Path) -> None:
    """A manifest with two lists of files."""
    text = (package / MANIFEST).read_text()
    (package / MANIFEST).write_text('{"files": {}, ' + text[1:])


def first(plan: dict[str, Any], kind: str) -> dict[str, Any]:
    return plan[kind][0]


def buffer(plan: dict[str, Any], name: str) -> dict[str, Any]:
    """One buffer of a plan."""
    return next(each for each in plan["buffers"] if each["name"] == name)


PACKAGES: dict[str, tuple[Change, str]] = {
    # the manifest
    "no manifest": (lambda p: (p / MANIFEST).unlink(), "package-not-found"),
    "a manifest of nothing": (rewritten(b""), DAMAGED),
    "a manifest that is not UTF-8": (rewritten(b"\xff\xfe{"), DAMAGED),
    "a manifest of brackets": (rewritten(b"[" * 100_000), DAMAGED),
    "a manifest of 64 GiB": (replaced(MANIFEST, places.sparse), DAMAGED),
    "a manifest that is a fifo": (replaced(MANIFEST, places.fifo), DAMAGED),
    "a manifest that is endless": (replaced(MANIFEST, places.zeros), DAMAGED),
    "a manifest that links to itself": (replaced(MANIFEST, places.loop), DAMAGED),
    "a manifest with a key twice": (manifest_twice, DAMAGED),
    "a format of another century": (on_manifest(lambda m: m.update(format=99)), "package-format"),
    "a name that climbs": (on_manifest(lambda m: m.update(name="../../x")), DAMAGED),
    "a name with a NUL": (on_manifest(lambda m: m.update(name="x\0")), DAMAGED),
    "a name that clears the screen": (on_manifest(lambda m: m.update(name="\x1b[2J")), DAMAGED),
    "a target that is a path": (on_manifest(lambda m: m["targets"].update({"../cpu": m["targets"]["cpu"]})), DAMAGED),
    "a target folder that climbs": (on_manifest(lambda m: m["targets"]["cpu"].update(folder="..")), DAMAGED),
    "a file with a NUL": (on_manifest(lambda m: m["files"].update({"a\0b": "0" * 64})), DAMAGED),
    "a file with a surrogate": (on_manifest(lambda m: m["files"].update({"a\ud800": "0" * 64})), DAMAGED),
    "a file that climbs": (on_manifest(lambda m: m["files"].update({"cpu/../../x": "0" * 64})), DAMAGED),
    "a file from the root": (on_manifest(lambda m: m["files"].update({"/etc/passwd": "0" * 64})), DAMAGED),
    "a kernel that nobody vouches for": (on_manifest(lambda m: m["files"].pop("cpu/kernels/sample.py")), DAMAGED),
    "a hash that is a number": (on_manifest(lambda m: m["files"].update({PLAN: 1})), DAMAGED),
    "no target for here": (on_manifest(lambda m: m.update(targets={})), "package-target"),
    # listed files
    "a step that is a fifo": (replaced("cpu/step.py", places.fifo), DAMAGED),
    "a step that is endless": (replaced("cpu/step.py", places.zeros), DAMAGED),
    "a step of 64 GiB": (replaced("cpu/step.py", places.sparse), DAMAGED),
    "a step that is a folder": (replaced("cpu/step.py", places.folder), DAMAGED),
    "a step that is a socket": (replaced("cpu/step.py", places.unix_socket), DAMAGED),
    "a step that links to itself": (replaced("cpu/step.py", places.loop), DAMAGED),
    "a step that is no Python": (sealed("cpu/step.py", b"def f(:"), DAMAGED),
    "a step with a NUL": (sealed("cpu/step.py", b"a = 1\0"), DAMAGED),
    "a step that is not UTF-8": (sealed("cpu/step.py", b"a = '\xff'"), DAMAGED),
    "a step of brackets": (sealed("cpu/step.py", b"(" * 100_000), DAMAGED),
    "a step that raises": (sealed("cpu/step.py", b"1 / 0"), DAMAGED),
    "a module that raises": (sealed("cpu/__init__.py", b"undefined"), DAMAGED),
    # the plan
    "a plan that is null": (sealed(PLAN, b"null"), DAMAGED),
    "a plan of brackets": (sealed(PLAN, b"[" * 100_000), DAMAGED),
    "a plan with a number of 5000 digits": (sealed(PLAN, b"1" * 5000), DAMAGED),
    "a plan with a key twice": (sealed(PLAN, lambda c: b'{"name": "x", ' + c.lstrip()[1:]), DAMAGED),
    "slots that are text": (on_plan(lambda p: p["limits"].update(max_slots="4")), DAMAGED),
    "slots below zero": (on_plan(lambda p: p["limits"].update(max_slots=-1)), DAMAGED),
    "slots that are true": (on_plan(lambda p: p["limits"].update(max_slots=True)), DAMAGED),
    "a ring of three": (on_plan(lambda p: p["limits"].update(ring=3)), DAMAGED),
    "pages that hold no context": (on_plan(lambda p: p["limits"].update(max_context=1 << 40)), DAMAGED),
    "a buffer of 2**60 elements": (on_plan(lambda p: first(p, "buffers").update(shape=[1 << 40, 1 << 20])), DAMAGED),
    "a buffer of no dims": (on_plan(lambda p: first(p, "buffers").update(shape=[])), DAMAGED),
    "a buffer of a role nobody knows": (on_plan(lambda p: first(p, "buffers").update(role="root")), DAMAGED),
    "a buffer of a dtype nobody knows": (on_plan(lambda p: first(p, "buffers").update(dtype="fp13")), DAMAGED),
    "a buffer that is an attribute": (on_plan(lambda p: first(p, "buffers").update(name="__dict__ ")), DAMAGED),
    "a buffer twice": (on_plan(lambda p: p["buffers"].append(first(p, "buffers"))), DAMAGED),
    "theta that is not a number": (on_plan(lambda p: first(p, "buffers").update(theta=float("nan"))), DAMAGED),
    "a launch of no kernel": (on_plan(lambda p: first(p, "sections")["launches"][0].update(kernel="nobody")), DAMAGED),
    "a checkpoint of no buffer": (on_plan(lambda p: first(p, "checkpoint_parts").update(live="nobody")), DAMAGED),
    "KV in no buffer": (on_plan(lambda p: p["kv_buffers"].append("nobody")), DAMAGED),
    "no buffer of tokens": (on_plan(lambda p: buffer(p, "tokens").update(name="toker")), DAMAGED),
    "seeds that are too narrow": (on_plan(lambda p: buffer(p, "seed").update(dtype="int32")), DAMAGED),
    "a page table that is too short": (on_plan(lambda p: buffer(p, "page_table").update(shape=[1])), DAMAGED),
    "logits of another vocabulary": (on_plan(lambda p: buffer(p, "logits")["shape"].__setitem__(1, 3)), DAMAGED),
    "states of more slots": (on_plan(lambda p: buffer(p, "layers_0_state")["shape"].__setitem__(0, 9)), DAMAGED),
    "weights of no tensor": (on_plan(lambda p: buffer(p, "lm_head").update(sources=[])), DAMAGED),
    "panels that do not hold their rows": (on_plan(lambda p: buffer(p, "lm_head")["shape"].__setitem__(0, 1)), DAMAGED),
    "panels of three dims": (on_plan(lambda p: buffer(p, "lm_head")["shape"].pop()), DAMAGED),
    "a panel of a vector": (on_plan(lambda p: buffer(p, "lm_head")["sources"][0].update(shape=[3])), DAMAGED),
    "panels of int8 that are no int8 panels": (on_plan(lambda p: buffer(p, "lm_head").update(dtype="int8")), DAMAGED),
    "an int8 panel of bf16": (on_plan(lambda p: buffer(p, "lm_head").update(layout="int8_panel")), DAMAGED),
    "an int4 panel of bf16": (on_plan(lambda p: buffer(p, "lm_head").update(layout="int4_panel")), DAMAGED),
    "an int4 panel of other groups": (
        on_plan(lambda p: buffer(p, "lm_head").update(layout="int4_panel", dtype="uint8")),
        DAMAGED,
    ),
    "an int4 panel of 48 columns": (
        on_plan(lambda p: buffer(p, "lm_head").update(layout="int4_panel", dtype="uint8", shape=[100, 8, 66, 48])),
        DAMAGED,
    ),
    "int4 scales of a vector": (on_plan(lambda p: buffer(p, "final_norm").update(layout="int4_scale")), DAMAGED),
    "int8 scales of a vector": (on_plan(lambda p: buffer(p, "final_norm").update(layout="int8_scale")), DAMAGED),
    "a tensor of no dims": (on_plan(lambda p: buffer(p, "lm_head")["sources"][0].update(shape=[])), DAMAGED),
    "a transposed matrix that is not": (
        on_plan(lambda p: buffer(p, "layers_0_conv_weight").update(layout="plain")),
        DAMAGED,
    ),
    "a layout nobody knows": (on_plan(lambda p: buffer(p, "lm_head").update(layout="sparse")), DAMAGED),
    "a special that is a path": (on_plan(lambda p: p["tokenizer"][1].__setitem__(1, ["../x"])), DAMAGED),
    "a special twice": (on_plan(lambda p: p["tokenizer"][1].__setitem__(1, ["eos", "eos"])), DAMAGED),
    "more specials than ids": (on_plan(lambda p: p["tokenizer"][1].__setitem__(1, ["a", "b", "c"])), DAMAGED),
    "another tokenizer": (on_plan(lambda p: p["tokenizer"][0].__setitem__(1, "pickle")), DAMAGED),
}
