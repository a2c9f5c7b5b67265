"""What a node says of its partitions and their queues."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from cluster.membership.membership import MembershipStatistics
from cluster.upkeep.keeper import QueueCount, UpkeepCounters
from nodes.upkeep_metrics import UpkeepCollector

NODE = MembershipStatistics(
    incarnation="a~1",
    acting=True,
    live=3,
    held=(0, 1),
    renewals=9,
    failed_renewals=0,
    fenced=2,
    burials_known=0,
    partitions_acquired=5,
    partitions_lost=1,
    partitions_released=0,
    lease_renewals_failed=4,
    housekeeping_failures=0,
)


def test_tasks_are_counted_by_kind_over_the_partitions_held() -> None:
    upkeep = UpkeepCounters()
    upkeep.counts[0] = {"w:ns:q::t": QueueCount(2, 1), "s:ns:Flow::step": QueueCount(5, 0)}
    upkeep.counts[1] = {"w:ns:q::t": QueueCount(3, 4), "t:ns:worker::step": QueueCount(1, 1)}
    registry = CollectorRegistry()
    registry.register(UpkeepCollector(16, lambda: NODE, upkeep))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"headrace_{name}", labels)

    assert [value("tasks_queued", kind=kind) for kind in ("workflow", "activity", "step")] == [5, 0, 6]
    assert [value("tasks_leased", kind=kind) for kind in ("workflow", "activity", "step")] == [5, 0, 1]
    assert (value("partitions"), value("nodes_live"), value("node_acting")) == (16, 3, 1)
    assert (value("node_fenced_total"), value("lease_renewals_failed_total")) == (2, 4)
