"""The scenarios of `python -m runtime bench`, small: what they check holds, whatever the clock says."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

import runtime.cli
from runtime.bench import (
    ChatOptions,
    CostOptions,
    DraftsOptions,
    LoadOptions,
    Model,
    StartupOptions,
    run_chat,
    run_cost,
    run_drafts,
    run_load,
    run_startup,
)
from runtime.bench.drafts import _row
from runtime.bench.load import (
    PAUSE,
    Run,
    Step,
    _budget_checks,
    _budget_figures,
    _by_slots,
    _decode_figures,
    _prefill_us_per_token,
    _serve,
    _traffic,
    leaks,
)
from runtime.bench.tables import show
from runtime.checkpoints.image import image_layout
from runtime.errors import BadOption, BenchUnavailable

CHAT = ChatOptions(
    rounds=2, conversations=3, turns=3, system_tokens=21, turn_tokens=(8, 12), answer_tokens=(6, 12), seed=3
)
LOAD = LoadOptions(
    requests=30, budgets=(None, 12), rounds=2, gap=1.5, prompt_tokens=(1, 40), answer_tokens=(4, 20), head_tokens=12,
    cancelled=0.3, urgent=0.3, deadlines=4,
)  # fmt: skip
DRAFTS = DraftsOptions(prompt_tokens=20, new_tokens=20, requests=1, rounds=2)
COST = CostOptions(steps=40, contexts=(16,), resumes=3, batches=2, prompts=(20, 61))

STARTUP = StartupOptions(rounds=1, prompt_tokens=12, new_tokens=3)


def silent(_: str) -> None:
    """No progress notes."""


@pytest.fixture(scope="module")
def model(package, weights):
    return Model(package, weights, drafts=3)


@pytest.fixture(scope="module")
def chat(model):
    return run_chat(model, CHAT, silent)


@pytest.fixture(scope="module")
def load(model):
    return run_load(model, LOAD, silent)


@pytest.fixture(scope="module")
def cost(model):
    return run_cost(model, COST, silent)


@pytest.fixture(scope="module")
def drafts(model):
    return run_drafts(model, DRAFTS, silent)


def untimed(checks: dict[str, bool]) -> dict[str, bool]:
    """Those that do not depend on the machine."""
    return {
        name: holds for name, holds in checks.items() if " x " not in name and " ms" not in name and "%" not in name
    }


def test_chat_keeps_its_promises(chat):
    checks = untimed(chat["checks"])
    assert len(checks) == 6 and all(checks.values()), checks


def test_a_turn_resumes_where_the_one_before_ended(chat):
    assert len(chat["turns"]) == CHAT.conversations * CHAT.turns
    for conversation in range(1, CHAT.conversations + 1):
        turns = [turn for turn in chat["turns"] if turn["conversation"] == conversation]
        for before, turn in pairwise(turns):
            assert before["prompt_tokens"] + CHAT.answer_tokens[0] - 1 <= turn["restored"] == turn["found"]
            assert turn["restored"] + turn["prefilled"] == turn["prompt_tokens"] and not turn["recomputed"]
    third = next(turn for turn in chat["turns"] if (turn["conversation"], turn["turn"]) == (3, 1))
    assert third["restored"] == CHAT.system_tokens


def test_chat_holds_what_it_says(chat, package):
    pool, kept = chat["pool"], chat["kept"]["asked"]
    assert pool["rows"] == package.plan.limits.checkpoint_slots
    assert kept["written"] == 2 * CHAT.conversations * CHAT.turns + 1  # prompt and answer ends, one junction
    for held in kept["by_turn"]:
        assert held["bytes"] == held["rows"] * pool["row_bytes"] + held["pages"] * pool["page_bytes"]
        assert held["exclusive_bytes"] <= held["bytes"] <= pool["bytes"]


def test_chat_sees_a_lost_checkpoint(model, monkeypatch):
    monkeypatch.setattr("runtime.emission.Emitter.finish", lambda *_: None)
    checks = run_chat(model, CHAT, silent)["checks"]
    assert not checks["for every later turn that is the end of the answer before it"]
    assert checks["every turn resumes at the longest checkpoint and prefills what is left, nothing else"]
    assert checks["answers are those of a cold engine"]


def test_load_keeps_its_promises(load):
    checks = untimed(load["checks"])
    assert len(checks) == 2 and all(checks.values()), load["wrong"] + load["leaks"]
    assert set(load["budgets"]) == {"None", "12"}
    for row in load["budgets"].values():
        assert sum(row["finished"].values()) == LOAD.requests and row["finished"]["cancelled"]
        assert row["steps_with_prefill"] + row["steps_that_only_decode"] <= row["steps"]
        assert 0 < row["queue_ms"]["p50"] <= row["first_token_ms"]["max"] and row["prefilled_tokens"]


def test_load_decodes_beside_what_it_prefills(model):
    """Every eighth step pauses prefill, no other: what the slots of a step take to decode is measured beside it."""
    arrivals = list(_traffic(model, LOAD))
    run = _serve(model, arrivals, 12, deadlines=False)
    assert [step.paused for step in run.steps] == [number % PAUSE == PAUSE - 1 for number in range(len(run.steps))]
    paused = [step for step in run.steps if step.paused]
    assert not any(step.chunks or step.tokens for step in paused) and any(step.decodes_only for step in paused)
    assert all(step.tokens <= 12 for step in run.steps) and any(step.tokens == 12 for step in run.steps)
    assert sum(step.tokens for step in run.steps) == run.prefilled
    figures = _decode_figures(run.steps, [run])
    assert figures["steps"] == sum(step.decodes_only and not step.paused for step in run.steps)
    assert not run.leaks


def test_load_holds_a_step_against_its_budget():
    """A step with prefill, less what its slots take to decode beside it; the budget at the speed without one."""
    free = Run(None, prefill_us=1000.0, prefilled=100)
    decode, mixed = Step(50.0, 40.0, 2, 0, 0, 0, paused=True), Step(290.0, 250.0, 2, 12, 1, 0)
    run = Run(12, steps=[decode, mixed], prefill_us=200.0, prefilled=16, alone=[160.0])
    row = _budget_figures([run], run.steps, {1: 30.0} | _by_slots(run.steps), _prefill_us_per_token([free]))
    assert (row["budget_us"], row["extra_us"]["p90"], row["budget_share"]["p90"]) == (120.0, 240.0, 2.0)
    assert (row["alone_share"]["p50"], row["host_us"]["p50"], row["throughput_share"]) == (1.5, 40.0, 0.8)
    assert row["decode_us"] == {1: 30.0, 2: 50.0} and _budget_checks({"12": row}) == {
        "budget 12: p90 of steps with prefill within 2.0 x the time of its tokens": True,
        "budget 12: at least 70% of the prefill throughput without one": True,
    }


def test_load_sees_what_leaks(model):
    with model.engine() as engine:
        assert not list(leaks(engine))
        engine.scheduler.cache.pages.take()
        assert list(leaks(engine)) == ["a page", "a checkpoint that was given up"]
    with model.engine() as engine:
        engine.scheduler.cache.reserve()
        assert list(leaks(engine)) == ["a checkpoint row", "a checkpoint that was given up"]


def test_cost_counts_the_bytes_of_a_checkpoint(cost, package):
    row = cost["emission"]["16"]
    assert row["bytes"] == image_layout(package.plan, "", True).row_bytes
    assert row["buffers"] == len(package.plan.checkpoint_parts)
    assert row["total_us"] == pytest.approx(row["kernels_us"] + row["host_us"])
    assert set(cost["resume"]) == {f"{length} tokens, K={drafts}" for length in COST.prompts for drafts in (0, 3)}
    for resume in cost["resume"].values():
        assert sum(resume["parts_us"].values()) > 0 and resume["ms"]["p50"] <= resume["ms"]["max"] < 1e4


def test_drafts_measures_every_number_on_every_text(drafts, model):
    most = model.package.plan.limits.max_drafts
    assert set(drafts["tokens_per_s"]) == {"code", "prose", "random bytes"}
    for row in drafts["tokens_per_s"].values():
        fixed = ["no drafter", *map(str, range(1, most + 1))]
        assert min(row[name] for name in (*fixed, "auto")) > 0 and row["best"] in fixed
        assert row["auto_to_best"] > 0


def test_auto_is_compared_with_the_best_fixed_number_round_by_round():
    """A round in which the whole machine is slow tells nothing of auto."""
    row = _row({"no drafter": [10.0, 5.0, 10.0], "1": [20.0, 10.0, 20.0], "auto": [18.0, 9.0, 19.0]})
    assert row["best"] == "1" and row["auto_to_best"] == 0.9
    assert (row["auto"], row["1"]) == (18.0, 20.0)
    assert _row({"no drafter": [10.0], "1": [5.0], "auto": [12.0]})["auto_to_best"] == 1.2


@pytest.fixture(scope="module")
def startup(package, weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("startup") / "weights.safetensors"
    save_file(weights, path)
    return run_startup(Model(package, path, drafts=3), STARTUP, silent)


def test_every_start_is_a_process_that_answers(startup):
    assert len(startup["warm_s"]["all"]) == STARTUP.rounds
    for row in (startup["first"], startup["warm"]):
        assert row["load_s"] > 0 and row["first_token_s"] > 0
        assert 0 < row["steady_mib"] <= row["peak_mib"] and row["imported_mib"] > 50  # torch is imported before
    assert startup["allowed_mib"] == startup["weights_mib"] * 1.25 + 100


def test_a_start_says_why_it_cannot_be_measured(package, weights, tmp_path):
    with pytest.raises(BenchUnavailable, match="not in a file"):
        run_startup(Model(package, weights), STARTUP, silent)
    with pytest.raises(BenchUnavailable, match="context"):
        run_startup(Model(package, tmp_path / "absent"), replace(STARTUP, prompt_tokens=10**6), silent)
    with pytest.raises(BenchUnavailable, match="absent"):
        run_startup(Model(package, tmp_path / "absent"), STARTUP, silent)


def test_figures_can_be_read_by_people_and_programs(chat, load, cost, drafts, startup, capsys):
    found = {"chat": chat, "load": load, "cost": cost, "drafts": drafts, "startup": startup}
    for name, figures in found.items():
        assert json.loads(json.dumps(runtime.cli._finite(figures), allow_nan=False))["scenario"] == name
        show(name, figures)
        shown = capsys.readouterr().out
        assert shown.count("ok  ") + shown.count("FAIL") == len(figures["checks"])


def test_what_does_not_fit_is_refused(model):
    for run, options in ((run_chat, ChatOptions()), (run_load, LoadOptions()), (run_cost, CostOptions())):
        with pytest.raises(BenchUnavailable, match="max_context"):
            run(model, options, silent)
    with pytest.raises(BadOption, match="budgets"):
        run_load(model, LoadOptions(budgets=(12,)), silent)
    for name, value in (("rounds", 0), ("requests", 0), ("prompt_tokens", (0, 3)), ("budgets", (None, 0))):
        with pytest.raises(BadOption, match=name):
            run_load(model, LoadOptions(**{name: value}), silent)
    for option, value in (("conversations", 2), ("turns", 1), ("rounds", 0)):
        with pytest.raises(BadOption, match=option):
            run_chat(model, replace(CHAT, **{option: value}), silent)


@pytest.fixture
def bench(package, weights, tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(weights, path)

    def run(*arguments: str):
        return CliRunner().invoke(runtime.cli.app, ["bench", str(package.path), "--weights", str(path), *arguments])

    return run


def test_command_line_refuses_options_of_another_scenario(bench):
    for arguments, allowed in (
        (("--interval", "8"), "only with --scenario chat"),
        (("--scenario", "chat", "--batch", "2"), "only with --scenario decode"),
        (("--scenario", "cost", "--temperature", "1"), "only with --scenario decode or chat"),
        (("--scenario", "load", "--eager"), "only with --scenario decode"),
        (("--scenario", "chat", "--interval", "often"), "page, or a number of tokens"),
        (("--scenario", "chat", "--budgets", "64"), "only with --scenario load"),
        *(
            (("--scenario", "load", "--budgets", text), "numbers of tokens from 1")
            for text in ("64,", "64,64", "0", "-1")
        ),
        (("--scenario", "load", "--prompt-tokens", "0"), "prompt_tokens"),
    ):
        done = bench(*arguments)
        assert done.exit_code == 2 and allowed in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_command_line_sizes_the_load(bench, monkeypatch):
    """Lengths are the largest; a run without a budget is always among them."""
    asked = []
    monkeypatch.setattr(
        runtime.cli, "run_load", lambda model, options, progress: asked.append(options) or {"checks": {}}
    )
    sizes = ("--prompt-tokens", "50", "--new-tokens", "8", "--requests", "9", "--rounds", "1", "--budgets", "32, 16")
    assert (
        bench("--scenario", "load", "--json").exit_code == bench("--scenario", "load", "--json", *sizes).exit_code == 0
    )
    small = LoadOptions(9, (None, 32, 16), 1, prompt_tokens=(1, 50), answer_tokens=(8, 8))
    assert asked == [LoadOptions(), small]


@pytest.mark.parametrize("holds", [True, False])
def test_command_line_ends_with_what_does_not_hold(bench, monkeypatch, holds):
    asked = []

    def run(model, options, progress):
        asked.append(options)
        return {"checks": {"the sky is blue": holds}, "ratio": float("nan")}

    monkeypatch.setattr(runtime.cli, "run_chat", run)
    done = bench("--scenario", "chat", "--interval", "page", "--temperature", "0.5", "--seed", "4", "--json")
    assert asked == [ChatOptions(interval=None, temperature=0.5, seed=4)]
    assert json.loads(done.stdout) == {"checks": {"the sky is blue": holds}, "ratio": None}
    assert done.exit_code == (0 if holds else 1)
    assert ("does not hold the sky is blue" in done.stderr) is not holds


def test_exit_code_of_checks():
    runtime.cli._end_with({})
    with pytest.raises(typer.Exit) as ended:
        runtime.cli._end_with({"a": True, "b": False})
    assert ended.value.exit_code == 1
