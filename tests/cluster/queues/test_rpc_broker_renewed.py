"""A node that was buried goes by a new session, whatever the store says to it in that moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import trio
from trio.testing import MockClock

from cluster.errors import StoreUnavailable
from cluster.queues.rpc_broker import NodeRpcBroker
from cluster.queues.slots import SlotMatcher
from cluster.store.keys import Keys
from cluster.store.store import Store


@dataclass
class DeafStore:
    """Does not confirm the next ``failures`` subscriptions."""

    keys: Keys = field(default_factory=lambda: Keys("t"))
    failures: int = 0
    subscribed: list[str] = field(default_factory=list)

    def on_message(self, *_: Any) -> None: ...

    async def subscribe(self, channel: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("Redis did not confirm the subscription in time")
        self.subscribed.append(channel)


async def test_a_new_session_is_listened_to_in_the_end(autojump_clock: MockClock) -> None:
    store, sessions = DeafStore(), ["n~1"]
    broker = NodeRpcBroker(
        cast(Store, store),
        cast(SlotMatcher, None),
        session=lambda: sessions[-1],
        nodes=lambda: sessions,
        dispatch_seconds=1,
        sticky_seconds=1,
        random=Random(1),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        sessions.append("n~2")
        store.failures = 3
        broker.renewed("n~1")
        await trio.sleep(5)
        assert store.subscribed == [store.keys.rpc_channel("n~1"), store.keys.rpc_channel("n~2")]
        nursery.cancel_scope.cancel()
