"""Heads of drafts in int8 and int4: laid out as defined, computed as the reference does, no bit depends on company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from autotune.forge import Forge
from codegen.lower import draft_head as lowered
from dsl import ModelSpec
from dsl.reference import draft_head
from dsl.reference.draft_head import INT4_GROUP, int4_logits, int8_logits, quantise_groups, quantise_rows
from dsl.reference.norm import rms_norm
from runtime import layout_cache, quantise, weight_arena
from runtime.engine import Engine
from runtime.layouts import laid_out
from runtime.plan import Buffer, Source
from tests.cpu.engine.toys import Ask, Oracle, agreeing_weights, drain, same_bits, toy_spec, write_toy

ASKS = [Ask(tuple(range(30 + i, 45 + 2 * i)), 24, temperature=0.4 * i, seed=i) for i in range(4)]


WIDTHS = {"int8": 20, "int4": 150}  # the latter of three groups, the last of which is not full


@pytest.fixture(
    scope="module",
    params=[("int8", False), ("int8", True), ("int4", False), ("int4", True)],
    ids=["int8", "int8 tied", "int4", "int4 tied"],
)
def subject(request, tmp_path_factory, cache):
    """A package with a rounded head of drafts, its weights, and the matrix of its head."""
    kind, tied = request.param
    spec = toy_spec(draft_head=kind).model_copy(update={"tie_embeddings": tied, "d_model": WIDTHS[kind]})
    package = write_toy(tmp_path_factory.mktemp(kind) / "package", cache, spec)
    weights = agreeing_weights(spec, 0.05)
    return spec, package, weights, weights["embed.weight" if tied else "lm_head.weight"]


def scales_of(spec, head: torch.Tensor) -> torch.Tensor:
    """[V] of a head, as the reference defines them."""
    quantise = {"int8": quantise_rows, "int4": quantise_groups}[spec.mtp.draft_head]
    return quantise(head)[-1][:, 0].contiguous()


def logits_of(spec, rows: torch.Tensor, scale: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """[rows, V] of rounded rows [rows, d] and their scales [rows], as the reference defines them."""
    if spec.mtp.draft_head == "int8":
        return int8_logits(rows.float(), scale[:, None], *quantise_rows(head))
    return int4_logits(rows.float(), scale[:, None], *quantise_groups(head))


def buffer_of(layout: str, shape: tuple[int, ...], matrix: torch.Tensor) -> Buffer:
    dtype = {"int8_panel": "int8", "int4_panel": "uint8"}.get(layout, "fp32")
    stored = "bf16" if matrix.dtype is torch.bfloat16 else "fp32"
    sources = (Source("w", tuple(matrix.shape), stored),)
    return Buffer("w", shape, dtype, "weight", "zero", layout, sources, 0.0)


@given(st.integers(1, 70), st.integers(1, 40), st.sampled_from([1, 8, 32]), st.integers(0, 2), st.data())
def test_rows_lie_in_panels_of_quads(n, k, block_n, spare, data):
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    matrix = (torch.randn(n, k, generator=generator) * torch.logspace(-9, 9, n)[:, None]).to(dtype)
    matrix[data.draw(st.integers(0, n - 1))] = 0
    panels, quads = -(-n // block_n), -(-k // 4) + spare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantise, "ROWS_AT_ONCE", 32)
        panel = laid_out(buffer_of("int8_panel", (panels, quads, block_n, 4), matrix), [matrix])
        scale = laid_out(buffer_of("int8_scale", (n,), matrix), [matrix])
    values, scales = quantise_rows(matrix)
    rows = panel.permute(0, 2, 1, 3).reshape(panels * block_n, 4 * quads)
    assert torch.equal(rows[:n, :k].float(), values) and same_bits(scale, scales[:, 0].contiguous())
    assert not rows[n:].any() and not rows[:, k:].any()
    error = (rows[:n, :k].double() * scale.double()[:, None] - matrix.double()).abs()
    assert (error <= 0.5001 * scale.double()[:, None] + 1e-30).all()


@given(st.integers(1, 70), st.integers(1, 400), st.sampled_from([1, 8, 32]), st.integers(0, 2), st.data())
def test_rows_lie_in_panels_of_groups(n, k, block_n, spare, data):
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    spread = torch.logspace(-3, 0, k)[torch.randperm(k, generator=generator)]  # small and large groups
    matrix = (torch.randn(n, k, generator=generator) * torch.logspace(-9, 9, n)[:, None] * spread).to(dtype)
    matrix[data.draw(st.integers(0, n - 1))] = 0
    panels, blocks = -(-n // block_n), -(-k // (2 * INT4_GROUP)) + spare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantise, "ROWS_AT_ONCE", 32)
        panel = laid_out(buffer_of("int4_panel", (panels, blocks, 2 + INT4_GROUP, block_n), matrix), [matrix])
        scale = laid_out(buffer_of("int4_scale", (n,), matrix), [matrix])
    found = panel[:, :, :2].permute(0, 3, 1, 2).reshape(panels * block_n, 2 * blocks)
    quads = panel[:, :, 2:].reshape(panels, blocks, INT4_GROUP // 4, block_n, 4).permute(0, 3, 1, 2, 4)
    codes = torch.stack([quads & 15, quads >> 4], 3).reshape(panels * block_n, 2 * blocks * INT4_GROUP)
    values, multipliers, scales = quantise_groups(matrix)
    groups = multipliers.shape[1]
    assert torch.equal(codes[:n, :k].float() - 8, values) and same_bits(scale, scales[:, 0].contiguous())
    assert torch.equal(found[:n, :groups].float(), multipliers)
    assert not found[n:].any() and not found[:, groups:].any()
    assert multipliers.min() >= 1 and multipliers.max() <= 63 and values.abs().max() <= 7
    step = (multipliers * scales).double().repeat_interleave(INT4_GROUP, 1)[:, :k]
    error, cut = (values.double() * step - matrix.double()).abs(), values.abs() == 7
    assert (error <= 0.5001 * step + 1e-30)[~cut].all()
    whole = multipliers.repeat_interleave(INT4_GROUP, 1)[:, :k] >= 8  # of others the step is much too short or long
    assert (error <= 1.4 * step + 1e-30)[cut & whole].all()


def test_values_that_are_cut_make_the_error_of_a_row_smaller(monkeypatch):
    """Steps of which a group's largest value has 7.8, not 7, on weights of a normal distribution."""
    matrix, errors = torch.randn(500, 768, generator=torch.Generator().manual_seed(0)), []
    for widest in (draft_head.WIDEST, 7.0 * 63):
        monkeypatch.setattr(draft_head, "WIDEST", widest)
        values, multipliers, scales = quantise_groups(matrix)
        errors.append((values * (multipliers * scales).repeat_interleave(INT4_GROUP, 1) - matrix).norm().item())
    assert errors[0] < 0.97 * errors[1] and errors[0] < 0.105 * matrix.norm().item()


@pytest.fixture(scope="module", params=[64, 128, 150, 300], ids=lambda d: f"d {d}")
def head_kernel(request, tmp_path_factory):
    """The kernel of an int4 head alone: Triton's, its plan's, and the buffers that it takes."""
    spec = toy_spec(draft_head="int4").model_copy(update={"d_model": request.param})
    forge = Forge(spec, "cpu", tmp_path_factory.mktemp("kernel"))
    (name,) = (kernel.name for kernel in forge.untuned.kernels if kernel.name.startswith("draft_head"))
    buffers = {buffer.name: buffer for buffer in forge.untuned.buffers}
    return forge.candidate(name, {}), buffers["draft_head"], buffers["draft_head_scale"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(1, 20), extreme=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_an_int4_kernel_is_the_reference_bit_for_bit_whatever_the_rows(head_kernel, rows, extreme, seed):
    candidate, panels, scales = head_kernel
    ((vocab, d),) = (source.shape for source in panels.sources)
    generator = torch.Generator().manual_seed(seed)
    if extreme:  # the largest sum that there can be
        x = torch.full((rows, d), -127, dtype=torch.int8)
        head = torch.full((vocab, d), -3.0).to(torch.bfloat16)
        head[::2] = 5.0
    else:
        x = torch.randint(-127, 128, (rows, d), dtype=torch.int8, generator=generator)
        head = torch.randn(vocab, d, generator=generator).to(torch.bfloat16)
    x_scale = torch.rand(rows, generator=generator)
    w, w_scale = laid_out(panels, [head]), laid_out(scales, [head])
    expected = int4_logits(x.float(), x_scale[:, None], *quantise_groups(head))
    tiles = candidate.kernel.row_tiles
    for tile in tiles:
        y = torch.full((rows + 1, vocab), torch.nan)
        given = {"x": x, "x_scale": x_scale, "w": w, "w_scale": w_scale, "y": y, "rows": rows}
        candidate.function[(panels.shape[0], 1)](**given, BLOCK_M=tile, **candidate.options)
        assert same_bits(y[:rows], expected) and y[rows:].isnan().all()


def test_an_int4_head_cannot_overflow():
    """The widest model that a spec may ask for, with the largest values everywhere."""
    assert ModelSpec.model_fields["d_model"].metadata[1].le * 127 * 7 * 63 < 2**31


def test_the_rounded_head_is_kept_between_processes_with_all_other_weights(subject, tmp_path, monkeypatch):
    spec, package, weights, head = subject
    monkeypatch.setattr(layout_cache, "LEAST_BYTES", 1)
    save_file(weights, path := tmp_path / "weights.safetensors")
    with Engine(package, path, layout_cache=tmp_path / "kept"):
        pass
    monkeypatch.setattr(weight_arena, "lay_out", lambda *_: pytest.fail("laid out again"))
    with Engine(package, path, layout_cache=tmp_path / "kept") as engine:
        assert same_bits(engine.buffers["draft_head_scale"], scales_of(spec, head))
        for name in ("draft_head", "draft_head_scale"):
            buffer = package.plan.buffers[name]
            assert same_bits(engine.buffers[name], laid_out(buffer, [head])) and engine.buffers[name].any()


def test_logits_are_the_references_bit_for_bit(subject):
    spec, package, weights, head = subject
    norm = weights["mtp.norm.weight"]
    compared = 0
    with Engine(package, weights, drafts=3, slots=1) as engine:
        ASKS[0].submit(engine)
        while engine.busy:
            engine.step()
            rows, scale, hidden, logits = (
                engine.buffers[name][:1] for name in ("draft_h", "draft_h_scale", "draft_hidden", "logits")
            )
            assert same_bits(logits, logits_of(spec, rows, scale, head))
            values, top = quantise_rows(rms_norm(hidden, norm, spec.norm_eps))
            torch.testing.assert_close(scale, top[:, 0], rtol=1e-6, atol=0.0)
            assert (values - rows.float()).abs().max() <= 1
            compared += int((values == rows.float()).sum())
    assert compared > 100  # a step that lies between two is rare


def drafts_of(package, weights, asks, **options) -> list[dict[int, list[int]]]:
    """Of each request: its drafts, by the number of tokens that were committed when they were made."""
    found = []
    with Engine(package, weights, drafts=3, checkpoints=False, **options) as engine:
        requests = [ask.submit(engine) for ask in asks]
        found = [dict[int, list[int]]() for _ in requests]
        while engine.busy:
            engine.step()
            for seat in engine.scheduler.seats.all():
                mine = found[requests.index(seat.request)]
                length = int(engine.buffers["committed_len"][seat.slot])
                mine[length] = engine.buffers["tokens"][seat.slot, 1:4].tolist()
    return found


def test_drafts_do_not_depend_on_the_batch_or_the_threads(subject):
    _, package, weights, _ = subject
    together = drafts_of(package, weights, ASKS, threads=2)
    for ask, expected in zip(ASKS, together, strict=True):
        (alone,) = drafts_of(package, weights, [ask], threads=1)
        shared = alone.keys() & expected.keys()
        assert len(shared) >= 4 and all(alone[length] == expected[length] for length in shared)


def test_the_head_of_drafts_changes_no_token(subject, tmp_path, cache):
    spec, package, weights, _ = subject
    bf16 = toy_spec().model_copy(update={"tie_embeddings": spec.tie_embeddings, "d_model": spec.d_model})
    oracle = Oracle(write_toy(tmp_path / "bf16", cache, bf16), weights)
    with Engine(package, weights, drafts=3) as engine:
        requests = [ask.submit(engine) for ask in ASKS]
        drain(engine, poison=True)
        assert [(request.output, request.finish_reason) for request in requests] == [oracle(ask) for ask in ASKS]
        assert engine.stats().tokens_per_step > 1.5


def test_lowering_reference_and_runtime_round_to_the_same_numbers() -> None:
    names = ("LARGEST", "SMALLEST", "LARGEST_INT4", "LARGEST_MULTIPLIER", "INT4_GROUP")
    assert [getattr(quantise, name) for name in names] == [getattr(draft_head, name) for name in names]
    largest = (lowered.LARGEST_ROW, lowered.LARGEST_INT4, lowered.LARGEST_MULTIPLIER)
    assert largest == (quantise.LARGEST, quantise.LARGEST_INT4, quantise.LARGEST_MULTIPLIER)
    assert (lowered.SMALLEST, lowered.INT4_GROUP) == (quantise.SMALLEST, quantise.INT4_GROUP)
