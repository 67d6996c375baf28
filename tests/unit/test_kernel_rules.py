"""Rules between a plan and the text of its kernels, each broken: by a changed plan, or by a changed kernel text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.access import Arguments, NotUnderstood, Range, accesses, read_source, record
from codegen.aot_worker import device_functions
from codegen.errors import PlanInvalid, TooLarge, UnsupportedOnTarget
from codegen.lower import TARGETS, lower
from codegen.lower.contents import HOST_WRITES, contents, written_anew
from codegen.lower.kernel_rules import IN_PLACE, verify_kernels
from codegen.lower.verify import INDEXED_BY_INT64, MAX_INDEXED, verify_plan
from codegen.plan import Kernel, Launch, Plan, Role, Section
from codegen.render import kernel_text
from dsl import ModelSpec, load_spec
from tests.strategies import specs

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "specs").glob("*.yaml")])
TO_INT64 = ".to(tl.int64)"


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return load_spec(ROOT / "specs" / "tiny-hybrid.yaml")


@pytest.fixture(scope="module")
def plan(spec: ModelSpec) -> Plan:
    return lower(spec, "cpu")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_shipped_plan_keeps_the_rules(path: Path, target: str) -> None:
    verify_kernels(lower(load_spec(path), target))


@given(specs())
def test_every_drawn_spec_keeps_the_rules(spec: ModelSpec) -> None:
    """No rule refuses what a spec may ask for."""
    for target in ("cpu", "cuda:90"):
        with suppress(UnsupportedOnTarget):
            verify_kernels(lower(spec, target))


# Launch arguments


def relaunched(plan: Plan, section: str, kernel: str, change: Callable[[Launch], Launch]) -> Plan:
    """The plan with the first launch of a kernel in a section changed."""
    sections = {s.name: s for s in plan.sections}
    launches = list(sections[section].launches)
    at = next(i for i, launch in enumerate(launches) if launch.kernel.startswith(kernel))
    launches[at] = change(launches[at])
    sections[section] = replace(sections[section], launches=tuple(launches))
    return replace(plan, sections=tuple(sections.values()))


def without(plan: Plan, section: str, kernel: str) -> Plan:
    """The plan without the first launch of a kernel in a section."""
    sections = {s.name: s for s in plan.sections}
    launches = list(sections[section].launches)
    del launches[next(i for i, launch in enumerate(launches) if launch.kernel.startswith(kernel))]
    sections[section] = replace(sections[section], launches=tuple(launches))
    return replace(plan, sections=tuple(sections.values()))


def passing(**changed: str) -> Callable[[Launch], Launch]:
    return lambda launch: replace(launch, args=tuple((name, changed.get(name, value)) for name, value in launch.args))


def dropping(name: str) -> Callable[[Launch], Launch]:
    return lambda launch: replace(launch, args=tuple(pair for pair in launch.args if pair[0] != name))


def swapped(launch: Launch) -> Launch:
    first, second, *rest = launch.args
    return replace(launch, args=(second, first, *rest))


def text_of(plan: Plan, prefix: str, old: str, new: str) -> dict[str, str]:
    """Texts of the kernels whose name starts with `prefix`, with something replaced that must be there."""
    names = [kernel.name for kernel in plan.kernels if kernel.name.startswith(prefix)]
    texts = {name: kernel_text(plan.kernel(name)) for name in names}
    assert all(old in text for text in texts.values()), f"{prefix} no longer holds {old!r}"
    return {name: text.replace(old, new) for name, text in texts.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dropping("seed"), "verify: sample: does not pass seed"),
        (swapped, "verify: sample: passes its arguments in another order"),
        (
            lambda launch: replace(launch, args=(*launch.args, ("noise", "seed"))),
            "verify: sample: passes noise, which its kernel does not take",
        ),
    ],
)
def test_a_launch_passes_the_parameters_of_its_kernel(
    plan: Plan, change: Callable[[Launch], Launch], message: str
) -> None:
    with pytest.raises(PlanInvalid, match=message):
        verify_kernels(relaunched(plan, "verify", "sample", change))


def test_a_scalar_that_triton_would_specialise_on_is_found(plan: Plan) -> None:
    texts = text_of(plan, "matmul_256x258", '(do_not_specialize=["rows"])', "")
    with pytest.raises(PlanInvalid, match=r"verify: matmul_256x258: rows = rows is not in do_not_specialize"):
        verify_kernels(plan, texts)


# Offsets


def enlarged(
    spec: ModelSpec, d_model: int, vocab_size: int, mamba_heads: int, heads: int, hidden_size: int, **engine: int
) -> ModelSpec:
    """The demo model's spec with the sizes of another model."""
    mixers = {
        "mamba2": {"num_heads": mamba_heads, "head_dim": 64, "state_size": 128, "num_groups": 8},
        "attention": {"num_heads": heads, "num_kv_heads": 8, "head_dim": 128},
    }
    layers = {}
    for name, layer in spec.layers.items():
        mixer = layer.mixer.model_copy(update=mixers[layer.mixer.kind])
        feed_forward = layer.feed_forward and layer.feed_forward.model_copy(update={"hidden_size": hidden_size})
        layers[name] = layer.model_copy(update={"mixer": mixer, "feed_forward": feed_forward})
    sizes = spec.engine.model_copy(update=engine)
    return spec.model_copy(update={"d_model": d_model, "vocab_size": vocab_size, "layers": layers, "engine": sizes})


@pytest.fixture(scope="module")
def large(spec: ModelSpec) -> ModelSpec:
    """A spec whose matrices and pages have more than 2^31 elements, while its other buffers have fewer."""
    engine = {"max_slots": 4, "max_context": 1 << 20, "prefill_chunk": 512, "checkpoint_slots": 6}
    return enlarged(spec, 36864, 100_000, 1024, 256, 131072, **engine)


@settings(max_examples=25)
@given(
    st.tuples(
        st.sampled_from([1024, 8192, 36864]),
        st.sampled_from([300, 50_000, 400_000]),
        st.sampled_from([8, 128, 1024]),
        st.sampled_from([8, 64, 128]),
        st.sampled_from([1024, 131072]),
    ),
    st.fixed_dictionaries(
        {
            "max_slots": st.sampled_from([1, 8, 64, 1024]),
            "max_context": st.sampled_from([4096, 1 << 17, 1 << 20, 1 << 22]),
            "max_drafts": st.sampled_from([1, 7, 15]),
            "prefill_chunk": st.sampled_from([64, 512, 8192, 32768]),
            "page_size": st.sampled_from([16, 64, 128]),
        }
    ),
)
def test_a_large_spec_is_lowered_or_named_too_large(sizes: tuple[int, ...], engine: dict[str, int]) -> None:
    """What may not be indexed is the spec's to lower, with the fields to change: never a rule that a kernel breaks."""
    spec = load_spec(ROOT / "specs" / "tiny-hybrid.yaml")
    with suppress(TooLarge):
        lower(enlarged(spec, *sizes, checkpoint_slots=engine["max_slots"] + 2, **engine), "cpu")


def without_conversions(plan: Plan, kernel: Kernel) -> list[str]:
    """The kernel's text with each conversion to int64 left out in turn."""
    text = kernel_text(kernel)
    starts = [found.start() for found in re.finditer(re.escape(TO_INT64), text)]
    return [text[:start] + text[start + len(TO_INT64) :] for start in starts]


@pytest.mark.parametrize("target", ["cpu", "cuda:90"])
def test_an_offset_past_int32_must_be_computed_in_int64(large: ModelSpec, target: str) -> None:
    plan = lower(large, target)
    huge = {buffer.name for buffer in plan.buffers if buffer.elements > MAX_INDEXED}
    assert {plan.buffer(name).role for name in huge} == set(INDEXED_BY_INT64)
    found = set()
    for kernel in plan.kernels:
        reached = {value for _, launch in plan.launches() if launch.kernel == kernel.name for _, value in launch.args}
        if not reached & huge:
            continue
        texts = without_conversions(plan, kernel)
        assert texts, f"{kernel.name} reaches {reached & huge} without a conversion"
        for text in texts:
            with pytest.raises(PlanInvalid, match=rf"{kernel.name}: (loads|stores) .* may reach -?\d+ in int32"):
                verify_kernels(plan, {kernel.name: text})
        found.add(kernel.template)
    names = ("attention", "copy_page", "drafter_input", "embed_rows", "gated_matmul", "matmul", "rope_append")
    assert found == {f"kernels/{name}.py.j2" for name in names}


def test_an_offset_read_from_a_buffer_of_unknown_contents_is_found(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may hold anything is no index, until its range is given."""
    fewer = {name: held for name, held in contents(plan).items() if name != "slot_idx"}
    monkeypatch.setattr("codegen.lower.kernel_rules.contents", lambda plan: dict(fewer))
    with pytest.raises(PlanInvalid, match=r"may reach \d+ in int32; .*codegen/lower/contents\.py"):
        verify_kernels(plan)


def test_the_table_of_contents_names_buffers_that_are_there(plan: Plan) -> None:
    protocol = {buffer.name for buffer in plan.buffers if buffer.role is Role.PROTOCOL and buffer.dtype == "int32"}
    assert set(contents(plan)) <= protocol


# Places


def test_a_stream_that_is_also_another_argument_is_found(plan: Plan) -> None:
    """The section's own names differ; what the composition passes as `stream` makes them one."""
    changed = relaunched(plan, "drafter", "drafter_input", passing(pair="draft_hidden"))
    verify_plan(changed)
    with pytest.raises(PlanInvalid, match=r"drafter: drafter_input: draft_hidden is passed 2 times"):
        verify_kernels(changed)


def test_reading_beside_what_is_written_is_found(plan: Plan) -> None:
    texts = text_of(plan, "matmul_256x256_residual", "tl.load(p_y, mask", "tl.load(p_y + N, mask")
    with pytest.raises(PlanInvalid, match=r"matmul_256x256_residual: reads and writes y at 2 places \(p_y, p_y \+ N\)"):
        verify_kernels(plan, texts)


@pytest.mark.parametrize("declared", IN_PLACE)
def test_every_declared_place_is_needed(plan: Plan, declared: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {key: reason for key, reason in IN_PLACE.items() if key != declared}
    monkeypatch.setattr("codegen.lower.kernel_rules.IN_PLACE", fewer)
    template, parameter = declared
    with pytest.raises(PlanInvalid, match=rf"{template}\w*: reads and writes {parameter} at"):
        verify_kernels(plan)


# Lifetimes


@pytest.mark.parametrize(
    ("section", "kernel", "message"),
    [
        ("prefill", "embed_rows", r"prefill: rms_norm_256: reads x at .* nothing in prefill_chunk has written"),
        ("prefill", "matmul_256x1160", r"prefill: mamba2_conv_prefill\w*: reads projected_1160"),
        ("prefill_draft_rows", "drafter_rows_prefill", r"drafter: drafter_input: reads draft_hidden"),
        ("begin", "begin_rows", r"begin: rms_norm_256: reads x at .* nothing in begin_slots has written"),
        ("begin", "sample", r"begin: begin_accept: reads targets"),
        ("verify", "step_rows", r"verify: embed_rows: reads row_slot .* nothing in step has written"),
        ("accept", "accept_drafts", None),
        ("draft_select", "drafter_select", r"draft_token: rms_norm_256: reads draft_hidden"),
        ("save", "save_rows", r"save: mamba2_conv_step\w*: reads row_count .* nothing in save has written"),
        ("score", "score_rows", r"score: rms_norm_256: reads x at .* nothing in score has written"),
        ("score", "rms_norm_256", r"score: matmul_256x258: reads h"),
    ],
)
def test_scratch_is_written_before_it_is_read(plan: Plan, section: str, kernel: str, message: str | None) -> None:
    """accept_drafts writes what outlives a step, and no scratch: its absence is for `verify` to find."""
    changed = without(plan, section, kernel)
    if message is None:
        verify_kernels(changed)
        return
    with pytest.raises(PlanInvalid, match=message):
        verify_kernels(changed)


def test_a_save_with_rows_would_read_what_nothing_wrote(plan: Plan) -> None:
    """That a save has no rows is seen in its kernel: with one, the mixers would read projections of another step."""
    texts = text_of(plan, "save_rows", "tl.program_id(0), 0)", "tl.program_id(0), 1)")
    with pytest.raises(PlanInvalid, match=r"save: mamba2_conv_step\w*: reads projected_1160"):
        verify_kernels(plan, texts)


def test_what_lives_no_longer_than_a_composition_is_scratch_and_rows(plan: Plan) -> None:
    fleeting = written_anew(plan)
    assert {"x", "h", "logits", "targets", "row_slot", "draft_hidden"} <= fleeting
    assert not {"committed_len", "tokens", "seed", "slot_idx", "hidden_ring", "layers_0_state"} & fleeting
    assert set().union(*HOST_WRITES.values()) <= fleeting


def test_the_host_writes_what_the_rules_take_for_written() -> None:
    """The executor names every row buffer that a prefill or a score expects from the host."""
    text = (ROOT / "runtime" / "executor.py").read_text()
    for names in HOST_WRITES.values():
        assert [name for name in names if f'"{name}"' not in text] == []


# Agreements


def retuned(plan: Plan, kernel: str, **constants: int) -> Plan:
    """The plan with some constants of one kernel changed."""
    kernels = [
        replace(k, constants=tuple((n, constants.get(n, v)) for n, v in k.constants))
        if k.name.startswith(kernel)
        else k
        for k in plan.kernels
    ]
    return replace(plan, kernels=tuple(kernels))


def with_drafter_head(plan: Plan, **constants: int) -> Plan:
    """The drafter's head as a matmul of its own."""
    head = plan.kernel("matmul_256x258")
    own = replace(head, name="own_head", constants=tuple((n, constants.get(n, v)) for n, v in head.constants))
    changed = relaunched(plan, "draft_token", "matmul_256x258", lambda launch: replace(launch, kernel="own_head"))
    return replace(changed, kernels=(*plan.kernels, own))


def test_the_drafters_head_shares_the_tile_of_the_targets(plan: Plan) -> None:
    verify_kernels(with_drafter_head(plan))
    with pytest.raises(
        PlanInvalid, match=r"own_head: reads lm_head: must agree with matmul_256x258, but BLOCK_K is 64"
    ):
        verify_kernels(with_drafter_head(plan, BLOCK_K=64))


@pytest.mark.parametrize(
    ("kernel", "constants", "message"),
    [
        ("mamba2_conv_prefill", {"WIDTH": 3}, r"reads layers_0_conv_bias, .* WIDTH is"),
        ("mamba2_scan_prefill", {"BLOCK_P": 128}, r"reads layers_0_a_log, .* BLOCK_P is"),
        ("draft_sample", {"BLOCK_V": 256}, r"draft_sample: chooses a token from logits: must agree with sample"),
    ],
)
def test_step_and_prefill_of_a_mixer_share_tiles(
    plan: Plan, kernel: str, constants: dict[str, int], message: str
) -> None:
    with pytest.raises(PlanInvalid, match=message):
        verify_kernels(retuned(plan, kernel, **constants))


@pytest.mark.parametrize(
    ("kernel", "old", "new", "message"),
    [
        (
            "mamba2_scan_prefill",
            "mamba2_readout(b_s, b_c)",
            "tl.sum(b_c[:, None] * b_s, axis=0)",
            r"only one of them computes mamba2_readout, tl\.sum\(b_c\[:, None\] \* b_s, axis=0\)",
        ),
        (
            "mamba2_scan_step",
            "b_s = mamba2_fold(b_s, b_x, b_b, dt, tl.exp(dt * a))",
            "b_s = tl.fma(b_s, tl.exp(dt * a) + 0 * b_s, b_b[:, None] * (dt * b_x)[None, :])",
            r"only one of them computes in_one_pass, tl\.fma",
        ),
        (
            "mamba2_conv_step",
            "activated = conv_append(raw, here, ring, weight, bias, o_c, m_c, WIDTH, RING, CHANNELS)",
            "activated = raw * tl.load(weight + o_c) + tl.load(bias + o_c)",
            r"only one of them computes conv_append",
        ),
    ],
)
def test_step_and_prefill_of_a_mixer_share_their_sums(
    plan: Plan, kernel: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(PlanInvalid, match=message):
        verify_kernels(plan, text_of(plan, kernel, old, new))


def test_attention_of_other_pages_need_not_agree(plan: Plan) -> None:
    """The drafter's pages are its own: another tile there changes no bits of the target's, even where tiles do."""
    attention = next(kernel for kernel in plan.kernels if kernel.name.startswith("attention"))
    tunables = tuple(replace(tunable, changes_bits=True) for tunable in attention.tunables)
    other = replace(attention, name="drafter_attention", row_tiles=attention.row_tiles[:1], tunables=tunables)
    changed = relaunched(plan, "drafter", "attention", lambda launch: replace(launch, kernel="drafter_attention"))
    verify_kernels(replace(changed, kernels=(*plan.kernels, other)))
    changed = relaunched(plan, "verify", "attention", lambda launch: replace(launch, kernel="drafter_attention"))
    with pytest.raises(PlanInvalid, match=r"drafter_attention: reads layers_2_k_cache, .* row tiles differ"):
        verify_kernels(replace(changed, kernels=(*plan.kernels, other)))


def test_kernels_of_one_function_may_differ_in_what_changes_no_bit(plan: Plan) -> None:
    """The channels of a program, rows of a tile on a CPU: but not the width of a panel, which the weights lie in."""
    verify_kernels(retuned(plan, "mamba2_conv_prefill", BLOCK_C=32))
    with pytest.raises(PlanInvalid, match=r"own_head: reads lm_head: .* BLOCK_N is 64"):
        verify_kernels(with_drafter_head(plan, BLOCK_N=64))


def test_whatever_a_kernel_imports_is_known_to_builds_and_stamps(plan: Plan) -> None:
    """A module of device functions that is not, could change without a kernel being compiled again."""
    texts = [kernel_text(kernel) for kernel in plan.kernels] + [path.read_text() for path in device_functions()]
    imports = (node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    known = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in device_functions()}
    assert {node.module for node in imports} == known


# The interpretation itself

HEAD = "import triton\nimport triton.language as tl\n\nD = tl.constexpr(16)\n\n\n@triton.jit\n"


def interpreted(body: str, most: int = 3) -> list[tuple[str, bool, bool, str]]:
    """(parameter, store, certain, wrapped) of 8 programs over i (int32, 0 .. most), x and y (fp32) and n (1 .. 100)."""
    text = HEAD + "def kernel(i, x, y, n):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    arguments = Arguments((("i", (Range(0, most), 32)), ("x", None), ("y", None)), (("n", Range(1, 100)),), (), (8,))
    return [(a.parameter, a.store, a.certain, a.wrapped) for a in accesses(read_source("kernel", text), arguments)]


def wraps(body: str) -> bool:
    return any(wrapped for *_, wrapped in interpreted(body))


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("tl.program_id(0) * 268435455", False),
        ("tl.program_id(0) * 306783379", True),  # 7 * 306783379 = 2^31 + 5
        ("tl.program_id(0).to(tl.int64) * 306783379", False),
        ("(tl.program_id(0) * 306783379).to(tl.int64)", True),
        ("tl.load(i) * 1000000000", True),
        ("tl.load(i) * 700000000", False),
        ("tl.load(i) * 700000000 + tl.load(i) * 700000000", True),
        ("tl.minimum(tl.load(i) * 700000000, n) + 2147483547", False),
        ("-tl.load(i) * 800000000", True),
        ("(tl.load(i) * 2000000000) % 7", True),
        ("(n // 3) * 70000000", True),
        ("(n % 8) * 300000000", False),
        ("(n & 7) * 300000000", False),
        ("(n & 7) << 28", False),
        ("(n & 15) << 28", True),
        ("tl.arange(0, 16) * 100000000", False),
        ("tl.where(n > 50, n, 0) * 30000000", True),
        ("D * 100000000000", False),  # known when compiled, so an int64
    ],
)
def test_offsets_are_bounded(offset: str, expected: bool) -> None:
    assert wraps(f"tl.store(y + ({offset}), 0.0)") is expected


def test_a_value_that_a_loop_changes_may_be_anything() -> None:
    assert wraps("at = 0\nfor t in range(n):\n    at = at + 1\ntl.store(y + at * 2, 0.0)")
    assert not wraps("at = 0\nfor t in range(n):\n    at = t\ntl.store(y + t * 2, 0.0)")


def test_values_that_change_each_other_in_a_loop_are_all_unknown() -> None:
    body = "a = 0\nb = 0\nc = 0\nfor t in range(n):\n    tl.store(y + a * 2, 0.0)\n    a = b\n    b = c\n    c = c + 1"
    assert wraps(body)


def test_a_loop_that_never_runs_reads_nothing() -> None:
    body = "for t in range(tl.load(i)):\n    tl.store(y + t, tl.load(x + t))"
    assert [name for name, *_ in interpreted(body, most=0)] == ["i"]
    assert [name for name, *_ in interpreted(body)] == ["i", "x", "y"]


def test_what_follows_an_early_return_or_stands_in_a_branch_is_not_certain() -> None:
    body = "tl.store(x + n, 0.0)\nif n > 5:\n    tl.store(y + n, 0.0)\ntl.store(x + n, 1.0)"
    assert [certain for *_, certain, _ in interpreted(body)] == [True, False, True]
    body = "if n > 5:\n    return\ntl.store(x + n, 0.0)"
    assert [certain for *_, certain, _ in interpreted(body)] == [False]
    body = "tl.store(x + n, 0.0, mask=n > 5)"
    assert [certain for *_, certain, _ in interpreted(body)] == [False]


def test_a_pointer_from_either_of_two_is_of_both() -> None:
    body = "p = x\nif n > 5:\n    p = y\ntl.store(p + n, 0.0)"
    assert [name for name, *_ in interpreted(body)] == ["x", "y"]


def test_an_atomic_reads_and_writes() -> None:
    assert interpreted("tl.atomic_add(y + n, 1.0)") == [("y", False, False, ""), ("y", True, False, "")]


@pytest.mark.parametrize(
    "body",
    [
        "while n > 0:\n    pass",
        "helper(x)",
        "tl.some_new_copy(x, y)",
        "tl.store(y + tl.some_new_index(n), 0.0)",
        "tl.store(n, 0.0)",
        "for t in range(n, 0, -1):\n    pass",
        "a, b = n",
        "tl.store((y + n) << 2, 0.0)",
    ],
)
def test_what_is_not_understood_is_refused_with_its_text(body: str) -> None:
    with pytest.raises(NotUnderstood, match="kernel: cannot follow `"):
        interpreted(body)


def test_a_kernel_that_is_not_understood_names_its_launch(plan: Plan) -> None:
    texts = text_of(plan, "hidden_store", "    o_d = tl.arange(0, BLOCK_D)", "    o_d = tl.some_new_index(BLOCK_D)")
    with pytest.raises(PlanInvalid, match=r"verify: hidden_store: hidden_store: cannot follow"):
        verify_kernels(plan, texts)


def test_compositions_are_recorded_as_the_step_module_makes_them(plan: Plan) -> None:
    recorded = list(record(plan))
    assert {name for name, _ in recorded} == {"prefill_chunk", "begin_slots", "step", "save", "restore", "score"}
    sections = {launch.section for _, launches in recorded for launch in launches}
    assert sections == {section.name for section in plan.sections}
    streams = {dict(launch.buffers).get("x") for _, launches in recorded for launch in launches}
    assert {"x", "draft_hidden"} <= streams
    assert "stream" not in streams


def test_a_section_that_no_composition_calls_is_not_recorded(plan: Plan) -> None:
    """`record` runs the compositions of the template: a section beside them shows here, not in a rule."""
    extra = Section("extra", "Nothing.", ("bucket",), (plan.section("save").launches[0],))
    recorded = record(replace(plan, sections=(*plan.sections, extra)))
    assert "extra" not in {launch.section for _, launches in recorded for launch in launches}
