"""What a scrape says: every statistic by a proper name, also while the engine steps in another thread."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import threading
import timeit
import urllib.request
from types import SimpleNamespace

import pytest

from runtime.engine import Engine
from runtime.errors import MetricsUnavailable
from runtime.observe import metrics
from runtime.observe.histogram import BOUNDS, Histogram
from runtime.observe.metrics import METRICS, EngineCollector, leaves, serve
from runtime.observe.stats import Stats
from tests.cpu.engine.toys import Ask, drain

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

PROMPT = tuple(b"the quick brown fox jumps over the lazy dog")


def scrape(engine: object) -> dict[str, float]:
    """All samples of an engine by name and labels."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(EngineCollector(engine))  # type: ignore[arg-type]
    return parsed(prometheus_client.generate_latest(registry).decode())


def parsed(text: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for sample in samples
    }


def test_a_scrape_says_what_stats_say(package, weights):
    engine = Engine(package, weights, drafts=3)
    for ask in (Ask(PROMPT, 40), Ask(PROMPT, 30, temperature=1.0), Ask(PROMPT[:20], 20)):
        ask.submit(engine)
    drain(engine)
    found, stats = scrape(engine), engine.stats()
    assert found["stepforge_tokens_total"] == stats.output_tokens
    assert found["stepforge_requests_finished_total"] == 3 and found["stepforge_requests_waiting"] == 0
    assert found["stepforge_drafts_accepted_total{position=1}"] == stats.acceptance[0][0]
    assert found["stepforge_drafts_proposed_total{position=3}"] == stats.acceptance[2][1]
    assert found["stepforge_tokens_per_step"] == stats.tokens_per_step
    assert found["stepforge_checkpoints_written_total"] == stats.checkpoint_counts.written
    assert found["stepforge_memory_bytes{role=weight}"] == stats.memory["weight"]


def test_every_field_of_stats_has_a_metric(package, weights):
    """One that has none is exported as untyped. A row of METRICS gives it a name, a kind and a text."""
    with Engine(package, weights, drafts=3) as engine:
        engine.generate(list(PROMPT), max_new_tokens=8)
        assert {leaf.path for leaf in leaves(engine.stats())} <= METRICS.keys()


def test_metrics_have_names_of_their_own_and_a_text():
    names = [metric.name for metric in METRICS.values()]
    assert len(set(names)) == len(names)
    for metric in METRICS.values():
        assert metric.help.endswith(".") and not metric.name.endswith("_total") and metric.kind in ("counter", "gauge")


@dataclasses.dataclass(frozen=True)
class Later(Stats):
    """Statistics with what the engine of this version does not count."""

    novel: object
    by_reason: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Novel:
    depth: int
    ratio: float
    name: str
    missing: None
    worst: list[int]


def test_histograms_and_fields_without_a_metric(package, weights):
    seconds = Histogram()
    for value in (1e-6, 2e-3, 2.1e-3, 50.0, 1e4):
        seconds.add(value)
    with Engine(package, weights) as engine:
        now = {field.name: getattr(engine.stats(), field.name) for field in dataclasses.fields(Stats)}
    stats = Later(**now | {"step_seconds": seconds}, novel=Novel(3, 0.5, "x", None, [7, 8]), by_reason={"stop": 2})
    found = scrape(SimpleNamespace(stats=lambda: stats))
    assert found["stepforge_novel_depth"] == 3 and found["stepforge_novel_ratio"] == 0.5
    assert found["stepforge_novel_worst{key=1}"] == 8 and found["stepforge_by_reason{key=stop}"] == 2
    assert not any("name" in name.partition("{")[0] or "missing" in name for name in found)
    assert found["stepforge_step_seconds_count"] == 5 and math.isclose(found["stepforge_step_seconds_sum"], seconds.sum)
    assert (
        found["stepforge_step_seconds_bucket{le=0.0022}"] == 3 and found["stepforge_step_seconds_bucket{le=100.0}"] == 4
    )
    assert (
        found["stepforge_step_seconds_bucket{le=+Inf}"] == 5 and found["stepforge_step_seconds_bucket{le=1e-05}"] == 1
    )


def test_scrapes_while_the_engine_steps(package, weights):
    """From other threads, as fast as they can; counters never fall, and nothing is raised on either side."""
    engine, stop, failures, scrapes = Engine(package, weights, drafts=3), threading.Event(), [], []

    def watch() -> None:
        last = 0.0
        try:
            while not stop.is_set():
                with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
                    found = parsed(answer.read().decode())
                assert found["stepforge_tokens_total"] >= last
                last = found["stepforge_tokens_total"]
                scrapes.append(last)
        except BaseException as error:
            failures.append(error)

    with serve(engine, 0) as exporter:
        threads = [threading.Thread(target=watch) for _ in range(2)]
        for thread in threads:
            thread.start()
        rng = random.Random(3)
        while len(scrapes) < 100 and not failures:
            engine.set_drafts(rng.randint(0, 7))
            engine.generate(list(PROMPT[: rng.randint(1, 40)]), max_new_tokens=20)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures and max(scrapes) > 0


def test_a_dictionary_that_grows_meanwhile_is_read_again(package, weights):
    with Engine(package, weights) as engine:
        good, calls = engine.stats(), []

    def stats() -> Stats:
        calls.append(1)
        if len(calls) < 5:
            raise RuntimeError("dictionary changed size during iteration")
        return good

    assert metrics.snapshot(SimpleNamespace(stats=stats)) is good  # type: ignore[arg-type]


def test_without_the_client_there_is_one_clear_error(package, weights, monkeypatch):
    with Engine(package, weights) as engine:
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        for make in (lambda: serve(engine, 0), lambda: EngineCollector(engine)):
            with pytest.raises(
                MetricsUnavailable, match=r"pip install 'stepforge\[metrics\]'.*\[metrics-unavailable\]"
            ):
                make()


def test_a_port_in_use_is_one_clear_error(package, weights):
    with Engine(package, weights) as engine, serve(engine, 0) as exporter:
        with pytest.raises(MetricsUnavailable, match=f"127.0.0.1:{exporter.port}"):
            serve(engine, exporter.port)
        with pytest.raises(MetricsUnavailable):
            serve(engine, 1 << 20)


def test_quantiles_are_within_their_bucket():
    rng, histogram = random.Random(1), Histogram()
    values = sorted(10 ** rng.uniform(-4.5, 1) for _ in range(5000))
    for value in values:
        histogram.add(value)
    assert histogram.count == 5000 and math.isclose(histogram.sum, sum(values))
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert abs(math.log(histogram.quantile(share) / values[min(4999, int(share * 5000))])) < math.log(1.5)
    assert list(histogram.cumulative())[-1] == (math.inf, 5000)
    assert [sum(value <= bound for value in values) for bound in BOUNDS] == [n for _, n in histogram.cumulative()][:-1]


def test_a_histogram_at_its_ends():
    histogram = Histogram()
    assert math.isnan(histogram.quantile(0.5)) and math.isnan(histogram.mean)
    histogram.add(1e9)
    assert histogram.quantile(0.5) == BOUNDS[-1]
    before = histogram.snapshot()
    histogram.add(0.0)
    assert before.count == 1 and histogram.quantile(0.5) <= BOUNDS[0] and before != histogram.snapshot()


def test_adding_costs_little():
    """A fraction of a microsecond; the bound is for busy machines."""
    histogram = Histogram()
    assert min(timeit.repeat(lambda: histogram.add(0.0031), number=20_000, repeat=5)) / 20_000 < 2e-6
