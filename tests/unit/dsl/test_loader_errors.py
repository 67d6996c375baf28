"""Every mistake in the catalogue: its code, line, path and wording."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsl
from dsl import errors
from dsl.errors import InvalidSpec, SpecError

TEXT = Path(__file__).with_name("example.yaml").read_text()


def edited(*edits):
    text = TEXT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def mistakes(text):
    with pytest.raises(InvalidSpec) as caught:
        dsl.parse_spec(text, "specs/x.yaml")
    return caught.value.errors


# (text before, text after) -> code, path, part of the message
CASES = [
    ("d_model: 256", "d_model: 256\nd_model: 3", "spec-duplicate-key", "d_model", "already given in line 6"),
    ("d_model: 256", "1: 2\nd_model: 256", "spec-key-not-text", "", "keys are text"),
    ("vocab_size: 258", "vocab_size: 0x102", "spec-odd-number", "vocab_size", "plain decimal"),
    ("  max_slots: 4", "  max_slots: 4\n  max_slotz: 4", "spec-unknown-key", "engine.max_slotz", "mean 'max_slots'?"),
    ("numerics: canonical\n", "", "spec-missing-field", "numerics", "needs canonical"),
    ("      kind: mamba2\n", "", "spec-missing-field", "layers.mamba.mixer.kind", "one of attention, mamba2"),
    ("d_model: 256", "d_model: true", "spec-wrong-type", "d_model", "an integer from 2 to 16384"),
    ("d_model: 256", "d_model: 256.0", "spec-wrong-type", "d_model", "an integer from 2 to 16384"),
    ("d_model: 256", "d_model: '256'", "spec-wrong-type", "d_model", "an integer from 2 to 16384"),
    ("norm_eps: 1e-6", "norm_eps: false", "spec-wrong-type", "norm_eps", "a number above 0.0 and at most 0.1"),
    ("tie_embeddings: true", "tie_embeddings: yes", "spec-wrong-type", "tie_embeddings", "true or false"),
    (
        "mixer:\n      kind: mamba2",
        "mixer:\n      kind: mamba3",
        "spec-not-allowed",
        "layers.mamba.mixer.kind",
        "'mamba2'?",
    ),
    ("dtype: bf16", "dtype: fp8", "spec-not-allowed", "dtype", "must be bf16"),
    ("[embedding, hidden]", "[embeding, hidden]", "spec-not-allowed", "mtp.concat[0]", "did you mean 'embedding'?"),
    ("post_norm: own", "post_norm: own\n  draft_head: in8", "spec-not-allowed", "mtp.draft_head", "'int8'?"),
    (
        "post_norm: own",
        "post_norm: own\n  draft_head: 8",
        "spec-not-allowed",
        "mtp.draft_head",
        "one of bf16, int8, int4",
    ),
    ("state_size: 64", "state_size: 257", "spec-out-of-range", "layers.mamba.mixer.state_size", "from 1 to 256"),
    ("theta: 10000.0", "theta: .nan", "spec-out-of-range", "layers.attention.mixer.rope.theta", "a number from 1.0"),
    ("max_drafts: 7", "max_drafts: 8", "spec-out-of-range", "engine.max_drafts", "from 0 to 7"),
    ("name: tiny-hybrid", "name: Tiny", "spec-bad-name", "name", "a name of at most 64 characters"),
    ("name: tiny-hybrid", 'name: "\\ud800"', "spec-invalid-value", "name", "unicode"),
    ("  mamba:\n", "  Mamba:\n", "spec-bad-name", "layers", "a name of at most 64 characters"),
    ("[0.0, .inf]", "[0.0]", "spec-missing-field", "layers.mamba.mixer.dt_limit[1]", "a number above 0.0"),
    ("[0.0, .inf]", "[0.0, 1.0, 2.0]", "spec-wrong-length", "layers.mamba.mixer.dt_limit", "a list of 2 items"),
    ("[mamba, mamba, attention, mamba]", "[]", "spec-wrong-length", "pattern", "a list of 1 to 256 items"),
    ("[mamba, mamba,", "[mamba, manba,", "spec-unknown-layer", "pattern[1]", "did you mean 'mamba'?"),
    ("layer: drafter", "layer: attention", "spec-unused-layer", "layers.drafter", "uses this layer"),
    ("[bos, eos]", "[bos, bos]", "spec-duplicate-name", "tokenizer.specials[1]", "must differ"),
    ("[embedding, hidden]", "[hidden, hidden]", "spec-duplicate-name", "mtp.concat", "must differ"),
    (
        "num_kv_heads: 2",
        "num_kv_heads: 3",
        "spec-not-a-divisor",
        "layers.attention.mixer.num_kv_heads",
        "possible: 1, 2, 4",
    ),
    ("num_groups: 1", "num_groups: 5", "spec-not-a-divisor", "layers.mamba.mixer.num_groups", "possible: 1, 2, 4, 8"),
    (
        "norm_groups: 1",
        "norm_groups: 3",
        "spec-not-a-divisor",
        "layers.mamba.mixer.norm_groups",
        "num_heads * head_dim = 512",
    ),
    ("d_model: 256", "d_model: 255", "spec-odd-size", "d_model", "nearest 254 or 256"),
    (
        "head_dim: 64\n      rope",
        "head_dim: 63\n      rope",
        "spec-odd-size",
        "layers.attention.mixer.head_dim",
        "rope",
    ),
    ("page_size: 16", "page_size: 24", "spec-not-a-power-of-two", "engine.page_size", "8, 16, 32, 64, 128"),
    ("vocab_size: 258", "vocab_size: 257", "spec-vocab-too-small", "vocab_size", "258 ids"),
    ("[0.0, .inf]", "[0.1, 0.1]", "spec-empty-interval", "layers.mamba.mixer.dt_limit", "below the second"),
    ("layer: drafter", "layer: mamba", "spec-mtp-mixer", "mtp.layer", "names a mamba2 layer"),
    ("interval: 64", "interval: 7", "spec-interval-too-short", "checkpoints.interval", "max_drafts + 1 = 8"),
    ("checkpoint_slots: 32", "checkpoint_slots: 4", "spec-too-few-checkpoints", "engine.checkpoint_slots", "= 5"),
    ("d_model: 256", "d_model: 256 # " + "x" * (1 << 20), "spec-too-long", "", "1048576 bytes"),
    ("d_model: 256", "d_model: [", "spec-yaml-syntax", "", "not valid YAML"),
    ("d_model: 256", "d_model: " + "[" * 20, "spec-too-deep", "d_model" + "[0]" * 12, "12 levels"),
    ("d_model: 256", "d_model: [" + "1," * 20_000 + "]", "spec-too-many-nodes", "d_model", "20000"),
    ("d_model: 256", "d_model: &d 256", "spec-anchor", "d_model", "anchors and aliases"),
    ("d_model: 256", "d_model: !!int 256", "spec-tag", "d_model", "tag:yaml.org,2002:int"),
    ("d_model: 256", "d_model: 256\n---", "spec-several-documents", "", "one YAML document"),
]


@pytest.mark.parametrize(("old", "new", "code", "path", "words"), CASES)
def test_mistakes(old, new, code, path, words):
    found = {error.code: error for error in mistakes(edited((old, new)))}
    assert code in found
    assert errors.show_path(found[code].path) == path
    assert words in str(found[code])


def test_drafts_need_no_mtp_module():
    before, rest = TEXT.split("mtp:\n")
    text = before.split("  drafter:\n")[0] + before[before.index("pattern:") :] + rest[rest.index("checkpoints:") :]
    assert dsl.parse_spec(text).engine.max_drafts == 7
    assert dsl.parse_spec(text.replace("max_drafts: 7", "max_drafts: 0")).mtp is None


@pytest.mark.parametrize(
    ("edits", "path"),
    [
        ((("max_slots: 4", "max_slots: 256"), ("checkpoint_slots: 32", "checkpoint_slots: 257")), ("pattern",)),
        ((("max_context: 2048", "max_context: 1048576"), ("max_slots: 4", "max_slots: 65")), ("engine", "max_context")),
        (
            (
                ("num_heads: 8\n      head_dim: 64", "num_heads: 256\n      head_dim: 256"),
                ("state_size: 64", "state_size: 256"),
                ("checkpoint_slots: 32", "checkpoint_slots: 65536"),
            ),
            ("engine", "checkpoint_slots"),
        ),
    ],
)
def test_products_are_bounded(edits, path):
    if path == ("pattern",):
        edits = (
            ("d_model: 256", "d_model: 16384"),
            ("hidden_size: 320", "hidden_size: 65536"),
            ("[mamba, mamba,", "[" + "mamba, " * 200),
        )
    found = {error.path: error for error in mistakes(edited(*edits))}
    assert found[path].code == "spec-too-large"


def test_one_line_per_mistake_in_order_with_place_value_and_rule():
    text = edited(
        ("num_heads: 8", "num_heads: 1_000"),
        ("d_model: 256", "d_model: 3.5"),
        ("  max_slots: 4", "  max_slotz: 4"),
    )
    with pytest.raises(SpecError) as caught:
        dsl.parse_spec(text, "specs/x.yaml")
    lines = str(caught.value).splitlines()
    assert lines == [
        "specs/x.yaml:6 d_model = 3.5: must be an integer from 2 to 16384 [spec-wrong-type]",
        "specs/x.yaml:16 layers.mamba.mixer.num_heads = '1_000': not a plain decimal number (no 1_000, 010, 0x10, "
        "1:30): write digits, or quote it if it is text [spec-odd-number]",
        "specs/x.yaml:50 engine.max_slots: missing; needs an integer from 1 to 256 [spec-missing-field]",
        "specs/x.yaml:51 engine.max_slotz: unknown key; did you mean 'max_slots'?; allowed: max_slots, max_context, "
        "max_drafts, prefill_chunk, page_size, checkpoint_slots [spec-unknown-key]",
    ]


def test_long_values_and_many_mistakes_are_shortened():
    (error,) = mistakes(edited(("name: tiny-hybrid", "name: " + "x" * 5000)))
    assert len(str(error)) < 250
    with pytest.raises(InvalidSpec) as caught:
        dsl.parse_spec("\n".join(f"k{i}: 1" for i in range(200)))
    assert len(str(caught.value).splitlines()) == errors.MAX_LISTED + 1


def test_unreadable_files(tmp_path):
    cases = {
        "missing.yaml": "spec-unreadable-file",
        ".": "spec-unreadable-file",
        "latin.yaml": "spec-not-utf8",
        "big.yaml": "spec-too-long",
    }
    (tmp_path / "latin.yaml").write_bytes(b"name: x\nb: \xff\n")
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 21))
    for name, code in cases.items():
        with pytest.raises(InvalidSpec) as caught:
            dsl.load_spec(tmp_path / name)
        assert [error.code for error in caught.value.errors] == [code]
    assert ":2: " in str(InvalidSpec([errors.NotUtf8(reason="x").located("latin.yaml", 2)]))


def test_every_mistake_has_a_code_and_a_test():
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SpecError)]
    codes = {kind.code for kind in classes} - {"spec", "spec-invalid"}
    assert len(codes) == len(classes) - 2
    elsewhere = {"spec-too-large", "spec-unreadable-file", "spec-not-utf8"}
    elsewhere |= {"spec-exists", "spec-not-written", "spec-output"}  # test_starter.py, test_console.py
    assert codes == {case[2] for case in CASES} | elsewhere


@given(st.data())
def test_damaged_specs_give_located_mistakes(data):
    lines = TEXT.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(lines) - 1))
        change = data.draw(st.sampled_from(["drop", "double", "indent", "number", "word"]))
        key = lines[i].split(":")[0]
        replacement = {
            "drop": [],
            "double": [lines[i], lines[i]],
            "indent": [" " + lines[i]],
            "number": [f"{key}: {data.draw(st.sampled_from(['-1', '0', '3', '7.5', '1e9', '1_0', '.inf']))}"],
            "word": [f"{key}: {data.draw(st.sampled_from(['true', 'null', 'mamba', '[]', '{}', '[1]', '{a: 1}']))}"],
        }[change]
        lines[i : i + 1] = replacement or ["#"]
    try:
        dsl.parse_spec("\n".join(lines), "specs/x.yaml")
    except InvalidSpec as error:
        assert all(mistake.line is not None for mistake in error.errors)
        assert "something else" not in str(error)
