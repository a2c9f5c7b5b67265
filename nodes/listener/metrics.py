"""What the worker listener shows of itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nodes.listener.listener import WorkerListener


class ListenerCollector(Collector):
    """Turns the listener's statistics into samples at scrape time."""

    def __init__(self, listener: WorkerListener) -> None:
        self._listener = listener

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        statistics = self._listener.statistics()
        yield GaugeMetricFamily(
            "headrace_worker_connections", "Open connections of the worker listener", statistics.connections
        )
        yield CounterMetricFamily(
            "headrace_worker_connections_refused",
            "Connections turned away because the worker listener had as many as it may",
            statistics.refused,
        )
