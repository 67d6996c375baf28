"""What changed from one spec to another, in words, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from dsl.cost import WORDS, Costs, costs
from dsl.errors import Path, show_path, show_value
from dsl.layers import LayerSpec, Strict
from dsl.spec import ModelSpec, spec_sha256
from dsl.tensors import weight_shapes


@dataclass(frozen=True)
class Change:
    """One change. before and after: plain data, None where there is none; words: the change in a line."""

    path: str
    before: Any
    after: Any
    words: str


@dataclass(frozen=True)
class Weights:
    """Whether weights of the one fit the other: names of tensors that are new, gone, or of another shape or dtype."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    reshaped: tuple[str, ...]

    @property
    def fit(self) -> bool:
        """Whether one weights file serves both."""
        return not (self.added or self.removed or self.reshaped)


@dataclass(frozen=True)
class Diff:
    """Two specs compared. same: whether they say the same, whatever their spelling."""

    same: bool
    changes: tuple[Change, ...]
    weights: Weights
    before: Costs
    after: Costs

    def plain(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        before, after = asdict(self.before), asdict(self.after)
        figures = {
            name: {"before": before[name], "after": after[name], "difference": after[name] - before[name]}
            for name in before
        }
        changes = [asdict(change) for change in self.changes]
        return {
            "same": self.same,
            "changes": changes,
            "weights": {"fit": self.weights.fit, **asdict(self.weights)},
            "costs": figures,
        }


def diff(a: ModelSpec, b: ModelSpec) -> Diff:
    """Compare two specs: `a` before, `b` after."""
    same = spec_sha256(a) == spec_sha256(b)
    return Diff(same, tuple(_changes(a, b)), _weights(a, b), costs(a), costs(b))


def _weights(a: ModelSpec, b: ModelSpec) -> Weights:
    old, new = weight_shapes(a), weight_shapes(b)
    return Weights(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        reshaped=tuple(name for name in new if name in old and old[name] != new[name]),
    )


def _changes(a: ModelSpec, b: ModelSpec) -> Iterator[Change]:
    """Field by field in the order of the YAML; a layer that only has another name is said to be renamed."""
    for name in type(a).model_fields:
        if name == "layers":
            yield from _layers(a, b)
        elif name == "pattern":
            yield from _pattern(a, b)
        else:
            yield from _value((name,), getattr(a, name), getattr(b, name))


def _layers(a: ModelSpec, b: ModelSpec) -> Iterator[Change]:
    """Layers that both have, then those under another name, those that are gone, those that are new."""
    names = renamed(a, b)
    for name, layer in b.layers.items():
        if name in a.layers:
            yield from _value(("layers", name), a.layers[name], layer)
    for old, new in names.items():
        yield Change(f"layers.{old}", old, new, f"layer {old} is called {new} now, otherwise unchanged")
    for name, layer in a.layers.items():
        if name not in b.layers and name not in names:
            yield Change(f"layers.{name}", _plain(layer), None, f"layer {name} ({_kind(layer)}) is gone")
    for name, layer in b.layers.items():
        if name not in a.layers and name not in names.values():
            yield Change(f"layers.{name}", None, _plain(layer), f"layer {name} ({_kind(layer)}) is new")


def renamed(a: ModelSpec, b: ModelSpec) -> dict[str, str]:
    """Old and new name of each layer whose definition only moved to a name that was not there."""
    found: dict[str, str] = {}
    for old, layer in a.layers.items():
        heirs = [new for new, other in b.layers.items() if new not in a.layers and other == layer]
        heirs = [new for new in heirs if new not in found.values()]
        if old not in b.layers and heirs:
            found[old] = heirs[0]
    return found


def _pattern(a: ModelSpec, b: ModelSpec) -> Iterator[Change]:
    """Insertions and removals, by position. Names are compared after renaming."""
    names = renamed(a, b)
    old, new = [names.get(name, name) for name in a.pattern], list(b.pattern)
    if old == new:
        return
    parts = []
    for kind, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, come = _run(old[i:j]), _run(new[k:m])
        if kind == "replace":
            parts.append(f"{gone} at {i} became {come}")
        elif kind == "delete":
            parts.append(f"{gone} at {i} removed")
        elif kind == "insert":
            parts.append(f"{come} added at {k}")
    words = f"pattern: {len(old)} layers became {len(new)}: {'; '.join(parts)}"
    yield Change("pattern", list(a.pattern), list(b.pattern), words)


def _run(names: list[str]) -> str:
    """`mamba x 3, attention`."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return ", ".join(name if count == 1 else f"{name} x {count}" for name, count in runs)


def _value(path: Path, old: Any, new: Any) -> Iterator[Change]:
    """Changes within one value: by field where both are of one model, else as a whole."""
    if old == new:
        return
    if isinstance(old, Strict) and type(old) is type(new):
        for name in type(old).model_fields:
            yield from _value((*path, name), getattr(old, name), getattr(new, name))
        return
    shown = show_path(path)
    yield Change(shown, _plain(old), _plain(new), _words(shown, old, new))


def _words(shown: str, old: Any, new: Any) -> str:
    if isinstance(old, Strict) and isinstance(new, Strict):
        return f"{shown} changed its kind from {getattr(old, 'kind', '?')} to {getattr(new, 'kind', '?')}"
    if isinstance(old, Strict):
        return f"{shown} is gone"
    if isinstance(new, Strict):
        return f"{shown} is new"
    return f"{shown}: {show_value(old)} became {show_value(new)}{_factor(old, new)}"


def _kind(layer: LayerSpec) -> str:
    return layer.mixer.kind + (" with a feed-forward" if layer.feed_forward else "")


def _factor(old: Any, new: Any) -> str:
    """`, 2 times as much`, where a whole factor says more than two numbers."""
    if type(old) is not int or type(new) is not int or old <= 0 or new <= 0:
        return ""
    large, small = max(old, new), min(old, new)
    if large % small:
        return ""
    return f", {large // small} times as much" if new > old else f", 1/{large // small} of it"


def _plain(value: Any) -> Any:
    """A value as JSON holds it: no infinity."""
    if isinstance(value, Strict):
        return {name: _plain(item) for name, item in value}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return ".inf" if value == float("inf") else value


def report(found: Diff, a: str, b: str) -> str:
    """The comparison as text. a, b: what the specs are called."""
    if found.same:
        return f"{a} and {b} say the same"
    lines = [f"from {a} to {b}:", *(f"  {change.words}" for change in found.changes), ""]
    lines += [_fit(found.weights), ""]
    figures = found.plain()["costs"]
    rows = [(WORDS[name], row) for name, row in figures.items() if row["difference"]]
    if not rows:
        return "\n".join([*lines, "no figure of its cost changes"])
    lines.append("what it costs:")
    width = max(len(words) for words, _ in rows)
    for words, row in rows:
        lines.append(f"  {words:{width}}  {row['before']:>15,} -> {row['after']:>15,}  {_difference(row)}")
    kept = [WORDS[name].split(" (")[0] for name, row in figures.items() if not row["difference"]]
    return "\n".join([*lines, f"  unchanged: {'; '.join(kept)}" if kept else "  nothing stays as it was"])


def _fit(weights: Weights) -> str:
    if weights.fit:
        return "weights: one file serves both"
    parts = [
        f"{len(names)} tensors {word} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for word, names in (("new", weights.added), ("gone", weights.removed), ("of another shape", weights.reshaped))
        if names
    ]
    return f"weights: a file of the one does not fit the other: {'; '.join(parts)}"


def _difference(row: dict[str, int]) -> str:
    percent = f" ({row['difference'] / row['before']:+.1%})" if row["before"] else ""
    return f"{row['difference']:+,}{percent}"
