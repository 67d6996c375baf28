"""What may win: the right candidates pass in every scene, planted wrong and racy ones do not, however fast they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import proof
from autotune.contest import Contest
from autotune.finale import conclude
from autotune.forge import Forge
from autotune.measure import Bench
from autotune.proof import Judge, Rejected
from autotune.scenes import timed_scenes
from autotune.space import Machine, space_of
from autotune.study import Search, open_study
from autotune.tune import attempts, run_trials
from codegen.errors import TuneNotWritten, UntunedWrong
from codegen.plan import Kernel
from codegen.render import kernel_text
from codegen.tunables import Value
from codegen.tuned import FREE, KEEP, identity
from dsl import ModelSpec
from runtime.cpu import get_num_threads
from tests.cpu.engine.toys import toy_spec

CPU = torch.device("cpu")
MATMUL = "matmul_256x1160"
MACHINE = Machine(4e10, 8e11, 2)
Plant = Callable[[dict[str, object], str, str], Forge]


def neutral(kernel: Kernel) -> dict[str, list[Value]]:
    """Values other than the default of every tunable that is said to change no bit."""
    found = {t.name: [v for v in t.values if v != t.default] for t in kernel.tunables if not t.changes_bits}
    return {name: values for name, values in found.items() if values}


def prove_all(forge: Forge, kernel: str, candidates: list[dict[str, Value]]) -> int:
    """Proves candidates of one kernel; returns how many there are."""
    judge = Judge(forge, kernel, CPU, KEEP)
    for values in candidates:
        judge.prove(forge.candidate(kernel, values))
    return len(candidates)


def test_what_is_said_to_change_no_bit_changes_none(toy: ModelSpec, folder: Path) -> None:
    """Of one kernel of each template, both ends of every range at once: panels, tiles, bytes ahead, channels."""
    forge, done = Forge(toy, "cpu", folder), 0
    first = {kernel.template: kernel for kernel in reversed(forge.untuned.kernels) if neutral(kernel)}
    assert len(first) >= 6
    for kernel in first.values():
        found = neutral(kernel)
        ends = [{name: values[end] for name, values in found.items()} for end in (0, -1)]
        done += prove_all(forge, kernel.name, ends)
    assert done == 2 * len(first)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_rounded_head_of_drafts_means_what_it_is_made_of(kind: str, folder: Path) -> None:
    """The untuned kernel, and both ends of every range at once; a bound counts the bytes that the panels have."""
    forge = Forge(toy_spec(draft_head=kind).model_copy(update={"d_model": 150}), "cpu", folder)
    (kernel,) = (kernel for kernel in forge.untuned.kernels if kernel.name.startswith("draft_head"))
    found = neutral(kernel)
    assert {"BLOCK_N", "row_tiles", "prefetch_bytes"} <= found.keys()
    assert prove_all(forge, kernel.name, [{name: values[end] for name, values in found.items()} for end in (0, -1)])
    (head,) = (buffer for buffer in forge.untuned.buffers if buffer.name == "draft_head")
    space = space_of(forge.untuned, kernel, KEEP)
    bound = space.bound(space.default, timed_scenes(forge.untuned, kernel), Machine(1.0, 1e30, 1))
    assert bound == pytest.approx(head.bytes, rel=1e-4)


@pytest.mark.nightly
def test_no_value_that_is_said_to_change_no_bit_changes_one(tiny: ModelSpec, folder: Path) -> None:
    forge, done = Forge(tiny, "cpu", folder), 0
    for kernel in forge.untuned.kernels:
        found = neutral(kernel)
        done += prove_all(forge, kernel.name, [{name: value} for name, values in found.items() for value in values])
    assert done > 100


def test_the_length_of_a_dot_shows_in_bits_and_is_refused_unless_they_are_free(tiny: ModelSpec, folder: Path) -> None:
    forge, name = Forge(tiny, "cpu", folder), "matmul_512x256_residual"
    other = forge.candidate(name, {"BLOCK_K": 256})
    with pytest.raises(Rejected, match=r"y\[\d+\] is .*, not .* \(decode, 1 threads\)"):
        Judge(forge, name, CPU, KEEP).prove(other)
    Judge(forge, name, CPU, FREE).prove(other)


@pytest.fixture(scope="module")
def halves(tiny: ModelSpec, folder: Path) -> Forge:
    """Panels of 64 columns sum over the first half of k only: fast and wrong."""

    def text(kernel: Kernel) -> str:
        plain = kernel_text(kernel)
        if kernel.name != MATMUL or kernel.constant("BLOCK_N") != 64:
            return plain
        plain = plain.replace("i_k, K, K_PADDED, BLOCK_K)", "i_k, K, K_PADDED, BLOCK_K // 2)")
        plain = plain.replace("tl.arange(0, BLOCK_K * BLOCK_N)", "tl.arange(0, BLOCK_K // 2 * BLOCK_N)")
        return plain.replace("panel_operand(b_w, BLOCK_K, BLOCK_N)", "panel_operand(b_w, BLOCK_K // 2, BLOCK_N)")

    return Forge(tiny, "cpu", folder, text)


def test_a_fast_and_wrong_candidate_is_rejected_and_never_wins(halves: Forge, tmp_path: Path) -> None:
    found = tuned(halves, MATMUL, "BLOCK_N", tmp_path)
    wrong = next(attempt for attempt in found["attempts"] if attempt.values == {"BLOCK_N": 64})
    assert wrong.state == "rejected"
    assert "not" in wrong.why
    assert found["values"].get("BLOCK_N") != 64
    others = {attempt.state for attempt in found["attempts"] if attempt.values == {"BLOCK_N": 16}}
    assert others in ({"complete"}, {"slow"}), "proven, and timed"
    judge = Judge(halves, MATMUL, CPU, KEEP)
    contest = Contest(judge, working_set=1 << 20)
    *_, timed = contest.race(halves.candidate(MATMUL, {"BLOCK_N": 64}), 5)
    prefill = timed.plain()["prefill"]["ratio"]
    assert prefill < 0.9, "it is no fast candidate: the test shows nothing"


def test_a_racy_candidate_is_rejected_though_one_thread_gets_it_right(planted: Plant, tmp_path: Path) -> None:
    """Each program clears the columns of the next before that one, later on the same thread, writes them."""
    clears = (
        "        next_n = o_n + BLOCK_N\n"
        "        tl.store(y + o_m[:, None] * N + next_n[None, :], acc * 0.0, "
        "mask=(o_m[:, None] < rows) & (next_n[None, :] < N))\n"
        "        tl.store(p_y, acc, mask=m_y)\n"
    )
    forge = planted({"K": 256, "N": 1160, "BLOCK_N": 64}, "        tl.store(p_y, acc, mask=m_y)\n", clears)
    judge = Judge(forge, MATMUL, CPU, KEEP)
    candidate = forge.candidate(MATMUL, {"BLOCK_N": 64})
    judge._threads = lambda: (1,)  # type: ignore[method-assign]  # what luck would show
    judge.prove(candidate)
    with pytest.raises(Rejected, match=r"cpu-data-race|race"):
        judge.check_races(candidate)
    bench = bench_of(forge, MATMUL)
    with pytest.raises(Rejected):
        bench.decide({"BLOCK_N": 64})
    assert tuned(forge, MATMUL, "BLOCK_N", tmp_path)["values"].get("BLOCK_N") != 64


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tl.store(p_y, acc, mask=m_y)", "tl.store(p_y, acc, mask=o_n[None, :] < N)", r"y\[\d+\]"),
        ("tl.store(p_y, acc, mask=m_y)", "tl.store(p_y, acc + 0 * i_n, mask=m_y & (i_n < 15))", r"y\[\d+\] is nan"),
        ("        m_y =", "        tl.store(p_w, tl.load(p_w) + 1.0)\n        m_y =", "it wrote into the weights w"),
        ("b_w = tl.load(p_w", "b_w = tl.no_such_thing(p_w", "it cannot be compiled or launched: at .*no_such_thing"),
    ],
    ids=["rows that are not there", "a panel is left out", "weights", "does not compile"],
)
def test_whatever_else_is_wrong_is_named(planted: Plant, old: str, new: str, message: str) -> None:
    forge = planted({"K": 256, "N": 1160, "BLOCK_N": 64}, old, new)
    with pytest.raises(Rejected, match=message):
        bench_of(forge, MATMUL)._proven({"BLOCK_N": 64})


def test_an_untuned_kernel_that_is_wrong_is_an_error_and_not_the_measure(tiny: ModelSpec, folder: Path) -> None:
    forge = Forge(
        tiny,
        "cpu",
        folder,
        lambda kernel: kernel_text(kernel).replace("tl.store(p_y, acc,", "tl.store(p_y, acc * 1.01,"),
    )
    with pytest.raises(UntunedWrong, match=r"matmul_256x1160 cannot be tuned.* in scene decode, y is off by"):
        Judge(forge, MATMUL, CPU, KEEP)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "        tl.store(p_y, acc, mask=m_y)\n",
            "        tl.store(y + o_m[:, None] * N + (o_n + BLOCK_N)[None, :], acc * 0.0, "
            "mask=(o_m[:, None] < rows) & ((o_n + BLOCK_N)[None, :] < N))\n"
            "        tl.store(p_y, acc, mask=m_y)\n",
            r"cpu-data-race|race",
        ),
        ("b_w = tl.load(p_w", "b_w = tl.no_such_thing(p_w", "no_such_thing"),
    ],
    ids=["racy", "does not compile"],
)
def test_an_untuned_kernel_goes_through_what_candidates_go_through(
    tiny: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    """What PyTorch would not tell, for one thread gets it right: the checker does, before anything is tuned."""

    def text(kernel: Kernel) -> str:
        assert kernel.name != MATMUL or old in kernel_text(kernel)
        return kernel_text(kernel).replace(old, new)

    monkeypatch.setattr(Judge, "_threads", lambda self: (1,))
    monkeypatch.setattr(Judge, "_compare_with_meaning", lambda *_: None)
    with pytest.raises(UntunedWrong, match=f"{MATMUL} cannot be tuned.*({message})"):
        Judge(Forge(tiny, "cpu", folder, text), MATMUL, CPU, KEEP)


def test_candidates_run_on_one_thread_on_two_and_on_all(
    tiny: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "threads", lambda: 5)
    forge, seen, before = Forge(tiny, "cpu", folder), list[int](), get_num_threads()
    judge = Judge(forge, "rms_norm_256", CPU, KEEP)
    run = judge._run

    def watched(*arguments: Any) -> dict[str, torch.Tensor]:
        seen.append(get_num_threads())
        return run(*arguments)

    monkeypatch.setattr(judge, "_run", watched)
    judge.prove(forge.candidate("rms_norm_256", {}))
    assert Counter(seen) == dict.fromkeys((1, 2, 5), proof.RUNS_PER_THREADS * len(judge.scenes))
    assert get_num_threads() == before


@pytest.mark.parametrize("error", [RuntimeError(), RuntimeError("\n"), ValueError("a\nb")])
def test_an_error_of_few_words_rejects_as_others_do(
    tiny: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench = bench_of(Forge(tiny, "cpu", folder), "rms_norm_256")
    monkeypatch.setattr(bench.judge, "prove", raising(error))
    with pytest.raises(Rejected, match=r"launched: (RuntimeError\(.*\)|a)$"):
        bench._proven({})


def test_what_the_machine_is_at_fault_for_rejects_nobody(
    tiny: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(Forge(tiny, "cpu", folder), "rms_norm_256")
    for error in (OSError(28, "No space left on device"), MemoryError(), TuneNotWritten(path="x", detail="full")):
        monkeypatch.setattr(bench.judge, "prove", raising(error))
        with pytest.raises(type(error)):
            bench._proven({})


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_poison_is_put_only_where_a_kernel_does_not_read(tiny: ModelSpec, folder: Path) -> None:
    forge = Forge(tiny, "cpu", folder)
    written = {scene.written for scene in Judge(forge, MATMUL, CPU, KEEP).scenes}
    added = {scene.written for scene in Judge(forge, "matmul_512x256_residual", CPU, KEEP).scenes}
    assert written == {frozenset({"y"})}
    assert added == {frozenset()}


def bench_of(forge: Forge, kernel: str) -> Bench:
    return Bench(forge, kernel, CPU, working_set=1 << 20, numerics=KEEP, measuring=nullcontext())


def tuned(forge: Forge, kernel: str, tunable: str, tmp_path: Path) -> dict[str, Any]:
    """A whole search over one tunable of one kernel."""
    space = space_of(forge.untuned, forge.untuned.kernel(kernel), KEEP)
    space = replace(space, tunables=tuple(t for t in space.tunables if t.name == tunable))
    bench = bench_of(forge, kernel)
    search = Search(open_study(str(tmp_path), "study"), space, space.promising(MACHINE))
    assert run_trials(search, space, bench)
    found = conclude(search, space, bench, identity(forge.untuned, forge.untuned.kernel(kernel)), {})
    return {"values": found.values, "attempts": list(attempts(search))}
