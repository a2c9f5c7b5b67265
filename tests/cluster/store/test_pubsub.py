"""Pub/sub: confirmed subscriptions, reconnects that are told, connections that lead nowhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from cluster.errors import StoreUnavailable
from cluster.store import pubsub as pubsub_module
from cluster.store.pubsub import open_pubsub
from cluster.store.store import Store, open_store
from cluster.store.task_connection import TaskConnection
from tests.conftest import SharedServers
from tests.faults import FaultProxy, open_proxy
from tests.servers import Server, run_server
from tests.waiting import PATIENCE, eventually


class Inbox:
    """Collects what handlers get."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._send, self.messages = trio.open_memory_channel[tuple[str, bytes]](1000)
        self.reconnects = 0
        self.reconnected = trio.Event()
        store.on_message(prefix, self._on_message)
        store.on_reconnect(self._on_reconnect)

    def _on_message(self, channel: str, message: bytes) -> None:
        self._send.send_nowait((channel, message))

    def _on_reconnect(self) -> None:
        self.reconnects += 1
        self.reconnected.set()


@pytest.fixture
async def proxy(shared_servers: SharedServers) -> AsyncIterator[FaultProxy]:
    async with open_proxy(shared_servers.get("valkey").address) as opened:
        yield opened


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with run_server("valkey", tmp_path) as server:
        yield server


async def test_a_message_after_subscribe_arrives(store: Store, prefix: str) -> None:
    inbox = Inbox(store, prefix)
    for index in range(20):
        channel = f"{prefix}:{index}"
        await store.subscribe(channel)
        assert await store.call("PUBLISH", channel, "hello") == 1
        assert await inbox.messages.receive() == (channel, b"hello")


async def test_messages_go_to_handlers_by_prefix(store: Store, prefix: str) -> None:
    a, b = Inbox(store, f"{prefix}:a"), Inbox(store, f"{prefix}:b")
    await store.subscribe(f"{prefix}:a1", f"{prefix}:b1")
    await store.call("PUBLISH", f"{prefix}:a1", 1)
    await store.call("PUBLISH", f"{prefix}:b1", 2)
    assert await a.messages.receive() == (f"{prefix}:a1", b"1")
    assert await b.messages.receive() == (f"{prefix}:b1", b"2")


async def test_subscriptions_are_counted(store: Store, prefix: str) -> None:
    channel = f"{prefix}:c"
    await store.subscribe(channel)
    await store.subscribe(channel)
    await store.unsubscribe(channel)
    assert await store.call("PUBLISH", channel, "x") == 1
    await store.unsubscribe(channel)
    await store.subscribe(f"{prefix}:other")
    assert await store.call("PUBLISH", channel, "x") == 0


async def test_subscribing_anew_at_once_leaves_no_gap(store: Store, prefix: str) -> None:
    channel = f"{prefix}:c"
    for _ in range(200):
        await store.subscribe(channel)
        assert await store.call("PUBLISH", channel, "x") == 1
        await store.unsubscribe(channel)


async def test_a_failing_handler_harms_nobody(store: Store, prefix: str) -> None:
    def fail(channel: str, message: bytes) -> None:
        raise RuntimeError("handler")

    store.on_message(prefix, fail)
    inbox = Inbox(store, prefix)
    await store.subscribe(f"{prefix}:c")
    await store.call("PUBLISH", f"{prefix}:c", "x")
    assert await inbox.messages.receive() == (f"{prefix}:c", b"x")


async def test_a_reconnect_subscribes_again_before_it_is_told(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url) as store:
        inbox = Inbox(store, prefix)
        await store.subscribe(f"{prefix}:c")
        await proxy.cut()
        with trio.fail_after(PATIENCE):
            await inbox.reconnected.wait()
        assert await store.call("PUBLISH", f"{prefix}:c", "after", idempotent=True) == 1
        assert await inbox.messages.receive() == (f"{prefix}:c", b"after")
        assert inbox.reconnects == 1


async def test_a_server_restart_is_a_reconnect(own_server: Server, prefix: str) -> None:
    async with open_store(own_server.url) as store:
        inbox = Inbox(store, prefix)
        await store.subscribe(f"{prefix}:c")
        own_server.kill()
        await trio.to_thread.run_sync(own_server.start)
        with trio.fail_after(PATIENCE):
            await inbox.reconnected.wait()
        assert await store.call("PUBLISH", f"{prefix}:c", "after") == 1


async def test_a_black_hole_is_noticed(
    proxy: FaultProxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub_module, "PING_AFTER", 0.1)
    monkeypatch.setattr(pubsub_module, "DEAD_AFTER", 0.3)
    async with open_store(proxy.url) as store:
        inbox = Inbox(store, prefix)
        await store.subscribe(f"{prefix}:c")
        sent = proxy.replies
        await eventually(lambda: proxy.replies >= sent + 4)  # several pings are answered
        assert inbox.reconnects == 0
        proxy.black_hole()
        await eventually(lambda: store.statistics().pubsub.lost_connections > 0)
        proxy.black_hole(False)
        with trio.fail_after(PATIENCE):
            await inbox.reconnected.wait()


@pytest.mark.parametrize("first", [True, False])
async def test_a_server_that_takes_nothing_is_noticed(
    valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Of what is wanted when the connection is made, or of what is wanted later."""
    monkeypatch.setattr(pubsub_module, "PING_AFTER", 0.1)
    monkeypatch.setattr(pubsub_module, "DEAD_AFTER", 0.3)
    monkeypatch.setattr(pubsub_module, "REPLY_TIMEOUT", 0.3)
    full = trio.Event()

    class Full(TaskConnection):
        async def send(self, data: bytes) -> None:
            if full.is_set():
                stuck.set()
                await trio.sleep_forever()
            await super().send(data)

    monkeypatch.setattr(pubsub_module, "TaskConnection", Full)
    stuck = trio.Event()
    async with open_pubsub(valkey_url) as pubsub:
        await pubsub.subscribe(f"{prefix}:c")
        full.set()
        if first:  # what the next connection has to say first cannot be sent either
            await eventually(lambda: pubsub.statistics().lost_connections > 0)
            stuck = trio.Event()
        await stuck.wait()
        full = trio.Event()
        await eventually(lambda: pubsub.statistics().connects > 1)
        await pubsub.subscribe(f"{prefix}:d")


async def test_an_internal_error_is_a_reconnect(
    valkey_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(valkey_url) as store:
        inbox = Inbox(store, prefix)
        await store.subscribe(f"{prefix}:c")
        with monkeypatch.context() as patch:
            patch.setattr(pubsub_module, "MESSAGES_A_BATCH", None)
            await store.call("PUBLISH", f"{prefix}:c", "lost")
            await eventually(lambda: store.statistics().pubsub.lost_connections > 0)
        with trio.fail_after(PATIENCE):
            await inbox.reconnected.wait()
        assert await store.call("PUBLISH", f"{prefix}:c", "after") == 1
        assert await inbox.messages.receive() == (f"{prefix}:c", b"after")


async def test_subscribe_gives_up_when_redis_stays_away(
    own_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub_module, "SUBSCRIBE_TIMEOUT", 0.2)
    async with open_store(own_server.url) as store:
        own_server.kill()
        with pytest.raises(StoreUnavailable, match="subscription"):
            await store.subscribe(f"{prefix}:c")
        assert store.statistics().pubsub.channels == 0


async def test_a_flood_arrives_complete_and_in_order(store: Store, prefix: str) -> None:
    received: list[int] = []
    done = trio.Event()

    def on_message(channel: str, message: bytes) -> None:
        received.append(int(message))
        if len(received) == 5000:
            done.set()

    store.on_message(prefix, on_message)
    await store.subscribe(f"{prefix}:c")
    flood = "for i = 1, 5000 do redis.call('PUBLISH', ARGV[1], i) end"
    await store.call("EVAL", flood, 0, f"{prefix}:c")
    with trio.fail_after(PATIENCE):
        await done.wait()
    assert received == list(range(1, 5001))
