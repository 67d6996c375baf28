"""What only a GPU can show: `pytest tests/gpu -s` builds the demo model for the device, verifies and measures it.

verify covers the kernels against the fp32 reference and graph == eager, with the properties that CPUs are tested for.
"""

import json
from pathlib import Path

import pytest
import torch

from codegen.aot import compile_package
from codegen.lower import TARGETS, lower
from codegen.package import write_package
from codegen.verify import verify_package
from dsl import load_spec

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "specs" / "tiny-hybrid" / "weights.safetensors"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine"),
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, built for the device that is here."""
    major, minor = torch.cuda.get_device_capability()
    target = f"cuda:{major}{minor}"
    if target not in TARGETS:
        pytest.skip(f"{target} is not one of {', '.join(TARGETS)}")
    spec = load_spec(ROOT / "specs" / "tiny-hybrid.yaml")
    plan = lower(spec, target)
    folder = tmp_path_factory.mktemp("gpu") / "package"
    write_package([plan], folder, spec, "specs/tiny-hybrid.yaml")
    compile_package(plan, folder)
    return folder


def test_every_property_holds_on_the_gpu(package: Path) -> None:
    report = verify_package(package, WEIGHTS)
    failed = [f"{check.name}: {check.detail}" for check in report.checks if not check.passed]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("drafts", [0, 3])
def test_brief_bench(package: Path, drafts: int) -> None:
    from runtime.bench import BenchOptions, run_bench
    from runtime.engine import Engine

    with Engine(package, WEIGHTS, drafts=drafts, checkpoints=False) as engine:
        figures = run_bench(engine, BenchOptions(new_tokens=128, profile=False), progress=lambda _: None)
    print(
        json.dumps(
            {name: figures[name] for name in ("drafts", "decode_tokens_per_s", "step_us", "prefill_tokens_per_s")}
        )
    )
    assert figures["decode_tokens_per_s"] > 0
