"""Prometheus metrics of the stream plane (pull-dispatch 2.12): backlog, streams, upkeep.

Alert on entries and oldest age together (R93). The gauges cover the partitions this node holds: sum
entries, and take the maximum of the age, over all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cluster.clock import Clock
from cluster.upkeep.keeper import UpkeepCounters
from nodes.streams.hub import StreamHub


class StreamCollector(Collector):
    """Turns what hub, backlog and keeper know into samples at scrape time."""

    def __init__(self, hub: StreamHub, upkeep: UpkeepCounters, clock: Clock, prefix: str) -> None:
        self._hub = hub
        self._upkeep = upkeep
        self._clock = clock
        self._prefix = prefix

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        streams, upkeep = self._hub, self._upkeep
        backlog, hub, slots = streams.backlog, streams.statistics(), streams.matcher.statistics()
        oldest_ms, age = backlog.oldest_ms, 0.0
        if oldest_ms is not None:
            age = max(0, self._clock.now_ms() - oldest_ms) / 1000
        for name, text, value in (
            ("step_task_queue_entries", "Queued steps in the partitions this node holds", backlog.entries),
            ("step_task_queue_oldest_age_seconds", "Age of the oldest of them; 0 when none waits", age),
            (
                "matching_queued_tasks",
                "RPCs and steps that wait for a slot outside the queues",
                slots.waiting_rpcs + backlog.sticky,
            ),
            ("stream_connections", "Connections of stream workers", hub.connections),
            ("streams", "Registered slot streams", hub.streams),
            ("streams_free", "Slot streams with nothing to do", slots.free),
            ("stream_workers", "Workers with streams", hub.workers),
            ("stream_attempts_running", "Step attempts running on streams of this node", hub.running),
        ):
            yield GaugeMetricFamily(f"{self._prefix}_{name}", text, value)
        unserved = GaugeMetricFamily(
            f"{self._prefix}_matching_unserved_task_queues",
            "Step queues with work that no connected worker can run",
            labels=("reason",),
        )
        for reason, count in backlog.unserved().items():
            unserved.add_metric((reason,), count)
        yield unserved
        for name, text, value in (
            (
                "matching_heads_restored_refs",
                "Heads the resync had to restore; must stay 0",
                upkeep.heads_restored,
            ),
            (
                "matching_heads_incomplete_scans",
                "Resyncs that did not finish",
                upkeep.heads_incomplete,
            ),
            (
                "step_task_queue_incomplete_seeks",
                "Searches for a step that met too many dead entries",
                slots.given_up_searches,
            ),
            ("stream_steps_claimed", "Steps handed to slots of this node", slots.tasks),
            (
                "stream_steps_handed_over",
                "Steps given to a slot by the commit that made them ready",
                slots.handed_over,
            ),
            ("stream_claims", "Claims sent for slots of this node", slots.claims),
            ("stream_orphans_failed", "Attempts failed because their node died", streams.orphanage.failed),
            ("stream_claims_repaired", "Attempts returned because a claim's reply was lost", hub.repaired),
        ):
            yield CounterMetricFamily(f"{self._prefix}_{name}", text, value)
        declines = CounterMetricFamily(
            f"{self._prefix}_stream_steps_declined",
            "Steps that workers gave back unrun",
            labels=("reason",),
        )
        declines.add_metric(("legacy_no_capacity",), hub.capacity_declines)
        yield declines
