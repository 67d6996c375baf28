"""Hostile command lines: arguments and the code of the refusal; "usage" where the command line itself is wrong.

In runtime's, {package} and {weights} are good ones; in all, {folder} is an empty folder and {fifo} a FIFO.
"""

from __future__ import annotations

GENERATE = ("generate", "{package}", "--weights", "{weights}", "--prompt", "x")
BENCH = ("bench", "{package}", "--weights", "{weights}")
MANY = "1" + "0" * 30
SPEC = "specs/tiny-hybrid.yaml"

RUNTIME: dict[str, tuple[tuple[str, ...], str]] = {
    "no package": (("generate", "{folder}", "--prompt", "x"), "package-not-found"),
    "a package that is a fifo": (("generate", "{fifo}", "--prompt", "x"), "package-not-found"),
    "a package of a long name": (("generate", "x" * 5000, "--prompt", "x"), "package-not-found"),
    "weights that are a fifo": (("generate", "{package}", "--weights", "{fifo}", "--prompt", "x"), "weights-not-found"),
    "weights of a long name": (
        ("generate", "{package}", "--weights", "x" * 5000, "--prompt", "x"),
        "weights-not-found",
    ),
    "another target": ((*GENERATE, "--target", "cuda:90"), "package-target"),
    "a target that clears the screen": ((*GENERATE, "--target", "\x1b[2J"), "package-target"),
    "a prompt beyond the context": ((*GENERATE[:-1], "x" * 5000), "prompt-too-long"),
    "no tokens": ((*GENERATE, "--max-new-tokens", "0"), "bad-option"),
    "many tokens": ((*GENERATE, "--max-new-tokens", "-" + MANY), "bad-option"),
    "a temperature that is no number": ((*GENERATE, "--temperature", "nan"), "bad-option"),
    "a temperature without end": ((*GENERATE, "--temperature", "inf"), "bad-option"),
    "a temperature below zero": ((*GENERATE, "--temperature", "-1"), "bad-option"),
    "a seed of thirty digits": ((*GENERATE, "--seed", MANY), "bad-option"),
    "drafts below zero": ((*GENERATE, "--drafts", "-1"), "bad-option"),
    "more drafts than there are": ((*GENERATE, "--drafts", MANY), "bad-option"),
    "no threads": ((*GENERATE, "--threads", "0"), "bad-option"),
    "threads without end": ((*GENERATE, "--threads", MANY), "bad-option"),
    "a number that is text": ((*GENERATE, "--threads", "1; rm -rf /"), "usage"),
    "an option nobody knows": ((*GENERATE, "--exec", "x"), "usage"),
    "prompts from a fifo": ((*BENCH, "--text", "{fifo}"), "bad-option"),
    "prompts from an endless device": ((*BENCH, "--text", "/dev/zero"), "bad-option"),
    "prompts of no bytes": ((*BENCH, "--text", "/dev/null"), "bad-option"),
    "an interval in other digits": ((*BENCH, "--scenario", "chat", "--interval", "\u0661"), "bad-option"),
    "a scenario nobody knows": ((*BENCH, "--scenario", "x"), "usage"),
    "weights to a folder": (("random-weights", "{package}", "-o", "{folder}"), "bad-option"),
    "weights to a fifo": (("random-weights", "{package}", "-o", "{fifo}"), "bad-option"),
    "weights to a folder that is not there": (("random-weights", "{package}", "-o", "{folder}/a/b"), "bad-option"),
    "weights to a file of a long name": (("random-weights", "{package}", "-o", "{folder}/" + "x" * 256), "bad-option"),
    "weights over a file": (("random-weights", "{package}", "-o", "{weights}"), "output-exists"),
    "weights of a seed of thirty digits": (
        ("random-weights", "{package}", "-o", "{folder}/w", "--seed", MANY),
        "bad-option",
    ),
}
CODEGEN: dict[str, tuple[tuple[str, ...], str]] = {
    "a target that is a path": (("check", SPEC, "--target", "../../x"), "lowering-unknown-target"),
    "a target that is code": (
        ("build", SPEC, "-o", "{folder}/x", "--target", 'cpu"\nimport os'),
        "lowering-unknown-target",
    ),
    "a spec of a long name": (("check", "x" * 5000), "spec-unreadable-file"),
    "an output of a long name": (("build", SPEC, "--no-aot", "-o", "{folder}/" + "x" * 300), "build-not-written"),
    "an output in /proc": (("build", SPEC, "--no-aot", "-o", "/proc/self/stepforge"), "build-not-written"),
    "an output in a device": (("build", SPEC, "--no-aot", "-o", "/dev/null/x"), "build-not-written"),
    "no jobs": (("build", SPEC, "-o", "{folder}/x", "--jobs", "0"), "usage"),
    "more drafts than there are": (("explain", SPEC, "--drafts", "99"), "explain-shape"),
    "a bucket of thirty digits": (("explain", SPEC, "--bucket", MANY), "explain-shape"),
    "a context beyond the spec's": (("explain", SPEC, "--context", MANY), "explain-shape"),
    "tuned values of a long name": (("explain", SPEC, "--tuned", "x" * 5000), "tuned-file"),
    "tuned values from a fifo": (("explain", SPEC, "--tuned", "{fifo}"), "tuned-file"),
    "no package to verify": (("verify", "{folder}"), "package-not-found"),
    "a fifo to verify": (("verify", "{fifo}"), "package-not-found"),
    "a code nobody knows": (("errors", "\x1b[2J"), "unknown-code"),
    "a command nobody knows": (("eval", "x"), "usage"),
}
AUTOTUNE: dict[str, tuple[tuple[str, ...], str]] = {
    "results from a fifo": (("import", "{fifo}", "--folder", "{folder}"), "tuned-file"),
    "results from an endless device": (("import", "/dev/zero", "--folder", "{folder}"), "tuned-file"),
    "results of a long name": (("show", "--folder", "x" * 5000), "tuned-file"),
    "results in a fifo": (("show", "--folder", "{fifo}"), "tuned-file"),
    "a fifo compared": (("diff", "{folder}", "{fifo}"), "tuned-file"),
    "nothing to export": (("export", "-o", "{folder}/x", "--folder", "{folder}"), "tune-no-results"),
    "nothing to report": (
        ("report", "-o", "{folder}/x", "--folder", "{folder}", "--kernel", "\x1b"),
        "tune-no-results",
    ),
    "a budget without end": (("run", SPEC, "--budget", "inf", "--folder", "{folder}"), "tune-option"),
    "a budget in other digits": (("run", SPEC, "--budget", "\u0661", "--folder", "{folder}"), "tune-option"),
    "a budget of 400 digits": (("run", SPEC, "--budget", "9" * 400, "--folder", "{folder}"), "tune-option"),
    "a spec of a long name": (("run", "x" * 5000), "spec-unreadable-file"),
    "a folder that is no package": (("run", "{folder}"), "tune-option"),
    "a target that is a path": (
        ("run", SPEC, "--target", "../../x", "--folder", "{folder}"),
        "lowering-unknown-target",
    ),
    "a kernel that clears the screen": (("run", SPEC, "--kernel", "\x1b[2J", "--folder", "{folder}"), "tune-option"),
    "studies in a device": (("run", SPEC, "--storage", "/dev/null/x", "--folder", "{folder}"), "tune-storage"),
    "studies in a database nobody knows": (("run", SPEC, "--storage", "x://", "--folder", "{folder}"), "tune-storage"),
    "no trials": (("run", SPEC, "--trials", "0", "--folder", "{folder}"), "usage"),
    "a command nobody knows": (("eval", "x"), "usage"),
}
DSL: dict[str, tuple[tuple[str, ...], str]] = {
    "a new spec over a fifo": (("new", "{fifo}"), "spec-exists"),
    "a new spec over a folder": (("new", "{folder}"), "spec-exists"),
    "a new spec in a folder that is not there": (("new", "{folder}/a/b.yaml"), "spec-not-written"),
    "a new spec in a device": (("new", "/dev/null/x.yaml"), "spec-not-written"),
    "a new spec of a long name": (("new", "{folder}/" + "x" * 300, "--name", "x"), "spec-not-written"),
    "a name that is a path": (("new", "{folder}/x.yaml", "--name", "../../x"), "spec-bad-name"),
    "a name that is code": (("new", "{folder}/x.yaml", "--name", "x\nimport: os"), "spec-bad-name"),
    "a name that clears the screen": (("new", "{folder}/x.yaml", "--name", "\x1b[2J"), "spec-bad-name"),
    "a file whose name is no model's": (("new", "{folder}/5 % off.yaml"), "spec-bad-name"),
    "a fifo compared": (("diff", SPEC, "{fifo}"), "spec-unreadable-file"),
    "an endless device compared": (("diff", "/dev/zero", SPEC), "spec-unreadable-file"),
    "one spec compared": (("diff", SPEC), "usage"),
    "a command nobody knows": (("eval", "x"), "usage"),
}
# names that specs may have, but that no generated comment can quote
SPEC_NAMES = ('"""', "a\nimport os", "a b.yaml", "-rf.yaml\x1b[2J", "{{ 7 }}.yaml")
