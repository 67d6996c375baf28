"""`python -m dsl new`: a spec to start from, every field explained with its range and unit."""

from __future__ import annotations

import json
import math
import os
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsl import errors
from dsl.errors import InvalidSpec, SpecError, printable
from dsl.fields import FieldDoc, fields_of
from dsl.layers import Strict
from dsl.schema import describe, root_schema
from dsl.spec import ModelSpec

WIDTH = 110
NAME = "my-model"
ATTENTION = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "rope": {"theta": 10000.0}}
MAMBA2 = {
    "kind": "mamba2", "num_heads": 8, "head_dim": 64, "state_size": 64, "num_groups": 1, "conv_width": 4,
    "dt_limit": (0.0, math.inf), "norm_groups": 1,
}  # fmt: skip
FEED_FORWARD = {"kind": "gated_mlp", "hidden_size": 384}
VALUES: dict[str, Any] = {
    "tokenizer": {"kind": "bytes", "specials": ("bos", "eos")},
    "vocab_size": 258,
    "d_model": 256,
    "dtype": "bf16",
    "norm_eps": 1e-6,
    "tie_embeddings": True,
    "numerics": "canonical",
    "layers": {
        "mamba": {"mixer": MAMBA2, "feed_forward": FEED_FORWARD},
        "attention": {"mixer": ATTENTION, "feed_forward": FEED_FORWARD},
        "drafter": {"mixer": ATTENTION, "feed_forward": None},
    },
    "pattern": ("mamba", "mamba", "attention", "mamba"),
    "mtp": {"layer": "drafter", "hidden": "pre_norm", "concat": ("embedding", "hidden"), "post_norm": "own"},
    "checkpoints": {"interval": 64},
    "engine": {
        "max_slots": 8, "max_context": 2048, "max_drafts": 3, "prefill_chunk": 64, "page_size": 64,
        "checkpoint_slots": 64,
    },
}  # fmt: skip
# Words that some reader of YAML takes for something else than text.
NOT_TEXT = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


def starter(name: str = NAME, file: str = "") -> str:
    """The YAML of a starter spec; `file` is what its first lines call it. Raises InvalidSpec for a bad name."""
    try:
        spec = ModelSpec.model_validate({"name": name, **VALUES})
    except ValueError:
        allowed = describe(root_schema()["properties"]["name"])
        raise InvalidSpec([errors.BadName((), name, allowed=allowed).located("--name", None)]) from None
    file = shlex.quote(printable(file or f"{name}.yaml"))
    head = (
        f"# {name}: a model spec of Stepforge. docs/dsl.md explains the language.",
        f"#   python -m codegen check {file}       # every mistake, with its line",
        f"#   python -m codegen explain {file}     # what a step moves and computes",
        f"#   python -m codegen build {file}       # -> build/{name.replace('-', '_')}",
    )
    return "\n".join([*head, *_mapping(spec, 0, set()), ""])


def _mapping(model: Strict, depth: int, explained: set[type[Strict]]) -> Iterator[str]:
    """The lines of a model; its fields are explained where a model of its kind stands for the first time."""
    explain = type(model) not in explained
    explained.add(type(model))
    for field in fields_of(type(model)):
        if depth == 0:
            yield ""
        value = getattr(model, field.name)
        if explain:
            yield from _comment(field, value, depth)
        yield from _entry(field.name, value, depth, explained)


def _entry(key: str, value: Any, depth: int, explained: set[type[Strict]]) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, Strict):
        yield f"{pad}{key}:"
        yield from _mapping(value, depth + 1, explained)
    elif isinstance(value, dict):
        yield f"{pad}{key}:"
        for name, item in value.items():
            yield from _entry(name, item, depth + 1, explained)
    else:
        yield f"{pad}{key}: {spelled(value)}"


def _comment(field: FieldDoc, value: Any, depth: int) -> list[str]:
    """The meaning of a field and what it may be; a mapping's keys are explained one by one below it."""
    pad = "  " * depth + "# "
    text = field.meaning if isinstance(value, (Strict, dict)) else f"{field.meaning} [{field.allowed}]"
    return textwrap.wrap(text, WIDTH, initial_indent=pad, subsequent_indent=pad)


def spelled(value: Any) -> str:
    """A scalar or list as YAML that reads back as it is."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(spelled, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if isinstance(value, str):
        return json.dumps(value) if value in NOT_TEXT else value
    return repr(value)


def name_for(path: Path) -> str:
    """The model's name that a file's name suggests; it need not be a valid one."""
    return path.name.removesuffix(".yml").removesuffix(".yaml").lower().replace(" ", "-")


def write_new(path: Path, name: str) -> None:
    """Write a starter spec to a path where nothing is. Raises InvalidSpec; nothing is left of a file that failed."""
    text = starter(name, path.name)
    try:
        with open(path, "x", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                os.unlink(path)
                raise
    except FileExistsError:
        raise InvalidSpec([_located(errors.SpecExists(), path)]) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise InvalidSpec([_located(errors.SpecNotWritten(reason=reason), path)]) from None


def _located(error: SpecError, path: Path) -> SpecError:
    return error.located(str(path), None)
