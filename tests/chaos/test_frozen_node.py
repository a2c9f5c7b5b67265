"""A node that stands still past its TTLs and comes back as if nothing had happened."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import redis
import trio

from cluster.errors import Fenced
from cluster.queues import claims
from cluster.store.keys import QueueName
from cluster.store.store import open_store
from tests.chaos.load import check_attempts, check_histories, start_all, wait_all
from tests.cluster_processes import make_cluster, worker_ready
from tests.servers import run_server
from tests.waiting import eventually
from tests.wire import metric, open_wire


def _sessions(client: redis.Redis, family: str, node: str) -> list[str]:
    """Incarnations of a node among the living or the dead."""
    found = client.zscan_iter(f"hr1:{{sess}}:{family}", match=f"{node}~*")
    return [name.decode() for name, _ in found]


@pytest.mark.timeout(240)
async def test_a_frozen_node_is_replaced_and_rejoins(tmp_path: Path, short_leases: dict[str, str]) -> None:
    ids = [f"w{number}" for number in range(30)]
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(3, server.url, tmp_path, short_leases) as cluster,
        server.client() as client,
    ):
        await cluster.start()
        frozen, second, third = cluster.nodes
        for node in (second, third):
            await worker_ready(cluster.start_worker("chaos", url=node.url, poll="2"))
        (old,) = _sessions(client, "alive", frozen.name)
        held = next(
            lease
            for key in client.scan_iter("hr1:{p*}:lease")
            if (lease := client.hgetall(key))[b"owner"].decode() == old
        )
        async with open_wire(second.url) as wire, open_wire(third.url) as other:
            await start_all(wire, "chaos", ids[:10], 0.05)
            frozen.signal(signal.SIGSTOP)
            await start_all(wire, "chaos", ids[10:], 0.05)

            async def all_kept() -> bool:
                owned = [await metric(one, "headrace_partitions_owned") for one in (wire, other)]
                return sum(owned) == 16

            await eventually(all_kept, 15)
            await eventually(lambda: old in _sessions(client, "dead", frozen.name), 30)
            await wait_all(wire, ids, within=40)
            frozen.signal(signal.SIGCONT)
            await eventually(lambda: _sessions(client, "alive", frozen.name) not in ([], [old]), 20)
            assert old in _sessions(client, "dead", frozen.name)
            await frozen.ready()

        async with open_store(server.url) as store:
            with pytest.raises(Fenced):
                await claims.claim(store, old, [0], [QueueName("w", "default", "chaos")], [], page_size=1)
            base = store.keys.base(0)
            reply = await store.run(
                "compact", [store.keys.touch(0)], [base, "hr1", old, held[b"nonce"], "0", 1, 0, 1]
            )
            assert reply == b"FENCED"

        # The node serves again, also its own polls.
        await worker_ready(cluster.start_worker("again", url=frozen.url, poll="2"))
        async with open_wire(frozen.url) as wire:
            await start_all(wire, "again", ["after"])
            await wait_all(wire, ["after"], within=20)
            await check_histories(wire, ids)

            async def shares() -> bool:
                return await metric(wire, "headrace_partitions_owned") > 0

            await eventually(shares, 20)
        check_attempts(tmp_path / "chaos.events", 3 * len(ids))
        assert "Traceback" not in frozen.log, frozen.log


@pytest.mark.timeout(240)
async def test_a_frozen_redis_buries_nobody(tmp_path: Path) -> None:
    """Longer than every TTL: afterwards the same sessions live on."""
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(2, server.url, tmp_path) as cluster,
        server.client() as client,
    ):
        await cluster.start()
        before = sorted(client.zrange("hr1:{sess}:alive", 0, -1))
        server.signal(signal.SIGSTOP)
        await trio.sleep(9)
        server.signal(signal.SIGCONT)
        async with open_wire(cluster.nodes[0].url) as wire:
            for node in cluster.nodes:
                await node.ready()
            await wire.start("t", "q", "after")

            async def all_kept() -> bool:
                owned = 0.0
                for node in cluster.nodes:
                    async with open_wire(node.url) as one:
                        owned += await metric(one, "headrace_partitions_owned")
                return owned == 16

            await eventually(all_kept, 20)
        assert sorted(client.zrange("hr1:{sess}:alive", 0, -1)) == before
        assert client.zcard("hr1:{sess}:dead") == 0
