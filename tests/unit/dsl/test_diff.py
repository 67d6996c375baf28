"""Two specs compared: what changed in words, and figures that are those of the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from typer.testing import CliRunner

import dsl
from dsl.cli import app
from dsl.cost import Costs, costs
from dsl.diff import diff, report
from dsl.spec import ModelSpec
from dsl.tensors import num_parameters
from tests.strategies import specs
from tests.unit.dsl.test_loader_errors import TEXT, edited

BASE = dsl.parse_spec(TEXT)
FEED_FORWARD = "    feed_forward: {kind: gated_mlp, hidden_size: 320}\n"


def words(*edits: tuple[str, str]) -> list[str]:
    """What is said of the base spec with some edits."""
    return [change.words for change in diff(BASE, dsl.parse_spec(edited(*edits))).changes]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("d_model: 256", "d_model: 512"), "d_model: 256 became 512, 2 times as much"),
        (("max_slots: 4", "max_slots: 3"), "engine.max_slots: 4 became 3"),
        (("max_slots: 4", "max_slots: 2"), "engine.max_slots: 4 became 2, 1/2 of it"),
        (("interval: 64", "interval: null"), "checkpoints.interval: 64 became null"),
        (("tie_embeddings: true", "tie_embeddings: false"), "tie_embeddings: true became false"),
        (("[0.0, .inf]", "[0.0, 0.5]"), "layers.mamba.mixer.dt_limit: [0.0, inf] became [0.0, 0.5]"),
        ((FEED_FORWARD, ""), "layers.mamba.feed_forward is gone"),
        (
            ("[mamba, mamba, attention, mamba]", "[mamba, mamba, attention, attention, mamba]"),
            "pattern: 4 layers became 5: attention added at 3",
        ),
        (
            ("[mamba, mamba, attention, mamba]", "[attention, mamba]"),
            "pattern: 4 layers became 2: mamba x 2 at 0 removed",
        ),
        (
            ("[mamba, mamba, attention, mamba]", "[mamba, mamba, attention, attention]"),
            "pattern: 4 layers became 4: mamba at 3 became attention",
        ),
    ],
)
def test_a_change_is_said_in_words(edit: tuple[str, str], said: str) -> None:
    assert words(edit) == [said]


def test_a_new_name_for_a_layer_is_no_other_layer() -> None:
    said = words(("  drafter:", "  mtp-layer:"), ("layer: drafter", "layer: mtp-layer"))
    assert said == [
        "layer drafter is called mtp-layer now, otherwise unchanged",
        "mtp.layer: 'drafter' became 'mtp-layer'",
    ]
    renamed = dsl.parse_spec(
        TEXT.replace("mamba:", "ssm:").replace("[mamba, mamba,", "[ssm, ssm,").replace(", mamba]", ", ssm]")
    )
    found = diff(BASE, renamed)
    assert [change.words for change in found.changes] == ["layer mamba is called ssm now, otherwise unchanged"]
    assert found.weights.fit and found.before == found.after


def test_another_kind_of_mixer_is_said() -> None:
    data = BASE.model_dump()
    data["layers"]["mamba"]["mixer"] = data["layers"]["attention"]["mixer"]
    (change,) = diff(BASE, ModelSpec.model_validate(data)).changes
    assert change.words == "layers.mamba.mixer changed its kind from mamba2 to attention"


def test_weights_that_fit_and_that_do_not() -> None:
    assert diff(BASE, dsl.parse_spec(edited(("max_slots: 4", "max_slots: 2")))).weights.fit
    untied = diff(BASE, dsl.parse_spec(edited(("tie_embeddings: true", "tie_embeddings: false")))).weights
    assert (untied.added, untied.removed, untied.reshaped) == (("lm_head.weight",), (), ())
    wider = diff(BASE, dsl.parse_spec(edited(("vocab_size: 258", "vocab_size: 300")))).weights
    assert (wider.added, wider.removed, wider.reshaped) == ((), (), ("embed.weight",))


def test_another_head_of_drafts_takes_the_same_weights_and_moves_fewer_bytes_per_draft() -> None:
    found = diff(BASE, dsl.parse_spec(edited(("post_norm: own", "post_norm: own\n  draft_head: int8"))))
    (change,) = found.changes
    assert (change.path, change.before, change.after) == ("mtp.draft_head", "bf16", "int8") and found.weights.fit
    moved = found.before.drafting_step_bytes - found.after.drafting_step_bytes
    assert moved == BASE.engine.max_drafts * BASE.vocab_size * (BASE.d_model - 4)
    assert replace(found.after, drafting_step_bytes=0) == replace(found.before, drafting_step_bytes=0)


@given(specs(), specs())
def test_any_two_specs_compare_and_going_back_undoes_it(a: ModelSpec, b: ModelSpec) -> None:
    there, back = diff(a, b), diff(b, a)
    assert there.same == back.same == (a == b) == (not there.changes)
    assert (there.before, there.after) == (back.after, back.before)
    assert (there.weights.added, there.weights.removed) == (back.weights.removed, back.weights.added) or (
        set(there.weights.added) == set(back.weights.removed) and set(there.weights.removed) == set(back.weights.added)
    )
    json.dumps(there.plain(), allow_nan=False)
    text = report(there, "a", "b")
    assert all(change.words in text for change in there.changes)


@given(specs())
def test_every_field_that_changes_is_said(spec: ModelSpec) -> None:
    """One field is changed where the spec stays valid: it is in the list, and nothing else is."""
    engine = spec.engine.model_dump()
    name = Random(spec.name).choice(["max_context", "prefill_chunk"])
    engine[name] += 1
    other = ModelSpec.model_validate(spec.model_dump() | {"engine": engine})
    (change,) = diff(spec, other).changes
    assert (change.path, change.before, change.after) == (f"engine.{name}", engine[name] - 1, engine[name])


def test_the_command_prints_text_and_json(tmp_path: Path) -> None:
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    paths[0].write_text(TEXT)
    paths[1].write_text(edited(("state_size: 64", "state_size: 128")))
    run = CliRunner()
    text = run.invoke(app, ["diff", *map(str, paths)])
    assert text.exit_code == 0 and "layers.mamba.mixer.state_size: 64 became 128" in text.stdout
    assert "bytes of recurrent state per slot" in text.stdout and "+393,216 (+100.0%)" in text.stdout
    figures = json.loads(run.invoke(app, ["diff", *map(str, paths), "--json"]).stdout)
    state = figures["costs"]["state_bytes_per_slot"]
    assert state == {"before": 393216, "after": 786432, "difference": 393216}
    assert figures["same"] is False and figures["weights"]["fit"] is False
    assert figures["costs"]["parameters"]["after"] == num_parameters(dsl.load_spec(paths[1]))
    same = run.invoke(app, ["diff", str(paths[0]), str(paths[0])])
    assert same.exit_code == 0 and same.stdout.strip().endswith("say the same")


def test_the_command_names_the_mistakes_of_either_spec(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TEXT)
    (tmp_path / "b.yaml").write_text("name: [")
    for order in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml"), ("a.yaml", "c.yaml")):
        done = CliRunner().invoke(app, ["diff", *(str(tmp_path / name) for name in order)])
        assert done.exit_code == 2 and done.stdout == "" and "[spec-" in done.stderr


def test_figures_of_the_base_spec() -> None:
    """By hand: 3 Mamba-2 layers of 8 heads x 64 x 64, attention and drafter of 2 KV heads x 64."""
    found: Costs = costs(BASE)
    assert found.state_bytes_per_slot == 3 * 8 * 64 * 64 * 4
    assert found.kv_bytes_per_token == 2 * (2 * 2 * 64 * 2)
    assert found.checkpoint_bytes == found.state_bytes_per_slot + 3 * 3 * (8 * 64 + 2 * 64) * 4 + 256 * 4
    assert found.ring_bytes_per_slot == 32 * 4 * (256 + 3 * (2 * 640 + 8))
