"""Notices that the cluster a node joined is gone: the store was emptied, or is another one now.

The number of partitions decides where everything lies, and each node knows it from the start only. A
node that went on over an emptied store could write by one number while another, started since, writes by
a second one; and it would tell clients that their namespaces do not exist. So it ends instead. Started
again, it finds what was restored meanwhile, or begins a new cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from cluster.bootstrap import ClusterRecord
from cluster.errors import ClusterGone, StoreError
from cluster.membership.bell import Bell

if TYPE_CHECKING:
    from cluster.store.store import Store

LOOK_SECONDS: Final = 2.0
"""How often the record is looked at; Redis tells nobody of a key that went with all others."""

_log = structlog.get_logger(__name__)


async def watch_record(store: Store, record: ClusterRecord, every: float = LOOK_SECONDS) -> None:
    """Look at the cluster record every ``every`` seconds, and as soon as Redis is back after a break.

    Never returns. Raises ClusterGone once the store holds another record than ``record``, or none.
    """
    bell = Bell()
    store.on_reconnect(bell.ring)
    while True:
        await bell.wait(every)
        try:
            found = await store.call(
                "HMGET", store.keys.cluster(), "partitions", "created_at", idempotent=True, urgent=True
            )
        except StoreError:
            continue  # who needs the store finds out, and says so
        if found == [b"%d" % record.partitions, b"%d" % record.created_at_ms]:
            continue
        _log.error("cluster_gone", prefix=store.keys.prefix, emptied=found == [None, None])
        what = "is gone" if found == [None, None] else "is another one"
        raise ClusterGone(
            f"the record of the cluster {store.keys.prefix!r} {what}: Redis lost its data or was replaced; "
            "restore the data and start the nodes, or start them to begin anew"
        )
