"""The int8 head of drafts: laid out as defined, computed as the reference does, no bit depends on company."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from dsl.reference.draft_head import int8_logits, quantise_rows
from dsl.reference.norm import rms_norm
from runtime import layout_cache, quantise, weight_arena
from runtime.engine import Engine
from runtime.layouts import laid_out
from runtime.plan import Buffer, Source
from tests.cpu.engine.toys import Ask, Oracle, agreeing_weights, drain, same_bits, toy_spec, write_toy

ASKS = [Ask(tuple(range(30 + i, 45 + 2 * i)), 24, temperature=0.4 * i, seed=i) for i in range(4)]


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied"])
def subject(request, tmp_path_factory, cache):
    """A package with an int8 head, its weights, and the matrix of its head."""
    spec = toy_spec(draft_head="int8").model_copy(update={"tie_embeddings": request.param})
    package = write_toy(tmp_path_factory.mktemp("int8") / "package", cache, spec)
    weights = agreeing_weights(spec)
    return spec, package, weights, weights["embed.weight" if request.param else "lm_head.weight"]


def buffer_of(layout: str, shape: tuple[int, ...], matrix: torch.Tensor) -> Buffer:
    dtype = "int8" if layout == "int8_panel" else "fp32"
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


def test_the_int8_head_is_kept_between_processes_with_all_other_weights(subject, tmp_path, monkeypatch):
    _, package, weights, head = subject
    monkeypatch.setattr(layout_cache, "LEAST_BYTES", 1)
    save_file(weights, path := tmp_path / "weights.safetensors")
    with Engine(package, path, layout_cache=tmp_path / "kept"):
        pass
    monkeypatch.setattr(weight_arena, "lay_out", lambda *_: pytest.fail("laid out again"))
    with Engine(package, path, layout_cache=tmp_path / "kept") as engine:
        _, scales = quantise_rows(head)
        assert same_bits(engine.buffers["draft_head_scale"], scales[:, 0].contiguous())
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
            expected = int8_logits(rows.float(), scale[:, None], *quantise_rows(head))
            assert same_bits(logits, expected)
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
    bf16 = toy_spec().model_copy(update={"tie_embeddings": spec.tie_embeddings})
    oracle = Oracle(write_toy(tmp_path / "bf16", cache, bf16), weights)
    with Engine(package, weights, drafts=3) as engine:
        requests = [ask.submit(engine) for ask in ASKS]
        drain(engine, poison=True)
        assert [(request.output, request.finish_reason) for request in requests] == [oracle(ask) for ask in ASKS]
        assert engine.stats().tokens_per_step > 1.2
