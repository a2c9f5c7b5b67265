"""Who keeps which partition, as the store says it: looked at from outside, many times a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import redis
import trio

from cluster.errors import Fenced
from cluster.queues import claims
from cluster.store.keys import Keys, QueueName
from cluster.store.store import Store
from tests.chaos.record import now
from tests.servers import Server

LOOK_SECONDS: Final = 0.05
FENCED: Final = b"FENCED"


@dataclass(frozen=True, slots=True)
class Tenure:
    """Somebody's time with a partition; ``owner`` "" when it is free."""

    owner: str
    nonce: str

    @property
    def node(self) -> str:
        return self.owner.rpartition("~")[0]


@dataclass(frozen=True, slots=True)
class Change:
    """A partition got another keeper ``at`` (ns)."""

    at: int
    partition: int
    old: Tenure
    new: Tenure


@dataclass
class LeaseWatch:
    """Reads all leases of one server again and again. ``returned``: tenures that were over and came back."""

    server: Server
    keys: Keys
    held: dict[int, Tenure] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    returned: list[Change] = field(default_factory=list)
    _over: set[tuple[int, Tenure]] = field(default_factory=set)

    async def run(self) -> None:
        """Watch until cancelled."""
        with self.server.client() as client:
            while True:
                self._look(client)
                await trio.sleep(LOOK_SECONDS)

    def of(self, node: str) -> list[int]:
        """The partitions a node keeps."""
        return [partition for partition, tenure in self.held.items() if tenure.node == node]

    def _look(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=False)
        for partition in range(self.keys.partitions):
            pipe.hmget(self.keys.lease(partition), "owner", "nonce")
        at = now()
        for partition, (owner, nonce) in enumerate(pipe.execute()):
            new = Tenure((owner or b"").decode(), (nonce or b"").decode())
            old = self.held.setdefault(partition, new)
            if new == old:
                continue
            change = Change(at, partition, old, new)
            self.held[partition] = new
            self.changes.append(change)
            if (partition, new) in self._over:
                self.returned.append(change)
            if old.owner:
                self._over.add((partition, old))


async def housekeeping_refused(store: Store, change: Change) -> bool:
    """Whether a script of housekeeping under the tenure before ``change`` is refused."""
    base = store.keys.base(change.partition)
    reply = await store.run(
        "compact",
        [store.keys.touch(change.partition)],
        [base, store.keys.prefix, change.old.owner, change.old.nonce, "0", 1, 0, 1],
    )
    return bool(reply == FENCED)


async def claim_refused(store: Store, session: str, queues: Sequence[QueueName]) -> bool:
    """Whether a hand-out to a buried session is refused."""
    try:
        await claims.claim(store, session, [0], queues, [], page_size=1)
    except Fenced:
        return True
    return False
