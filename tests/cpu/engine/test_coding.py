"""Weights in 12 bits an element: any matrix comes back bit for bit, and a model computes the same with and without."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autotune.forge import Forge, reduced
from codegen.lower import lower
from codegen.lower.builder import Builder
from codegen.lower.limits import resolve_limits
from codegen.lower.targets import MatmulTile, resolve_target
from codegen.package import write_package
from codegen.plan import Plan
from codegen.tunables import CODED
from dsl import load_spec
from runtime import coding
from runtime.drafter import Drafter
from runtime.engine import Engine
from runtime.layouts import laid_out, panel
from runtime.package import open_package
from runtime.plan import Buffer, Source, read_plan
from runtime.plan_rules import check_plan
from runtime.traffic import Shape, step_launches
from runtime.weight_arena import launch_order
from tests.cpu.engine.toys import Ask, agreeing_weights, drain, same_bits, toy_spec

KINDS = st.sampled_from(["normal", "any bits", "few values", "zeros", "wide"])


def matrix(kind: str, n: int, k: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, k, generator=generator)
    if kind == "any bits":
        return torch.randint(-(1 << 15), 1 << 15, (n, k), generator=generator).to(torch.int16).view(torch.bfloat16)
    if kind == "wide":
        return (normal * torch.logspace(-37, 37, k)).bfloat16()
    return {"normal": normal, "few values": normal.sign(), "zeros": 0 * normal}[kind].bfloat16()


def decoded(w: torch.Tensor, escapes: torch.Tensor) -> torch.Tensor:
    """Panels [P, R, N, 2] as the definition in runtime/coding.py reads."""
    panels, height, _, n = w.shape
    rows = escapes.shape[1]
    head = height - rows
    heads = w[:, :head].reshape(panels, -1).long()
    books, escaped = heads[:, :16], heads[:, 16 : 16 + rows, None] != 0
    body = w[:, head:].reshape(panels, rows, 3 * n).long()
    low, codes = body[..., : 2 * n], body[..., 2 * n :]
    numbers = torch.cat([codes & 15, codes >> 4], 2)
    looked_up = books.gather(1, numbers.flatten(1)).view(numbers.shape)
    high = torch.where(escaped, torch.cat([codes, escapes.long()], 2), looked_up)
    return (high << 8 | low).to(torch.uint16).view(torch.bfloat16).view(panels, rows, n, 2)


def buffers(n: int, k: int, bn: int, pairs: int) -> tuple[Buffer, Buffer]:
    panels, sources = -(-n // bn), (Source("w", (n, k), "bf16"),)
    height = coding.head_rows(pairs, bn) + pairs
    coded = Buffer("w", (panels, height, 3, bn), "uint8", "weight", "zero", "coded_panel", sources, 0.0)
    return coded, Buffer("e", (panels, pairs, bn), "uint8", "weight", "zero", "coded_escapes", sources, 0.0)


WIDTHS = st.sampled_from([16, 32, 64])


@given(KINDS, st.integers(1, 150), st.integers(1, 90), WIDTHS, st.integers(0, 3), st.integers(0, 9))
def test_any_matrix_comes_back(kind, n, k, bn, spare, seed):
    pairs = -(-k // 2) + spare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "ELEMENTS_AT_A_TIME", 4096)
        w = matrix(kind, n, k, seed)
        coded, escapes = (laid_out(buffer, [w]) for buffer in buffers(n, k, bn, pairs))
    assert coding.rows_of(coded.shape[1], bn) == pairs
    plain = panel([w], (coded.shape[0], pairs, bn, 2))
    assert same_bits(decoded(coded, escapes).view(torch.int16), plain.view(torch.int16))


@given(st.integers(1, 5000), st.sampled_from([16, 32, 64, 128]))
def test_a_height_gives_the_rows_back(rows, n):
    assert coding.rows_of(coding.head_rows(rows, n) + rows, n) == rows


def test_hardly_a_row_of_normal_weights_escapes():
    """What a step reads of a matrix: 12 bits of 16, a codebook, and 1 to 2 percent of the rows once more."""
    w = matrix("normal", 1024, 768, 0) * 0.02
    coded, escapes = (laid_out(buffer, [w]) for buffer in buffers(1024, 768, 64, 384))
    assert 0 < escapes.any(2).float().mean() < 0.03
    assert coded.numel() < 0.77 * 2 * w.numel()


def test_escapes_lie_behind_all_that_a_step_reads(tmp_path):
    """Each matrix is followed by the next."""
    write_package([with_codes(1)], tmp_path / "p", toy_spec(), "toy.yaml")
    layouts = [buffer.layout for buffer in launch_order(open_package(tmp_path / "p").plan)]
    assert layouts.count("coded_escapes") > 3 and "coded_escapes" not in layouts[: -layouts.count("coded_escapes")]


def with_codes(coded: int) -> Plan:
    plan = lower(toy_spec(), "cpu")
    kernels = {k.name for k in plan.kernels if any(t.name == CODED for t in k.tunables)}
    assert len(kernels) > 3
    return lower(toy_spec(), "cpu", {name: {CODED: coded} for name in kernels})


def test_a_model_with_codes_is_the_model_without(tmp_path, cache):
    """Tokens, logprobs, checkpoints' stamp: nothing tells."""
    spec, found = toy_spec(), []
    weights = agreeing_weights(spec)
    weights["layers.0.mixer.in_proj.weight"][3] *= 1e-30  # rows that escape
    plans = [with_codes(coded) for coded in (0, 1)]
    plain, coded_too = ({buffer.layout for buffer in plan.buffers} for plan in plans)
    assert coded_too - plain == {"coded_panel", "coded_escapes"}
    for coded, plan in enumerate(plans):
        folder = tmp_path / str(coded)
        write_package([plan], folder, spec, "toy.yaml")
        cache.mkdir(parents=True, exist_ok=True)
        (folder / "cache").symlink_to(cache)
        with Engine(open_package(folder), weights, drafts=3) as engine:
            asks = [Ask(tuple(range(20 + i, 50 + 3 * i)), 30, temperature=0.5 * i, seed=i) for i in range(4)]
            requests = [ask.submit(engine) for ask in asks]
            drain(engine)
            found.append([request.output for request in requests])
            found.append(engine.buffers["logits"].clone())
    assert found[0] == found[2] and same_bits(found[1], found[3])
    assert plans[0].numerics == plans[1].numerics


def test_tuning_proves_the_kernels_of_the_whole_model(tmp_path):
    """Its layers of one kind each may fit into a cache: what is coded depends on the model that they are a part of."""
    spec = load_spec("specs/mamba2-130m.yaml").model_copy(update={"vocab_size": 300})
    whole, forge = lower(spec, "cpu"), Forge(spec, "cpu", tmp_path)
    assert "coded_panel" not in {b.layout for b in lower(reduced(spec), "cpu").buffers}
    assert {k.name: k for k in forge.untuned.kernels} == {k.name: k for k in whole.kernels}


def test_traffic_counts_codes_as_they_are_and_as_they_were_stored():
    plain, coded = (read_plan(json.loads(with_codes(c).to_json())) for c in (0, 1))
    shape = Shape(1, 0, 0, 20, Drafter.NONE)
    moved, fewer = (list(step_launches(plan, shape)) for plan in (plain, coded))
    assert [m.stored_bytes for m in moved] == [m.bytes for m in moved] == [m.stored_bytes for m in fewer]
    assert all(m.bytes < m.stored_bytes for m in fewer if m.kernel.startswith(("matmul", "gated_matmul")))


@pytest.mark.parametrize(("k", "bn"), [(k, bn) for k in (2, 62, 66, 512, 1000) for bn in (16, 32, 64, 128)])
def test_a_plan_has_room_for_the_head_of_a_panel(k, bn):
    b = Builder(toy_spec(), resolve_target("cpu"), resolve_limits(toy_spec()), "", 0)
    b.panel("w", (("w", 100),), k, MatmulTile(bn, k, k, (1,), True))
    assert b.buffers["w"].shape[1] == coding.head_rows(k // 2, bn) + k // 2


def test_large_models_are_coded_and_small_ones_are_not():
    large, small = (lower(load_spec(f"specs/{name}.yaml"), "cpu") for name in ("mamba2-130m", "tiny-hybrid"))
    assert "coded_panel" in {b.layout for b in large.buffers} and "coded_panel" not in {b.layout for b in small.buffers}
    assert "coded_panel" not in {b.layout for b in lower(load_spec("specs/mamba2-130m.yaml"), "cuda:90").buffers}


@pytest.mark.parametrize(
    ("layout", "change"),
    [
        ("coded_panel", lambda shape: [shape[0], shape[1] // 2, *shape[2:]]),
        ("coded_panel", lambda shape: [shape[0] - 1, *shape[1:]]),
        ("coded_panel", lambda shape: [*shape[:2], 4, shape[3]]),
        ("coded_escapes", lambda shape: [shape[0] - 1, *shape[1:]]),
        ("coded_escapes", lambda shape: [*shape, 1]),
    ],
)
def test_a_plan_whose_codes_have_another_shape_is_refused(layout, change):
    plan = with_codes(1)
    data = json.loads(plan.to_json())
    buffer = next(b for b in data["buffers"] if b["layout"] == layout)
    buffer["shape"] = change(buffer["shape"])
    with pytest.raises(ValueError, match=f"{buffer['name']} does not have the shape"):
        check_plan(read_plan(data))
