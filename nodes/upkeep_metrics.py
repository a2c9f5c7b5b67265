"""Prometheus metrics of a node's place in its cluster: membership, partitions, what their queues hold.

The gauges of tasks cover the partitions this node holds, as of their last housekeeping: sum them over
all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cluster.ids import TaskKind
from cluster.membership.membership import MembershipStatistics
from cluster.queues.slot_groups import STICKY
from cluster.upkeep.keeper import QueueCount, UpkeepCounters

KINDS: Final[dict[str, str]] = {
    TaskKind.WORKFLOW: "workflow",
    TaskKind.ACTIVITY: "activity",
    TaskKind.STEP: "step",
    STICKY: "step",
}
"""What waits in a queue, by the first letter of its name."""


class UpkeepCollector(Collector):
    """Turns what membership and keeper know into samples at scrape time."""

    def __init__(
        self, partitions: int, membership: Callable[[], MembershipStatistics], upkeep: UpkeepCounters
    ) -> None:
        """``partitions`` is how many the cluster has."""
        self._partitions = partitions
        self._membership = membership
        self._upkeep = upkeep

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        node, upkeep = self._membership(), self._upkeep
        for name, text, value in (
            ("partitions", "Partitions of the cluster, whoever holds them", self._partitions),
            ("node_acting", "1 while this node may act, 0 while it is fenced or joining", int(node.acting)),
            ("nodes_live", "Live nodes this node knows of, itself included", node.live),
        ):
            yield GaugeMetricFamily(f"headrace_{name}", text, value)
        queued = GaugeMetricFamily(
            "headrace_tasks_queued",
            "Tasks nobody took yet, in partitions held here",
            labels=("kind",),
        )
        leased = GaugeMetricFamily(
            "headrace_tasks_leased", "Tasks handed out, in partitions held here", labels=("kind",)
        )
        for kind, (waiting, running) in _by_kind(upkeep.counts.values()).items():
            queued.add_metric((kind,), waiting)
            leased.add_metric((kind,), running)
        yield from (queued, leased)
        for name, text, value in (
            ("partitions_acquired", "Partitions this node took", node.partitions_acquired),
            (
                "partitions_lost",
                "Partitions whose lease this node lost",
                node.partitions_lost,
            ),
            ("lease_renewals_failed", "Renewals of partition leases that failed", node.lease_renewals_failed),
            ("node_fenced", "Times this node found itself fenced and joined again", node.fenced),
            ("housekeeping_failures", "Housekeeping that ended with an error", node.housekeeping_failures),
            ("upkeep_overdue", "Overdue work of other nodes' partitions done here", upkeep.overdue),
            ("upkeep_dead_entries", "Queue entries removed because their task was gone", upkeep.dead_entries),
            ("upkeep_queues_removed", "Empty queues removed", upkeep.queues_removed),
            (
                "upkeep_leases_mended",
                "Leases whose end was not where whoever ends leases looks; must stay 0",
                upkeep.leases_mended,
            ),
        ):
            yield CounterMetricFamily(f"headrace_{name}", text, value)


def _by_kind(partitions: Iterable[dict[str, QueueCount]]) -> dict[str, tuple[int, int]]:
    """Tasks queued and leased, by kind."""
    sums = dict.fromkeys(KINDS.values(), (0, 0))
    for queues in list(partitions):
        for queue, count in queues.items():
            kind = KINDS[queue[0]]
            queued, leased = sums[kind]
            sums[kind] = queued + count.undelivered, leased + count.leased
    return sums
