"""Workers of the public SDK that keep histories between workflow tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from durable_workflow import Client, Worker, activity, workflow

from tests.cluster_processes import Cluster, kill, worker_ready
from tests.idle import total
from tests.sdk_client import with_client
from tests.waiting import eventually
from tests.wire import check_history, open_wire

STEPS = 20
CACHED_RUNS = 100
HITS = 'headrace_sticky_replays_total{mode="sticky_hit_expected"}'
COLD = 'headrace_sticky_replays_total{mode="forced_cold_replay"}'


@workflow.defn(name="counting")
class Counting:
    def run(self, ctx: Any, steps: int) -> Generator[Any, Any, int]:
        number = 0
        for _ in range(steps):
            number = yield ctx.schedule_activity("add_one", [number])
        return number


@activity.defn(name="add_one")
def add_one(number: int) -> int:
    return number + 1


class CountingClient(Client):
    """Counts the pages and events of the histories that come."""

    pages = events = 0

    async def poll_workflow_task_response(self, **asked: Any) -> dict[str, Any]:
        answer = await super().poll_workflow_task_response(**asked)
        self.events += len((answer.get("task") or {}).get("history_events", ()))
        return answer

    async def workflow_task_history(self, **asked: Any) -> Any:
        page = await super().workflow_task_history(**asked)
        self.pages += 1
        self.events += len(page["history_events"])
        return page


@dataclass(frozen=True)
class Seen:
    """What the worker of one workflow was sent, and what its cache said."""

    result: Any
    pages: int
    events: int
    cache: dict[str, int]


async def _count(url: str, queue: str, runs: int) -> Seen:
    client = CountingClient(url)
    async with client:
        worker = Worker(
            client,
            task_queue=queue,
            workflows=[Counting],
            activities=[add_one],
            poll_timeout=2,
            sticky_cache_capacity=runs,
        )
        working = asyncio.create_task(worker.run())
        handle = await client.start_workflow(
            workflow_type="counting", task_queue=queue, workflow_id=f"{queue}-{runs}", input=[STEPS]
        )
        result = await client.get_result(handle, poll_interval=0.1, timeout=120)
        seen = Seen(result, client.pages, client.events, worker.sticky_cache_metrics())
        await worker.stop()
        await asyncio.wait_for(working, 20)
        return seen


async def test_a_cache_saves_pages_and_events(cluster: Cluster, queue: str) -> None:
    cold, sticky = [
        await trio.to_thread.run_sync(partial(asyncio.run, _count(cluster.url, queue, runs)))
        for runs in (0, CACHED_RUNS)
    ]
    assert cold.result == sticky.result == STEPS
    assert (cold.cache["hit"], sticky.cache["miss"], sticky.cache["hit"]) == (0, 1, STEPS)
    assert sticky.events < cold.events / 2
    assert sticky.pages < cold.pages / 2
    async with open_wire(cluster.url) as wire:
        for runs in (0, CACHED_RUNS):
            check_history(await wire.history(f"{queue}-{runs}"))


async def test_a_worker_killed_and_replaced_under_its_id_replays_everything(
    cluster: Cluster, queue: str, worker_id: str
) -> None:
    one, two, three = cluster.nodes
    options = {"only": "steps", "id": worker_id, "sticky": str(CACHED_RUNS)}
    first = cluster.start_worker(queue, url=one.url, **options)
    workers = [first, cluster.start_worker(queue, url=two.url, only="pause")]
    attempts = cluster.directory / f"{queue}.events"

    async def start(client: Client) -> None:
        await client.start_workflow(
            workflow_type="steps", task_queue=queue, workflow_id=queue, input=[STEPS, 0.1]
        )

    async def result(client: Client) -> Any:
        return await client.get_result(client.get_workflow_handle(queue), poll_interval=0.1, timeout=120)

    hits, cold = await total(cluster.nodes, HITS), await total(cluster.nodes, COLD)
    try:
        for worker in workers:
            await worker_ready(worker)
        await with_client(three.url, start)
        await eventually(lambda: attempts.exists() and len(attempts.read_text().splitlines()) > 5, 40)
        kill(first)
        hits_before = await total(cluster.nodes, HITS)
        assert hits_before > hits
        workers.append(cluster.start_worker(queue, url=three.url, **options))
        assert await with_client(one.url, result) == list(range(STEPS))
    finally:
        for worker in workers:
            kill(worker)
    assert await total(cluster.nodes, COLD) > cold
    assert await total(cluster.nodes, HITS) > hits_before
    noted = [json.loads(line) for line in attempts.read_text().splitlines()]
    assert len(noted) == STEPS
    async with open_wire(one.url) as wire:
        check_history(await wire.history(queue))
