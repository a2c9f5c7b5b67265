"""The stream plane on each kind of server: alone, as a Redis Cluster, and full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from cluster.errors import StoreFull
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    PARTITIONS,
    StreamLab,
    attempt,
    go_to,
    held,
    next_task,
    open_stream_lab,
)
from tests.servers import KINDS, Server, run_cluster, run_server
from tests.waiting import eventually

SOON = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}


@pytest.fixture(scope="module", params=KINDS)
def cluster_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with run_cluster(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(scope="module", params=KINDS)
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


async def live(lab: StreamLab) -> None:
    """Everything the stream plane's scripts do, on two nodes."""
    async with lab[0].worker("w1", "F", slots=2) as w1, lab[1].worker("w2", "F", slots=2) as w2:
        for number in range(8):
            await lab[number % 2].start("F", flow_id=f"f{number}")
        for _ in range(16):
            worker, task = await next_task(w1, w2)
            await worker.complete(task, go_to("b") if task["task"]["step_type"] == "a" else COMPLETE)
        await lab[0].start("F", "x")
        worker, task = await next_task(w1, w2)
        other = w2 if worker is w1 else w1
        fields = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
        await worker.send({"type": "decline", **fields, "reason": "unsupported"})
        again = await other.next("task")
        assert attempt(again) == (1, 1)
        await other.send({"type": "half_close", "slot": again["slot"]})
        back = await other.next("task")
        assert attempt(back) == (1, 2)
        await other.complete(back, COMPLETE)
        for node in lab.nodes:
            await node.hub.audit.look()


async def _buried(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", options=SOON)
        await w1.next("task")
        async with lab[1].worker("w2", "F") as w2, trio.open_nursery() as nursery:
            keys = lab[1].store.keys
            for partition in range(PARTITIONS):
                arguments: list[str | int] = [60_000, 1, lab[0].member.incarnation]
                await lab[1].store.run("bury", [keys.dead(partition)], arguments)
                nursery.start_soon(lab[1].hub.housekeep, held(partition))
            assert attempt(await w2.next("task")) == (2, 0)
            await eventually(lambda: len(lab[1].hub.backlog.partitions) == PARTITIONS)
            nursery.cancel_scope.cancel()


async def test_on_a_redis_cluster(cluster_server: Server, prefix: str) -> None:
    async with open_stream_lab(f"redis+cluster://127.0.0.1:{cluster_server.port}", prefix) as lab:
        await live(lab)
        await _buried(lab)


async def test_alone(redis_url: str, prefix: str) -> None:
    async with open_stream_lab(redis_url, prefix) as lab:
        await live(lab)
        await _buried(lab)


async def test_nothing_stays_behind(valkey_url: str, prefix: str) -> None:
    """Every key of the stream plane goes with what it is about."""
    async with open_stream_lab(valkey_url, prefix) as lab:
        await live(lab)

        async def left() -> set[str]:
            found = await lab[0].store.call("KEYS", f"{prefix}:*")
            families = {
                key.decode().removeprefix(f"{prefix}:").split("}:")[-1].split(":")[0] for key in found
            }
            return families & {"on", "wk", "wt", "ses", "no", "task", "b", "h", "timers"}

        async def clean() -> bool:
            return not await left()

        await eventually(clean)


async def test_entries_of_finished_steps_take_no_memory(valkey_url: str, prefix: str) -> None:
    """As many steps as one likes, with few in the queues: streams and pending lists do not grow."""
    async with open_stream_lab(valkey_url, prefix) as lab, lab[0].worker("w1", "F", slots=8) as w1:
        store = lab[0].store

        async def bytes_of_queues() -> int:
            total = 0
            for key in await store.call("KEYS", f"{prefix}:*:q:*"):
                assert await store.call("XLEN", key) == 0
                for group in await store.call("XINFO", "GROUPS", key):
                    fields = dict(zip(group[::2], group[1::2], strict=True))
                    assert fields[b"pending"] == 0
                total += await store.call("MEMORY", "USAGE", key)
            return total

        sizes = []
        for _ in range(4):
            for _ in range(60):
                await lab[1].start("F")
            for _ in range(60):
                await w1.complete(await w1.next("task"), COMPLETE)
            sizes.append(await bytes_of_queues())
        assert sizes[-1] <= sizes[0] * 1.1 + 1_000


async def test_a_full_store_hands_out_nothing_new_and_finishes_what_runs(
    own_server: Server, prefix: str
) -> None:
    async with (
        open_stream_lab(own_server.url, prefix) as lab,
        lab[0].worker("w1", "F") as w1,
        lab[1].worker("w2", "F") as w2,
    ):
        first = await lab[0].start("F")
        worker, task = await next_task(w1, w2)
        other = w2 if worker is w1 else w1
        await other.send({"type": "half_close", "slot": 1})
        await other.next("closed")
        await lab[0].start("F")
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                with pytest.raises(StoreFull):
                    await lab[0].start("F")
                assert (await worker.complete(task, COMPLETE))["accepted"]
                await worker.quiet(0.3)
            finally:
                client.config_set("maxmemory", 0)
        assert (await lab[0].engine.read(NAMESPACE, first)).state.status == "completed"
        await worker.next("task")
