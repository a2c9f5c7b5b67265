"""Lost replies, restarts, full queues: what callers are told, and how often Redis executed (A1)."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from cluster.errors import OutcomeUnknown, StoreError, StoreFull, StoreRefused, StoreUnavailable
from cluster.store import pipe as pipe_module
from cluster.store import store as store_module
from cluster.store.lane import BATCH_COMMANDS
from cluster.store.scripts import assemble
from cluster.store.store import Store, open_store
from cluster.store.transaction import Transaction
from tests.conftest import SharedServers
from tests.faults import FaultProxy, open_proxy
from tests.servers import KINDS, Server, run_server
from tests.waiting import PATIENCE, eventually


@pytest.fixture(params=KINDS)
def upstream(request: pytest.FixtureRequest, shared_servers: SharedServers) -> Server:
    return shared_servers.get(request.param)


@pytest.fixture
async def proxy(upstream: Server) -> AsyncIterator[FaultProxy]:
    async with open_proxy(upstream.address) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server this test may kill; it keeps its data over a restart."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with run_server(request.param, tmp_path, *options) as server:
        yield server


async def load_commit_script(store: Store) -> None:
    """So that a test loses the reply of a commit, not a NOSCRIPT."""
    tx = Transaction(0, frees=True)
    tx.redis("DEL", store.keys.touch(0))
    await store.commit(tx)


async def test_a_lost_reply_is_reported_and_executed_once(
    proxy: FaultProxy, upstream: Server, prefix: str
) -> None:
    async with open_store(proxy.url) as store:
        proxy.lose_reply_to = b"INCR"
        with pytest.raises(OutcomeUnknown):
            await store.call("INCR", f"{prefix}:n")
        assert await store.call("GET", f"{prefix}:n") == b"1"
        assert store.statistics().pipe.ambiguous == 1
        assert store.statistics().pipe.connects == 2
    with upstream.client() as client:
        assert client.get(f"{prefix}:n") == b"1"


async def test_an_idempotent_command_is_sent_again(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url) as store:
        proxy.lose_reply_to = b"INCR"
        assert await store.call("INCR", f"{prefix}:n", idempotent=True) == 2


async def test_a_lost_commit_is_asked_again_and_applied_once(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url, prefix=prefix) as store:
        await load_commit_script(store)
        run = store.keys.run(0, "run")
        tx = Transaction(0, ring=run, request_id="rid")
        tx.expect_absent(run)
        tx.redis("HINCRBY", run, "count", 1)
        proxy.lose_reply_to = b"HINCRBY"
        assert await store.commit(tx) is False
        assert await store.call("HGET", run, "count") == b"1"
        assert store.statistics().commits_asked_again == 1


async def test_a_lost_commit_without_request_id_is_unknown(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url, prefix=prefix) as store:
        await load_commit_script(store)
        run = store.keys.run(0, "run")
        tx = Transaction(0)
        tx.redis("HINCRBY", run, "count", 1)
        proxy.lose_reply_to = b"HINCRBY"
        with pytest.raises(OutcomeUnknown):
            await store.commit(tx)
        assert await store.call("HGET", run, "count") == b"1"


async def test_replies_before_the_break_count(proxy: FaultProxy, prefix: str) -> None:
    results: dict[int, int | StoreError] = {}

    async with open_store(proxy.url) as store:

        async def increment(index: int) -> None:
            try:
                results[index] = await store.call("INCRBY", f"{prefix}:{index}", index)
            except StoreError as error:
                results[index] = error

        await store.call("PING")
        proxy.reply_budget = 25
        async with trio.open_nursery() as nursery:
            for index in range(100, 150):
                nursery.start_soon(increment, index)
        known = {index: result for index, result in results.items() if isinstance(result, int)}
        assert known
        assert all(index == result for index, result in known.items())
        lost = [result for result in results.values() if not isinstance(result, int)]
        assert lost
        assert all(isinstance(error, OutcomeUnknown) for error in lost)
        for index in results:
            assert await store.call("GET", f"{prefix}:{index}") == str(index).encode()


async def test_a_closed_idle_connection_loses_nothing(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url) as store:
        await store.call("INCR", f"{prefix}:n")
        await proxy.cut()
        assert await store.call("INCR", f"{prefix}:n") == 2
        assert store.statistics().pipe.ambiguous == 0


async def test_a_half_closed_connection_loses_nothing(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url) as store:
        await store.call("INCR", f"{prefix}:n")
        await proxy.half_close()
        assert await store.call("INCR", f"{prefix}:n") == 2


async def test_a_black_hole_is_noticed(
    proxy: FaultProxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_module, "REPLY_TIMEOUT", 0.2)
    async with open_store(proxy.url, call_timeout=0.5) as store:
        proxy.black_hole()
        with trio.fail_after(PATIENCE), pytest.raises(OutcomeUnknown):
            await store.call("INCR", f"{prefix}:n")
        with trio.fail_after(PATIENCE), pytest.raises(StoreUnavailable):
            await store.call("INCR", f"{prefix}:n")
        await proxy.cut()
        proxy.black_hole(False)
        await eventually(lambda: store.call("PING", idempotent=True))
        assert await store.call("GET", f"{prefix}:n") in (b"1", None)


async def test_a_server_that_takes_nothing_is_noticed(
    proxy: FaultProxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the network holds cannot be sent, so it is not the reply that is waited for."""
    monkeypatch.setattr(pipe_module, "REPLY_TIMEOUT", 0.2)
    async with open_store(proxy.url, call_timeout=0.5) as store:
        proxy.black_hole()
        with trio.fail_after(PATIENCE), pytest.raises(OutcomeUnknown, match="no answer in time"):
            await store.call("SET", f"{prefix}:n", b"x" * 64_000_000)
        await proxy.cut()


async def test_a_restart_is_waited_for(own_server: Server, prefix: str) -> None:
    async with open_store(own_server.url) as store:
        await store.call("SET", f"{prefix}:n", 1)
        first = store.generation
        own_server.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.call, "INCR", f"{prefix}:n")
            await eventually(lambda: store.statistics().pipe.waiting == 1)
            await trio.to_thread.run_sync(own_server.start)
        assert await store.call("GET", f"{prefix}:n") == b"2"
        assert store.generation != first
        assert store.statistics().pipe.ambiguous == 0


async def test_redis_away_is_unavailable_at_the_deadline(own_server: Server, prefix: str) -> None:
    async with open_store(own_server.url, call_timeout=0.3) as store:
        own_server.kill()
        with trio.fail_after(PATIENCE), pytest.raises(StoreUnavailable, match="cannot reach redis://127"):
            await store.call("INCR", f"{prefix}:n")


async def test_no_server_at_start(prefix: str) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(StoreUnavailable):
        async with open_store("redis://127.0.0.1:1/0", call_timeout=0.3):
            pass


async def test_a_script_flush_costs_one_load(valkey_url: str, prefix: str) -> None:
    async with open_store(valkey_url, prefix=prefix) as store:
        tx = Transaction(0)
        tx.redis("SET", store.keys.touch(0), "x")
        await store.commit(tx)
        await store.call("SCRIPT", "FLUSH")
        before = store.statistics().pipe.scripts_loaded

        async def one(partition: int) -> None:
            tx = Transaction(partition)
            tx.redis("INCR", store.keys.touch(partition))
            assert await store.commit(tx)

        async with trio.open_nursery() as nursery:
            for partition in range(1, 16):
                nursery.start_soon(one, partition)
        assert store.statistics().pipe.scripts_loaded == before + 1
        for partition in range(1, 16):
            assert await store.call("GET", store.keys.touch(partition)) in (b"1", b"2")


async def test_batches_are_bounded(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url) as store:
        before = store.statistics().pipe
        async with trio.open_nursery() as nursery:
            for _ in range(5 * BATCH_COMMANDS):
                nursery.start_soon(store.call, "INCR", f"{prefix}:n")
        after = store.statistics().pipe
        assert after.commands - before.commands >= 5 * BATCH_COMMANDS
        assert after.batches - before.batches >= 5
        big = b"x" * 600_000
        async with trio.open_nursery() as nursery:
            for index in range(8):
                nursery.start_soon(store.call, "SET", f"{prefix}:{index}", big)
        assert store.statistics().pipe.batches - after.batches >= 4


async def test_too_many_waiting_commands_fail_fast(
    proxy: FaultProxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_module, "MAX_WAITING", 10)
    async with open_store(proxy.url) as store:
        proxy.black_hole()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(store.call, "GET", f"{prefix}:n")
            await eventually(lambda: store.statistics().pipe.waiting == 10)
            with trio.fail_after(PATIENCE), pytest.raises(StoreUnavailable, match="already wait"):
                await store.call("GET", f"{prefix}:n")
            proxy.black_hole(False)
        assert store.statistics().pipe.refused_at_limit == 1


async def test_cancelling_callers_leaves_the_connection_clean(proxy: FaultProxy, prefix: str) -> None:
    async with open_store(proxy.url) as store:
        proxy.black_hole()
        async with trio.open_nursery() as nursery:
            for index in range(50):
                nursery.start_soon(store.call, "SET", f"{prefix}:{index}", "cancelled")
            await eventually(lambda: store.statistics().pipe.waiting == 50)
            nursery.cancel_scope.cancel()
        proxy.black_hole(False)
        for index in range(50):
            assert await store.call("INCR", f"{prefix}:n") == index + 1
        assert store.statistics().pipe.connects == 1
        assert store.statistics().pipe.waiting == 0


async def test_a_cancelled_caller_sends_nothing(valkey_url: str, prefix: str) -> None:
    async with open_store(valkey_url) as store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.call("SET", f"{prefix}:n", 1)
        assert await store.call("GET", f"{prefix}:n") is None


async def test_urgent_commands_pass_a_stuck_lane(valkey_url: str, prefix: str) -> None:
    async with open_store(valkey_url) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.call, "BLPOP", f"{prefix}:list", 5)
        await eventually(lambda: store.statistics().pipe.waiting == 1)
        assert await store.call("RPUSH", f"{prefix}:list", "x", urgent=True) == 1


async def test_a_busy_server_is_waited_for(own_server: Server, prefix: str) -> None:
    async with open_store(own_server.url) as store:
        await store.call("CONFIG", "SET", "busy-reply-threshold", 10)
        async with trio.open_nursery() as nursery:
            with own_server.client() as client:
                pool = client.connection_pool.get_connection()
                pool.send_command("EVAL", "while true do end", 0)
                nursery.start_soon(store.call, "INCR", f"{prefix}:n")
                await eventually(lambda: store.statistics().pipe.resent > 0)
                with own_server.client() as killer:
                    killer.script_kill()
        assert await store.call("GET", f"{prefix}:n") == b"1"


async def test_out_of_memory_has_its_own_error(own_server: Server, prefix: str) -> None:
    async with open_store(own_server.url, prefix=prefix) as store:
        tx = Transaction(0)
        tx.redis("SET", store.keys.touch(0), "x" * 100)
        await store.commit(tx)
        await store.call("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull):
            await store.call("SET", f"{prefix}:n", 1)
        with pytest.raises(StoreFull):
            await store.commit(tx)
        freeing = Transaction(0, frees=True)
        freeing.redis("DEL", store.keys.touch(0))
        assert await store.commit(freeing)


async def test_a_replica_is_not_used(own_server: Server, tmp_path: Path) -> None:
    replicaof = ("--replicaof", f"127.0.0.1 {own_server.port}")
    (tmp_path / "replica").mkdir()
    with (
        run_server(own_server.kind, tmp_path / "replica", *replicaof) as replica,
        pytest.raises(StoreUnavailable, match="is a replica"),
    ):
        async with open_store(replica.url, call_timeout=0.3):
            pass


async def test_a_stopped_server_closes_quickly(own_server: Server, prefix: str) -> None:
    with trio.fail_after(PATIENCE):
        async with open_store(own_server.url) as store, trio.open_nursery() as nursery:
            own_server.signal(signal.SIGSTOP)
            nursery.start_soon(store.call, "INCR", f"{prefix}:n")
            await eventually(lambda: store.statistics().pipe.waiting == 1)
            nursery.cancel_scope.cancel()


async def test_a_closed_store_refuses(valkey_url: str) -> None:
    async with open_store(valkey_url) as store:
        pass
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.call("PING")


async def test_a_script_that_does_not_compile_is_refused(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "load_script", lambda name: assemble(name, "this is not lua", {}))
    async with open_store(valkey_url) as store:
        with trio.fail_after(PATIENCE), pytest.raises(StoreRefused, match="compil"):
            await store.run("broken", ["k"], [])
