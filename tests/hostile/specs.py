"""Hostile specs, as bytes, each with the code of the mistake that must be among those reported."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOOD = (ROOT / "specs" / "tiny-hybrid.yaml").read_text()
LAUGHS = "\n".join(["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20))])


def changed(old: str, new: str) -> bytes:
    """The good spec with one change."""
    assert old in GOOD
    return GOOD.replace(old, new, 1).encode("utf-8", "surrogatepass")


def name(text: str) -> bytes:
    """The good spec with another name, spelled as YAML."""
    return changed("name: tiny-hybrid", f"name: {text}")


SPECS: dict[str, tuple[bytes, str]] = {
    # size and shape of the text
    "empty": (b"", "spec-wrong-type"),
    "only comments": (b"# nothing\n# here\n", "spec-wrong-type"),
    "a scalar": (b"tiny-hybrid", "spec-wrong-type"),
    "a list": (b"- name: x\n- d_model: 2\n", "spec-wrong-type"),
    "more than a mebibyte": (GOOD.encode() + b"#" * (1 << 20), "spec-too-long"),
    "flow nesting": (b"a: " + b"[" * 100_000, "spec-too-deep"),
    "mapping nesting": (b"{a: " * 50_000, "spec-too-deep"),
    "block nesting": ("\n".join("  " * i + "a:" for i in range(500)).encode(), "spec-too-deep"),
    "dash nesting": (b"- " * 100_000, "spec-too-deep"),
    "key nesting": (b"? " * 100_000, "spec-too-deep"),
    "too many items": (b"pattern: [" + b"a," * 100_000 + b"]", "spec-too-many-nodes"),
    "too many layers": (b"pattern: [" + b"mamba, " * 257 + b"]", "spec-wrong-length"),
    # encodings and characters
    "not UTF-8": (GOOD.encode().replace(b"tiny-hybrid", b"tiny-hybr\xefd", 3), "spec-not-utf8"),
    "UTF-16": (GOOD.encode("utf-16"), "spec-not-utf8"),
    "overlong UTF-8": (b"name: \xc0\xaf\n", "spec-not-utf8"),
    "a surrogate in UTF-8": (name("\ud800"), "spec-not-utf8"),
    "a NUL byte": (name("tiny\0hybrid"), "spec-yaml-syntax"),
    "an escape sequence of terminals": (name("\x1b[2J"), "spec-yaml-syntax"),
    "a byte order mark inside": (name("tiny\ufeffhybrid"), "spec-bad-name"),
    "tabs for indentation": (changed("  mamba:", "\tmamba:"), "spec-yaml-syntax"),
    "an escaped NUL": (name('"tiny\\0"'), "spec-bad-name"),
    "an escape past Unicode": (name('"\\U00110000"'), "spec-yaml-syntax"),
    "an escape past 32 bits": (name('"\\UFFFFFFFF"'), "spec-yaml-syntax"),
    "an escaped surrogate": (name('"\\ud800"'), "spec-invalid-value"),
    "right-to-left override": (name('"tiny\\u202ehybrid"'), "spec-bad-name"),
    "a letter that looks alike": (name("tіny"), "spec-bad-name"),  # noqa: RUF001
    # what YAML can do
    "billion laughs": (LAUGHS.encode(), "spec-anchor"),
    "an alias to itself": (b"a: &a [*a]\n", "spec-anchor"),
    "a merge of an alias": (b"x: &x {d_model: 2}\n<<: *x\n", "spec-anchor"),
    "a merge key": (changed("d_model: 256", "<<: {d_model: 256}"), "spec-unknown-key"),
    "a call": (name("!!python/object/apply:os.system ['touch owned']"), "spec-tag"),
    "a module": (name("!!python/module:os"), "spec-tag"),
    "binary": (name("!!binary aGk="), "spec-tag"),
    "a tag of one's own": (changed("d_model: 256", "d_model: !d 256"), "spec-tag"),
    "a tag that writes a line": (name("!a%0Aspecs/x.yaml:1%20all%20is%20well x"), "spec-tag"),
    "a tag of a megabyte": (name("!" + "x" * 900_000 + " y"), "spec-tag"),
    "two documents": (GOOD.encode() + b"---\nname: x\n", "spec-several-documents"),
    "a YAML version of thousands of digits": (
        b"%YAML " + b"1" * 5000 + b".1\n---\n" + GOOD.encode(),
        "spec-yaml-syntax",
    ),
    "a duplicate key": (changed("d_model: 256", "d_model: 256\nd_model: 512"), "spec-duplicate-key"),
    "a duplicate layer": (changed("  attention:\n", "  mamba:\n"), "spec-duplicate-key"),
    "a list as a key": (changed("d_model: 256", "? [a, b]\n: 1\nd_model: 256"), "spec-key-not-text"),
    "null as a key": (changed("d_model: 256", "~: 1\nd_model: 256"), "spec-key-not-text"),
    "an unclosed quote": (name('"tiny'), "spec-yaml-syntax"),
    # numbers
    "an integer of 5000 digits": (changed("d_model: 256", "d_model: " + "9" * 5000), "spec-odd-number"),
    "an integer of 40 digits": (changed("d_model: 256", "d_model: " + "9" * 40), "spec-out-of-range"),
    "a float past all floats": (changed("norm_eps: 1e-6", "norm_eps: 1e999"), "spec-odd-number"),
    "a float of a megabyte": (changed("norm_eps: 1e-6", "norm_eps: 9" + "9" * 900_000 + ".0"), "spec-odd-number"),
    "infinity": (changed("norm_eps: 1e-6", "norm_eps: .inf"), "spec-out-of-range"),
    "not a number": (changed("theta: 10000.0", "theta: .nan"), "spec-out-of-range"),
    "an octal number": (changed("d_model: 256", "d_model: 0400"), "spec-odd-number"),
    "base sixty": (changed("d_model: 256", "d_model: 4:16"), "spec-odd-number"),
    "minus zero slots": (changed("max_slots: 8", "max_slots: -0"), "spec-out-of-range"),
    "a negative size": (changed("d_model: 256", "d_model: -256"), "spec-out-of-range"),
    "a boolean for a number": (changed("d_model: 256", "d_model: true"), "spec-wrong-type"),
    "null for a number": (changed("d_model: 256", "d_model: null"), "spec-wrong-type"),
    "a mapping for a number": (changed("d_model: 256", "d_model: {a: 1}"), "spec-wrong-type"),
    "nested lists for a number": (
        changed("d_model: 256", "d_model: " + "[[[" + "[1,1,1,1]," * 500 + "]]]"),
        "spec-wrong-type",
    ),
    "sizes whose product is absurd": (
        GOOD.replace("d_model: 256", "d_model: 16384")
        .replace("hidden_size: 320", "hidden_size: 65536")
        .replace("[mamba, mamba, attention, mamba]", f"[{'mamba, ' * 250}attention]")
        .encode(),
        "spec-too-large",
    ),
    # text that would be code, or a path, or a template
    "code in a name": (name('\'x"""\nimport os\n"""\''), "spec-bad-name"),
    "a name that ends with a newline": (name('"tiny\\n"'), "spec-bad-name"),
    "a block scalar as a name": (name("|\n  tiny"), "spec-bad-name"),
    "a template in a name": (name("'{{ 7 * 7 }}'"), "spec-bad-name"),
    "a path in a name": (name("../../etc/passwd"), "spec-bad-name"),
    "code in the name of a layer": (changed("  drafter:\n", '  "d\'); import os #":\n'), "spec-bad-name"),
    "code in a special": (changed("[bos, eos]", "[bos, 'e\", os.system(\"x']"), "spec-bad-name"),
    "code in a kind": (changed("kind: bytes", "kind: 'bytes\"); import os'"), "spec-not-allowed"),
    "a constructor as a key": (changed("d_model: 256", "__class__: x\nd_model: 256"), "spec-unknown-key"),
}
