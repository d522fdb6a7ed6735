"""What a worker counts: read from its engine when asked for."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem.model.engine import Engine


class WorkerMetrics(Collector):
    """Reads single numbers of the engine's without a lock: each is one word."""

    def __init__(self, engine: Engine, role: str) -> None:
        self.registry = CollectorRegistry()
        self._engine = engine
        self._prefix = f"tandem_{role}"
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        work, table = self._engine.work, self._engine.table
        yield self._counter("steps", "Forward passes", work.num_steps)
        yield self._counter("rows", "Rows of all forward passes", work.num_rows)
        yield self._counter("busy_seconds", "Time in forward passes; its rate is the busy share", work.busy_ns / 1e9)
        yield self._counter(
            "bubble_seconds",
            "Time between two forward passes in which sessions waited for a caller",
            work.bubble_ns / 1e9,
        )
        yield self._counter("calls", "Calls that got their first rows", work.num_started)
        yield self._counter("queue_seconds", "Time that these calls waited for them", work.queue_ns / 1e9)
        yield self._gauge("calls_running", "Calls at work or waiting for their rows", work.num_running)
        yield self._gauge("calls_waiting", "Calls that have had no row yet", work.num_waiting)
        yield self._gauge("sessions", "Sessions", len(table.sessions))
        yield self._gauge("kv_used_ratio", "Share of KV blocks in use", table.pool.num_used / table.pool.num_blocks)

    def _counter(self, name: str, text: str, value: float) -> Metric:
        return CounterMetricFamily(f"{self._prefix}_{name}", text, value)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(f"{self._prefix}_{name}", text, value)
