"""Self-fencing counts from when a renewal was sent (E2, E3)."""

from __future__ import annotations

import time

import pytest

from cluster.membership.fence import Fence, boottime
from cluster.membership.partitions import fair_share
from cluster.membership.timing import Timing


def test_is_open_for_its_span_after_the_renewal_was_sent() -> None:
    now = [100.0]
    fence = Fence(6.0, lambda: now[0])
    assert not fence.is_open()
    fence.renewed(sent=98.0)
    assert fence.is_open()
    now[0] = 103.999
    assert fence.is_open()
    now[0] = 104.0
    assert not fence.is_open()


def test_a_late_reply_does_not_shorten_it() -> None:
    fence = Fence(6.0, lambda: 104.0)
    fence.renewed(sent=100.0)
    fence.renewed(sent=90.0)
    assert fence.is_open()


def test_stays_closed_once_dropped() -> None:
    fence = Fence(6.0, lambda: 0.0)
    fence.renewed(sent=0.0)
    fence.drop()
    fence.renewed(sent=0.0)
    assert not fence.is_open()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no such clock here")
def test_the_clock_runs_through_suspends() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_default_times_keep_the_promises() -> None:
    timing = Timing()
    assert timing.session_ttl + timing.patience <= 10, "the dead are noticed within ten seconds"
    assert timing.lease_ttl < 4, "partitions are kept by others within four seconds"
    assert timing.quiet < timing.lease_ttl, "a silent node loses its share before its leases end"
    assert timing.patience < timing.suspicion_void


@pytest.mark.parametrize(
    ("partitions", "nodes", "share"), [(16, 1, 16), (16, 3, 6), (16, 16, 1), (16, 40, 1), (5, 0, 5)]
)
def test_fair_share(partitions: int, nodes: int, share: int) -> None:
    assert fair_share(partitions, nodes) == share
