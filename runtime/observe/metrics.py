"""An engine's statistics for Prometheus. Needs prometheus_client, an extra: `pip install stepforge[metrics]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from runtime.engine import Engine
from runtime.errors import MetricsUnavailable
from runtime.observe.histogram import Histogram
from runtime.observe.stats import Stats

PREFIX = "stepforge_"
ATTEMPTS = 16


@dataclass(frozen=True)
class Metric:
    """How a field of Stats is exported. kind: "counter" or "gauge"; label: of a mapping's keys or a list's indices."""

    name: str
    kind: str
    help: str
    label: str = ""


def _counter(name: str, text: str, label: str = "") -> Metric:
    return Metric(name, "counter", text, label)


def _gauge(name: str, text: str, label: str = "") -> Metric:
    return Metric(name, "gauge", text, label)


#: By path of the field. Histograms are in here too, as gauges are: their kind is their own.
METRICS: Mapping[str, Metric] = {
    "requests": _counter("requests", "Requests submitted."),
    "finished": _counter("requests_finished", "Times that a request ended, for whatever reason."),
    "cancelled": _counter("requests_cancelled", "Requests that were cancelled."),
    "expired": _counter("requests_expired", "Requests that ended at their deadline."),
    "failed": _counter("requests_failed", "Requests that ended in an error."),
    "preemptions": _counter("preemptions", "Times that a running request lost its slot."),
    "waiting": _gauge("requests_waiting", "Requests in the queue."),
    "active": _gauge("slots_in_use", "Slots that a request sits in."),
    "steps": _counter("steps", "Decode steps."),
    "output_tokens": _counter("tokens", "Tokens generated."),
    "tokens_per_step": _gauge("tokens_per_step", "Mean tokens that a slot accepts in a step."),
    "acceptance.accepted": _counter("drafts_accepted", "Drafts accepted.", "position"),
    "acceptance.proposed": _counter("drafts_proposed", "Drafts verified.", "position"),
    "prefilled_tokens": _counter("prefilled_tokens", "Prompt tokens processed."),
    "restored_tokens": _counter("restored_tokens", "Prompt tokens taken from checkpoints."),
    "recomputed_tokens": _counter("recomputed_tokens", "Prompt tokens processed although they had been before."),
    "checkpoints": _gauge("checkpoints", "Checkpoints that can be resumed from."),
    "checkpoint_counts.written": _counter("checkpoints_written", "Checkpoints written."),
    "checkpoint_counts.evicted": _counter("checkpoints_evicted", "Checkpoints evicted."),
    "checkpoint_counts.restored": _counter("checkpoints_restored", "Requests that resumed from a checkpoint."),
    "checkpoint_counts.skipped": _counter("checkpoints_skipped", "Checkpoints not written for want of a row."),
    "checkpoint_counts.mismatched": _counter("checkpoints_mismatched", "Checkpoints of other numerics, not restored."),
    "checkpoint_counts.demoted": _counter("checkpoints_demoted", "Checkpoints moved to the host pool."),
    "checkpoint_counts.promoted": _counter("checkpoints_promoted", "Checkpoints moved back from the host pool."),
    "checkpoint_counts.given_up": _counter("checkpoints_given_up", "Held checkpoints dropped for want of pages."),
    "checkpoint_counts.read": _counter("checkpoints_read", "Checkpoints read from files."),
    "refused_files": _counter("checkpoint_files_refused", "Checkpoint files that were not read."),
    "pools.rows_used": _gauge("checkpoint_rows_used", "Rows of the device pool in use."),
    "pools.rows": _gauge("checkpoint_rows", "Rows of the device pool."),
    "pools.pages_used": _gauge("kv_pages_used", "KV pages of the device in use."),
    "pools.pages": _gauge("kv_pages", "KV pages of the device."),
    "pools.host_rows_used": _gauge("host_rows_used", "Rows of the host pool in use."),
    "pools.host_rows": _gauge("host_rows", "Rows of the host pool."),
    "pools.host_pages_used": _gauge("host_pages_used", "KV pages of the host pool in use."),
    "pools.host_pages": _gauge("host_pages", "KV pages of the host pool."),
    "pools.writing": _gauge("checkpoints_being_written", "Checkpoints on their way to the directory."),
    "graphs": _gauge("graphs", "Graphs recorded."),
    "memory": _gauge("memory_bytes", "Bytes of buffers.", "role"),
    "step_seconds": _gauge("step_seconds", "Time of a decode step's replay."),
    "queue_seconds": _gauge("queue_seconds", "Time from submit to a slot."),
    "first_token_seconds": _gauge("first_token_seconds", "Time from submit to the first token."),
    "canary_checked": _counter("canary_steps", "Decode steps run twice, from the graph and launch by launch."),
    "canary_differed": _counter("canary_steps_differed", "Decode steps whose graph did not do what its launches do."),
    "acceptance_collapses": _counter("acceptance_collapses", "Times that draft acceptance fell far below its history."),
}


@dataclass(frozen=True)
class Leaf:
    """A value of Stats. path: of its field; label: key or position in it, or ""."""

    path: str
    label: str
    value: Any


def leaves(stats: object, path: str = "") -> Iterator[Leaf]:
    """All values, in order; what is no number and no histogram is left out."""
    for field in fields(stats):  # type: ignore[arg-type]
        yield from _leaves(f"{path}{field.name}", getattr(stats, field.name))


def _leaves(path: str, value: Any) -> Iterator[Leaf]:
    if is_dataclass(value):
        yield from leaves(value, f"{path}.")
    elif path == "acceptance":
        for position, (accepted, proposed) in enumerate(value, 1):
            yield Leaf(f"{path}.accepted", str(position), accepted)
            yield Leaf(f"{path}.proposed", str(position), proposed)
    elif isinstance(value, Mapping):
        yield from (Leaf(path, str(key), item) for key, item in list(value.items()) if _is_number(item))
    elif isinstance(value, (list, tuple)):
        yield from (Leaf(path, str(i), item) for i, item in enumerate(value) if _is_number(item))
    elif isinstance(value, Histogram) or _is_number(value):
        yield Leaf(path, "", value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


class EngineCollector:
    """For a prometheus_client registry: the engine's statistics as they are when it is scraped, from any thread.

    A field of Stats that METRICS does not know is exported as untyped, by its path. Raises MetricsUnavailable.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._core = engine, _client("metrics_core")

    def collect(self) -> Iterator[Any]:
        """One family per field."""
        families: dict[str, Any] = {}
        for leaf in leaves(snapshot(self._engine)):
            if leaf.path not in families:
                families[leaf.path] = self._family(leaf)
            self._add(families[leaf.path], leaf)
        yield from families.values()

    def _family(self, leaf: Leaf) -> Any:
        known = METRICS.get(leaf.path)
        kind = known.kind if known else "unknown"
        name = PREFIX + (known.name if known else leaf.path.replace(".", "_"))
        if isinstance(leaf.value, Histogram):
            kind = "histogram"
        family = getattr(self._core, f"{kind.capitalize()}MetricFamily")
        help_text = known.help if known else f"Stats.{leaf.path}."
        if kind == "histogram":
            return family(name, help_text)
        return family(name, help_text, labels=[known.label if known and known.label else "key"] if leaf.label else [])

    def _add(self, family: Any, leaf: Leaf) -> None:
        if isinstance(leaf.value, Histogram):
            buckets = [("+Inf" if bound == float("inf") else repr(bound), n) for bound, n in leaf.value.cumulative()]
            family.add_metric([], buckets, leaf.value.sum)
        else:
            family.add_metric([leaf.label] if leaf.label else [], leaf.value)


def snapshot(engine: Engine) -> Stats:
    """`engine.stats()` from another thread than the engine's: again, if a dictionary grew meanwhile."""
    for _ in range(ATTEMPTS - 1):
        try:
            return engine.stats()
        except RuntimeError:
            continue
    return engine.stats()


class Exporter:
    """A running HTTP server. port: the one it listens on."""

    def __init__(self, server: Any, thread: Any) -> None:
        self._server, self._thread = server, thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop listening. The engine is not touched."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(engine: Engine, port: int, address: str = "127.0.0.1") -> Exporter:
    """Serve /metrics of one engine from a thread of its own; port 0: any that is free. Raises MetricsUnavailable."""
    client = _client()
    registry = client.CollectorRegistry()
    registry.register(EngineCollector(engine))
    try:
        return Exporter(*client.start_http_server(port, address, registry))
    except (OSError, OverflowError) as error:
        raise MetricsUnavailable(detail=f"{address}:{port} cannot be listened on ({error})") from error


def _client(module: str = "") -> Any:
    """prometheus_client, or a module of it. Raises MetricsUnavailable."""
    try:
        import prometheus_client
        import prometheus_client.metrics_core
    except ImportError as error:
        raise MetricsUnavailable(detail="pip install 'stepforge[metrics]' (prometheus_client)") from error
    return getattr(prometheus_client, module) if module else prometheus_client
