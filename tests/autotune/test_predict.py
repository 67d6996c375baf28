"""Candidates for a GPU that is not here: compiled, judged by the rules of `inspect`, ranked, never called measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.forge import Forge
from autotune.predict import CHIPS, Model
from autotune.proof import Rejected
from codegen.errors import UntunedWrong
from codegen.inspect.device import DEVICES
from codegen.lower import TARGETS
from codegen.plan import Kernel
from codegen.predict import Assumptions, of_target
from codegen.render import kernel_text
from codegen.tuned import FREE, KEEP
from dsl import ModelSpec

MATMUL = "matmul_256x1160"


@pytest.fixture(scope="module")
def model(tiny: ModelSpec, folder: Path) -> Model:
    return Model(Forge(tiny, "cuda:90", folder), MATMUL, folder / "compiled", KEEP)


def test_every_cuda_target_has_a_device() -> None:
    cuda = {target for target in TARGETS if target != "cpu"}
    assert cuda == set(CHIPS) == {f"cuda:{capability}" for capability in DEVICES}


def test_a_prediction_says_what_it_is_from(model: Model) -> None:
    verdict = model.decide({"num_stages": 5})
    assert verdict.kind == "predicted"
    assert verdict.detail["device"] == "H100"
    (resources,) = verdict.detail["resources"]
    assert resources["registers"] > 0
    assert resources["shared_bytes"] > 0
    assert resources["instructions"] > 100
    assert {scene["bound"] for scene in verdict.detail["scenes"].values()} <= {
        "memory", "issue", "tensor cores", "latency", "spills",
    }  # fmt: skip


def test_rates_are_those_of_the_predictions_of_steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table of GPUs, one set of assumptions: half the bandwidth is twice the time of what is bound by memory."""
    assert model.gpu is of_target("cuda:90")[0]
    assert model.assumed == Assumptions()
    compiled = model._compile(candidate := model.forge.candidate(MATMUL, {}))
    prefill = next(scene for scene in model.scenes if scene.name == "prefill")
    monkeypatch.setattr(model, "gpu", replace(model.gpu, bandwidth=1e9))
    slow = model._predict(candidate, compiled, prefill)
    monkeypatch.setattr(model, "assumed", replace(model.assumed, bandwidth_share=0.425, launch_seconds=1.0))
    slower = model._predict(candidate, compiled, prefill)
    assert (slow.bound, slower.bound) == ("memory", "memory")
    assert slower.seconds - 1.0 == pytest.approx(2 * (slow.seconds - Assumptions().launch_seconds))


def test_an_untuned_kernel_that_breaks_a_rule_of_inspect_is_named(tiny: ModelSpec, folder: Path) -> None:
    def text(kernel: Kernel) -> str:
        return kernel_text(kernel).replace("b_x, panel", "b_x.to(tl.float16), panel").replace(
            "panel_operand(b_w, BLOCK_K, BLOCK_N)", "panel_operand(b_w, BLOCK_K, BLOCK_N).to(tl.float16)"
        )  # fmt: skip

    with pytest.raises(UntunedWrong, match=rf"{MATMUL} cannot be tuned.*bf16 or int8 operands are meant"):
        Model(Forge(tiny, "cuda:90", folder, text), MATMUL, folder / "compiled", KEEP)


@pytest.mark.parametrize("error", [RuntimeError(), RuntimeError("\n")])
def test_an_error_of_no_words_rejects_and_one_of_the_machine_does_not(
    model: Model, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(model, "_compile", fail)
    with pytest.raises(Rejected, match=r"does not compile: RuntimeError\("):
        model.decide({"num_stages": 5})
    error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        model.decide({"num_stages": 5})


def test_loads_that_wait_for_each_other_are_predicted_to_be_slower(model: Model) -> None:
    assert model.decide({}).ratio == 1
    assert model.decide({"num_stages": 1}).ratio > 1.1


def test_a_candidate_that_breaks_a_rule_of_inspect_is_rejected(tiny: ModelSpec, folder: Path) -> None:
    def text(kernel: Kernel) -> str:
        plain = kernel_text(kernel)
        return plain.replace("b_x, panel", "b_x.to(tl.float16), panel").replace(
            "panel_operand(b_w, BLOCK_K, BLOCK_N)", "panel_operand(b_w, BLOCK_K, BLOCK_N).to(tl.float16)"
        ) if dict(kernel.options) else plain  # fmt: skip

    forge = Forge(tiny, "cuda:90", folder, text)
    with pytest.raises(Rejected, match="bf16 or int8 operands are meant"):
        Model(forge, MATMUL, folder / "compiled", KEEP).decide({"num_stages": 2})


def test_other_dots_are_other_bits(tiny: ModelSpec, folder: Path) -> None:
    """A tile for the wide instructions of the target computes in another order: allowed only where bits are free."""
    forge = Forge(tiny, "cuda:90", folder)
    wide = {"row_tiles": (16, 64), "BLOCK_N": 64}
    with pytest.raises(Rejected, match="the untuned kernel has no dots of wgmma"):
        Model(forge, MATMUL, folder / "compiled", KEEP).decide(wide)
    assert Model(forge, MATMUL, folder / "compiled", FREE).decide(wide).kind == "predicted"


def test_a_run_for_a_gpu_that_is_not_here_marks_everything_as_predicted(tiny: ModelSpec, tmp_path: Path) -> None:
    spec = Path(__file__).resolve().parents[2] / "specs" / "tiny-hybrid.yaml"
    common = ("--kernel", "matmul_256x258", "--folder", str(tmp_path))
    run = ("run", str(spec), "--target", "cuda:90", "--trials", "3", *common, "--json")
    ran = CliRunner().invoke(app, list(run))
    assert ran.exit_code == 0, ran.output
    (result,) = json.loads(ran.stdout)["results"]
    assert result["kind"] == "predicted"
    assert "predicted" in CliRunner().invoke(app, ["show", *common]).output
    page = tmp_path / "page.html"
    CliRunner().invoke(app, ["report", *common, "-o", str(page)])
    assert "Predicted, not measured." in page.read_text()
