"""The comparison with peers: its order, its ratios and its verdicts, on sides that take a made-up time."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers import report, rounds
from benchmarks.peers.figures import ASKS, NEW, PROMPT, Answer, Ask, Figure, times_as_fast, value_of
from benchmarks.peers.models import BEST, MODELS, OPENVINO, PEERS, SHARE, VLLM
from benchmarks.peers.rounds import Samples, measure
from benchmarks.peers.sides import WORKERS, SideFailed, Worker
from runtime.bench.usage import UsageClock

MODEL = MODELS["smollm2-135m"]
GIGABYTE = 1_000_000_000


class Side:
    """Takes `seconds` of every request, whatever it is."""

    pid = None

    def __init__(self, name: str, seconds: float, log: list[tuple[str, Ask]]) -> None:
        self.name, self.about = name, {"step_bytes": GIGABYTE, "read_bytes": GIGABYTE * 3 // 4}
        self._seconds, self._log = seconds, log

    def load(self) -> None:
        pass

    def ask(self, ask: Ask) -> Answer:
        self._log.append((self.name, ask))
        return Answer(self._seconds, self._seconds, ask.batch * max(1, ask.new - 1))

    def close(self) -> None:
        pass


class Meter(Side):
    """Reads a gigabyte a second."""

    def call(self, content: dict[str, Any]) -> dict[str, Any]:
        self._log.append((self.name, Ask(0, 0)))
        return {"bytes_per_second": float(GIGABYTE)}


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REST_SECONDS", 0.0)


def run(sides: dict[str, float], figures: list[Figure], count: int = 3) -> tuple[Samples, list[tuple[str, Ask]]]:
    log: list[tuple[str, Ask]] = []
    made = [Side(name, seconds, log) for name, seconds in sides.items()]
    found = measure(made, Meter("meter", 0.0, log), figures, count, lambda note: None)  # type: ignore[arg-type]
    return found, log


def test_rounds_are_interleaved_in_changing_order_with_the_bandwidth_around_ours(no_rest: None) -> None:
    _, log = run({"ours": 1.0, "a": 1.0, "b": 1.0}, [Figure.DECODE], 2)
    assert [name for name, _ in log] == [
        *("ours", "a", "b"),  # warming up
        *("meter", "ours", "meter", "a", "b"),
        *("b", "a", "meter", "ours", "meter"),
    ]


def test_no_two_runs_of_a_side_share_a_prompt(no_rest: None) -> None:
    _, log = run({"ours": 1.0}, list(Figure), 4)
    seeds = [ask.seed for name, ask in log if name == "ours"]
    assert len(set(seeds)) == len(seeds) == 5 * len(Figure)


def test_both_calls_of_a_difference_have_prompts_of_their_own() -> None:
    script = (
        "import json; from serve import by_difference, prompts; calls = []\n"
        "asked = prompts({'prompt': 64, 'batch': 2, 'seed': 3})\n"
        "by_difference(lambda asked, new: calls.append((asked, new)))(asked, 9)\n"
        "print(json.dumps(calls))"
    )
    (first, one), (second, all_of_them) = json.loads(
        subprocess.run([sys.executable, "-c", script], cwd=WORKERS, capture_output=True, check=True).stdout
    )
    assert (one, all_of_them) == (1, 9) and sorted(map(sorted, first)) == sorted(map(sorted, second))
    assert not {prompt[0] for prompt in first} & {prompt[0] for prompt in second}


def test_ratios_say_how_many_times_as_fast_we_are(no_rest: None) -> None:
    found, _ = run({"ours": 1.0, "slow": 2.0}, list(Figure))
    assert {figure: found.ratio(figure, "ours", "slow") for figure in Figure} == dict.fromkeys(Figure, 2.0)
    assert times_as_fast(Figure.FIRST_TOKEN, 10.0, 20.0) == 2.0 and times_as_fast(Figure.DECODE, 10.0, 20.0) == 0.5


def test_a_ratio_is_the_median_of_rounds_not_the_ratio_of_medians() -> None:
    values = {Figure.DECODE: {"ours": [1.0, 10.0, 100.0], "a": [1.0, 5.0, 200.0]}}
    assert Samples(values).ratio(Figure.DECODE, "ours", "a") == 1.0


def test_the_share_is_that_of_the_bandwidth_of_its_own_round() -> None:
    values = {Figure.DECODE: {"ours": [50.0, 100.0]}}
    assert Samples(values, [100.0, 200.0], step_bytes=1).share("ours") == 0.5


def test_openvino_answers_one_request_at_a_time(no_rest: None) -> None:
    found, log = run({"ours": 1.0, OPENVINO: 1.0}, [Figure.BATCH])
    assert OPENVINO not in {name for name, _ in log} and list(found.values[Figure.BATCH]) == ["ours"]


@pytest.mark.parametrize(
    ("figure", "value"),
    [(Figure.DECODE, 127 / 2), (Figure.PREFILL, 512.0), (Figure.FIRST_TOKEN, 1000.0), (Figure.BATCH, 8 * 127 / 2)],
)
def test_figures_of_an_answer(figure: Figure, value: float) -> None:
    tokens = ASKS[figure].batch * (NEW - 1)
    assert value_of(figure, Answer(1.0, 2.0, tokens)) == value


def test_the_best_peer_is_the_one_that_is_hardest_to_beat(no_rest: None) -> None:
    found, _ = run({"ours": 1.0, VLLM: 3.0, OPENVINO: 2.0}, list(Figure))
    by_key = {(v.required.figure, v.required.of): v for v in report.verdicts(MODEL, found, "ours")}
    assert by_key[Figure.PREFILL, BEST].value == 2.0 and by_key[Figure.PREFILL, BEST].passed
    assert by_key[Figure.BATCH, BEST].value == 3.0, "OpenVINO has no batches"
    assert by_key[Figure.DECODE, VLLM].value == 3.0
    assert by_key[Figure.DECODE, SHARE].value == 127.0


def test_what_was_not_measured_is_neither_held_nor_missed(no_rest: None) -> None:
    found, _ = run({"ours": 1.0}, [Figure.PREFILL])
    assert {verdict.passed for verdict in report.verdicts(MODEL, found, "ours")} == {None}


def test_every_model_has_a_spec_and_every_requirement_a_side() -> None:
    for model in MODELS.values():
        assert model.spec.exists()
        assert {required.of for required in model.required} <= {SHARE, BEST, *PEERS}


def worker(tmp_path: Path, text: str, *arguments: str) -> Worker:
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(WORKERS)!r})\nfrom serve import serve\n{text}")
    return Worker("peer", sys.executable, str(script), arguments, {}, tmp_path / "logs" / "peer.log")


ECHO = """
def generate(prompts, new):
    print("noise of a library")
    return 0.25, float(len(prompts)), sum(map(len, prompts)) + new
serve(lambda: (print("noise"), (generate, {"version": "7"}))[1], twice=lambda ask: 2 * ask["number"])
"""


def test_a_worker_answers_whatever_its_library_prints(tmp_path: Path) -> None:
    side = worker(tmp_path, ECHO)
    side.load()
    assert side.about["version"] == "7" and side.about["load"] >= 0
    assert side.ask(Ask(PROMPT, 5, batch=2)) == Answer(0.25, 2.0, 2 * PROMPT + 5)
    assert side.call({"operation": "twice", "number": 21}) == 42
    side.close()
    assert "noise" in (tmp_path / "logs" / "peer.log").read_text()


def test_a_worker_that_dies_says_what_it_wrote_last(tmp_path: Path) -> None:
    with pytest.raises(SideFailed, match="no such model"):
        worker(tmp_path, "raise SystemExit('no such model')").load()


def test_a_worker_that_dies_between_two_requests_says_so(tmp_path: Path) -> None:
    side = worker(tmp_path, "def generate(prompts, new):\n    raise RuntimeError('out of memory')\n"
                  "serve(lambda: (generate, {}))")  # fmt: skip
    side.load()
    for _ in range(2):
        with pytest.raises(SideFailed, match="out of memory"):
            side.ask(Ask(4, 1))
    side.close()


def test_prompts_are_the_same_everywhere_and_differ_by_seed_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WORKERS))
    from serve import FIRST_ID, LAST_ID, prompts

    one, two = prompts({"prompt": 64, "batch": 2, "seed": 1})
    assert (one, two) == tuple(prompts({"prompt": 64, "batch": 2, "seed": 1}))
    assert one != two and one != prompts({"prompt": 64, "batch": 1, "seed": 2})[0]
    assert all(FIRST_ID <= token < LAST_ID for token in one) and len(set(one)) > 48


SPIN = """
import threading
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
"""


def test_a_side_that_spins_while_it_should_sleep_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    spinning, sleeping = worker(tmp_path, SPIN + ECHO), worker(tmp_path / "other", ECHO)
    for side in (spinning, sleeping):
        side.load()
    try:
        assert spinning.pid is not None and sleeping.pid is not None
        while_sleeping_works = UsageClock([spinning.pid, sleeping.pid], sleeping.pid)
        while_spinning_works = UsageClock([spinning.pid, sleeping.pid], spinning.pid)
        time.sleep(0.7)
        found, other = while_sleeping_works.read(), while_spinning_works.read()
        assert found is not None and found.idle > 0.2
        assert other is not None and other.idle == 0
    finally:
        for side in (spinning, sleeping):
            side.close()


SPINS = "import time\nend = time.monotonic() + %s\nwhile time.monotonic() < end: pass\ntime.sleep(60)"


@pytest.fixture
def spinning() -> Iterator[Callable[[float], int]]:
    """Pids of processes that spin for so many seconds."""
    started: list[subprocess.Popen[bytes]] = []

    def start(seconds: float) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", SPINS % seconds]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


class Timed(Meter):
    """Notes when it is asked for something."""

    def __init__(self, pid: int) -> None:
        super().__init__("timed", 1.0, [])
        self.pid, self.times = pid, []

    def ask(self, ask: Ask) -> Answer:
        self.times.append(time.monotonic())
        return super().ask(ask)

    def call(self, content: dict[str, Any]) -> dict[str, Any]:
        self.times.append(time.monotonic())
        return super().call(content)


@pytest.mark.parametrize("figure", [Figure.DECODE, Figure.FIRST_TOKEN])
def test_nothing_is_measured_while_a_side_still_spins(figure: Figure, spinning: Callable[[float], int]) -> None:
    """vLLM's worker looks for work in a loop for a second after its last answer. Nor is the bandwidth measured."""
    start, side = time.monotonic(), Timed(spinning(1.5))
    measure([side], side, [figure], 1, lambda note: None)  # type: ignore[list-item, arg-type]
    warm, *measured = side.times
    assert warm - start < 1.5 < measured[0] - start, "it was still spinning"


def test_a_side_that_never_sleeps_is_reported(
    spinning: Callable[[float], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LONGEST_REST_SECONDS", 0.6)
    cores = rounds.rest([spinning(60)])
    assert cores is not None and cores > rounds.AWAKE_CORES
    (line,) = report._disturbances(Samples(awake=[0.3, cores]))
    assert "2 measurements began" in line


def test_workers_of_peers_import_nothing_that_their_interpreters_lack() -> None:
    """They run where Stepforge is not installed."""
    for script in WORKERS.glob("*.py"):
        if script.name in ("run_ours.py", "run_bandwidth.py"):
            continue
        nodes = list(ast.walk(ast.parse(script.read_text())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        ours = {"benchmarks", "codegen", "dsl", "runtime", "tests"}
        assert not ours & {name.split(".")[0] for name in names}, script.name


def options(*arguments: str) -> Any:
    return peers.parser().parse_args(arguments)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of empty model files, and no package that is built."""
    for variable in ("MODELS", "LLAMA_CPP", "VLLM", "TCMALLOC", "OPENVINO"):
        monkeypatch.delenv(f"STEPFORGE_PEER_{variable}", raising=False)
    monkeypatch.setattr(peers.prepared, "random_weights", lambda package: package.with_suffix(".safetensors"))
    for name in ("smollm2.bf16.gguf", "smollm2.f16.gguf", "smollm2"):
        (tmp_path / name).touch()
    return tmp_path


def sides(*arguments: str, model: str = "smollm2-135m") -> list[str]:
    return [side.name for side in peers.sides_of(MODELS[model], Path("build/x"), options(*arguments))]


@pytest.mark.parametrize("option", ["--rounds", "--threads"])
@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_rounds_and_threads_are_at_least_one(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(option, value)
    assert option in capsys.readouterr().err


def test_only_peers_that_are_given_take_part(installed: Path) -> None:
    models = ("--models", str(installed))
    assert sides() == ["stepforge"]
    assert sides("--llama-cpp", "bin") == ["stepforge"], "without models there is nothing to load"
    assert sides(*models, "--llama-cpp", "bin") == ["stepforge", "llama.cpp"]
    assert sides(*models, "--llama-cpp", "bin", "--openvino", "python", "--peer", "openvino") == [
        "stepforge",
        "openvino",
    ]
    assert sides(*models, "--peer", "transformers") == ["stepforge", "transformers"]


def test_a_peer_may_be_named_by_a_variable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFORGE_PEER_MODELS", str(installed))
    monkeypatch.setenv("STEPFORGE_PEER_VLLM", "/somewhere/bin/python")
    assert sides() == ["stepforge", "vllm"]


def test_a_peer_that_cannot_read_a_model_takes_no_part_and_a_missing_file_is_named(installed: Path) -> None:
    models = ("--models", str(installed))
    assert sides(*models, "--openvino", "python", model="mamba2-130m") == ["stepforge"]
    with pytest.raises(SideFailed, match=r"mamba2\.bf16\.gguf is missing"):
        sides(*models, "--llama-cpp", "bin", model="mamba2-130m")


def test_a_short_measurement_has_no_usage() -> None:
    assert UsageClock([], None).read() is None
