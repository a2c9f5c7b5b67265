"""A server whose settings would not keep what was promised (A2): no writes, no hand-outs, but reads."""

from __future__ import annotations

import pytest

from cluster.errors import DurabilityLost
from cluster.store.transaction import Transaction
from tests.cluster.queues.lab import Lab


async def test_doubt_stops_commits_and_hand_outs_until_it_is_over(lab: Lab) -> None:
    task = await lab.enqueue()
    lab.store.doubt("set appendfsync always")
    before = await lab.audit()
    for refused in (lab.claim, lab.enqueue):
        with pytest.raises(DurabilityLost, match="appendfsync"):
            await refused()
    tx = Transaction(0, frees=True)
    tx.drop(task)
    with pytest.raises(DurabilityLost):
        await lab.store.commit_many([tx])
    assert await lab.audit() == before

    lab.store.doubt(None)
    claim = await lab.claim()
    assert claim is not None
    assert claim.task_id == task
