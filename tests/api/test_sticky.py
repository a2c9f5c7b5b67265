"""Sticky execution: what a worker is sent whose process keeps the history of a run (sdk-wire 2.10)."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import pytest

from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client
from tests.waiting import eventually

QUEUE = "jobs"
TICK = {"type": "record_side_effect", "result": "wwHioz3/VYAiNwA="}
AGAIN = {"type": "start_timer", "delay_seconds": 0}
"""Fires at once, so that another workflow task follows."""
HIT, COLD = "sticky_hit_expected", "forced_cold_replay"
Task = dict[str, Any]


@dataclass
class Worker:
    """A worker process, to the degree that the server can see it."""

    client: Client
    worker_id: str = "w"
    build_id: str | None = None
    page_size: int = 3

    async def register(self, **fields: Any) -> str:
        """Begin as a new process; returns its token."""
        body = {"worker_id": self.worker_id, "task_queue": QUEUE, "runtime": "python"}
        if self.build_id:
            body["build_id"] = self.build_id
        answer = await self.client.worker("POST", "register", body | fields)
        assert answer.status == 201
        token: str = answer.body["registration_token"]
        return token

    async def ask(self, **fields: Any) -> Answer:
        body = {"worker_id": self.worker_id, "task_queue": QUEUE, "history_page_size": self.page_size}
        return await self.client.worker("POST", "workflow-tasks/poll", body | fields)

    async def take(self, **fields: Any) -> Task:
        """A poll that must bring a task."""
        task: Task | None = None

        async def found() -> bool:
            nonlocal task
            task = (await self.ask(**fields)).body["task"]
            return task is not None

        await eventually(found)
        assert task is not None
        return task

    async def page(self, task: Task, token: str) -> Answer:
        body = _claim(task) | {"next_history_page_token": token, "history_page_size": self.page_size}
        return await self.client.worker("POST", f"workflow-tasks/{task['task_id']}/history", body)

    async def read(self, task: Task, token: str | None) -> list[dict[str, Any]]:
        """The events from ``token`` to the end."""
        events: list[dict[str, Any]] = []
        while token is not None:
            page = await self.page(task, token)
            assert page.status == 200
            events += page.body["history_events"]
            token = page.body["next_history_page_token"]
        return events

    async def complete(self, task: Task, *commands: Any, sticky: Any = None) -> Answer:
        body = _claim(task) | {"commands": list(commands)} | ({"sticky_cache": sticky} if sticky else {})
        return await self.client.worker("POST", f"workflow-tasks/{task['task_id']}/complete", body)

    async def keep(self, task: Task, *commands: Any, **fields: Any) -> None:
        """Complete, and say that the history is kept."""
        done = await self.complete(task, *(commands or (TICK, AGAIN)), sticky=cache(task, **fields))
        assert done.status == 200, done.body

    async def fail(self, task: Task, failure_type: str) -> None:
        failure = {"message": "no", "type": failure_type}
        target = f"workflow-tasks/{task['task_id']}/fail"
        assert (await self.client.worker("POST", target, _claim(task) | {"failure": failure})).status == 200


def _claim(task: Task) -> dict[str, Any]:
    return {"lease_owner": task["lease_owner"], "workflow_task_attempt": task["workflow_task_attempt"]}


def cache(task: Task, **fields: Any) -> dict[str, Any]:
    """What the SDK says of its cache."""
    own = {"worker_id": task["lease_owner"], "workflow_id": task["workflow_id"], "run_id": task["run_id"]}
    metrics = {"hit": 0, "miss": 1, "eviction": 0, "forced_cold_replay": 0}
    return {
        **own,
        "build_id": "durable-workflow-python/2.12.0",
        "ttl_seconds": 300,
        "metrics": metrics,
        **fields,
    }


def ordinals(events: list[dict[str, Any]]) -> list[int]:
    return [event["sequence"] for event in events]


def whole(task: Task) -> list[int]:
    return list(range(1, task["total_history_events"] + 1))


@pytest.fixture
async def node(another_node: OpenNode) -> Any:
    async with another_node(workflow_task_timeout=5) as opened:
        yield opened


async def start(client: Client, **fields: Any) -> None:
    body = {"workflow_type": "t", "workflow_id": "w1", "task_queue": QUEUE}
    assert (await client.control("POST", "/api/workflows", body | fields)).status == 201


@pytest.fixture
async def worker(client: Client) -> Worker:
    """A worker that keeps the history of the run w1, whose next workflow task is ready."""
    worker = Worker(client)
    await worker.register()
    await start(client)
    for _ in range(2):
        await worker.keep(await worker.take())
    return worker


async def test_it_is_advertised(client: Client) -> None:
    info = (await client.control("GET", "/api/cluster/info")).body
    offered = info["worker_protocol"]["server_capabilities"]["sticky_execution"]
    assert (offered["supported"], offered["minimum_protocol_version"]) == (True, "1.18")


async def test_the_first_task_of_a_run_expects_nothing(client: Client) -> None:
    worker = Worker(client)
    await worker.register()
    await start(client)
    task = await worker.take()
    assert task["sticky_replay_mode"] is None
    assert (task["last_history_sequence"], task["total_history_events"]) == (2, 2)


async def test_who_keeps_the_history_gets_its_beginning_and_the_tail(worker: Worker) -> None:
    task = await worker.take()
    known = task["total_history_events"]
    assert ordinals(task["history_events"]) == [1, 2]
    assert task["sticky_replay_mode"] == HIT
    assert task["last_history_sequence"] == known
    await worker.keep(task)

    task = await worker.take()
    last_page = 3 * (known // 3)
    tail = await worker.read(task, _token(last_page))
    assert ordinals(tail) == list(range(last_page + 1, task["total_history_events"] + 1))
    assert len(tail) < len(whole(task)) - 2


def _token(ordinal: int) -> str:
    return b64encode(str(ordinal).encode()).decode()


async def test_the_nodes_do_not_matter(worker: Worker, another_node: OpenNode) -> None:
    async with another_node(node_name="second") as second:
        there = Worker(client_of(second))
        task = await there.take()
        assert (task["sticky_replay_mode"], len(task["history_events"])) == (HIT, 2)
        assert ordinals(await worker.read(task, "MA==")) == whole(task)
        await worker.keep(task)
        assert (await there.take())["sticky_replay_mode"] == HIT


async def test_a_lost_cache_costs_pages_and_no_event(node: Node, worker: Worker) -> None:
    task = await worker.take()
    rest = await worker.read(task, task["next_history_page_token"])
    assert ordinals(task["history_events"] + rest) == whole(task)
    assert ordinals(await worker.read(task, "MA==")) == whole(task)
    assert node.engine.sticky_misses == 2


async def test_a_history_that_fits_is_sent_whole(worker: Worker) -> None:
    worker.page_size = 500
    task = await worker.take()
    assert task["sticky_replay_mode"] == HIT
    assert ordinals(task["history_events"]) == whole(task)
    assert task["next_history_page_token"] is None


async def test_pages_too_small_to_recognise_anything_by(worker: Worker) -> None:
    worker.page_size = 1
    task = await worker.take()
    assert task["sticky_replay_mode"] is None
    rest = await worker.read(task, task["next_history_page_token"])
    assert ordinals(task["history_events"] + rest) == whole(task)


async def test_the_same_poll_again_gets_the_same(worker: Worker) -> None:
    first = await worker.take(poll_request_id="one")
    again = await worker.take(poll_request_id="one")
    assert again["sticky_replay_mode"] == HIT
    assert again["history_events"] == first["history_events"]
    assert again["task_id"] == first["task_id"]


async def test_an_undelivered_hand_out_changes_nothing(node: Node, worker: Worker) -> None:
    lost = (await worker.ask()).raw
    assert lost.undelivered is not None
    lost.undelivered()
    task = await worker.take()
    assert (task["workflow_task_attempt"], task["sticky_replay_mode"]) == (1, HIT)


# -- what ends it --------------------------------------------------------------------------------


async def _cold(worker: Worker, mode: str | None = COLD) -> Task:
    """The next task comes with the whole history, for whoever asks."""
    task = await worker.take()
    assert task["sticky_replay_mode"] == mode
    assert len(task["history_events"]) == min(worker.page_size, task["total_history_events"])
    rest = await worker.read(task, task["next_history_page_token"])
    assert ordinals(task["history_events"] + rest) == whole(task)
    return task


async def test_another_worker(worker: Worker) -> None:
    other = Worker(worker.client, "other")
    await other.register()
    await other.keep(await _cold(other))
    await _cold(worker)


async def test_a_new_process_of_the_same_id(worker: Worker) -> None:
    await worker.register()
    task = await _cold(worker)
    await worker.keep(task)
    assert (await worker.take())["sticky_replay_mode"] == HIT


async def test_an_earlier_process_does_not_speak_for_the_new_one(worker: Worker) -> None:
    task = await worker.take()
    await worker.register()
    await worker.keep(task)
    await _cold(worker)


async def test_a_new_build_under_the_same_id(worker: Worker) -> None:
    worker.build_id = "b2"
    await worker.register()
    await _cold(worker)


async def test_a_worker_that_left_and_came_back(worker: Worker) -> None:
    answer = await worker.client.worker("DELETE", "registrations/w")
    assert answer.status == 200
    await worker.register()
    await _cold(worker)


async def test_a_worker_that_left_with_the_task(worker: Worker) -> None:
    await worker.take()
    answer = await worker.client.worker("DELETE", "registrations/w")
    assert answer.body["recovered_workflow_task_count"] == 1
    other = Worker(worker.client, "other")
    await other.register()
    assert (await _cold(other))["workflow_task_attempt"] == 2


async def test_a_drained_build(client: Client) -> None:
    old, new = Worker(client, "old", build_id="b1"), Worker(client, "new", build_id="b2")
    await old.register()
    await new.register()
    await start(client)
    for _ in range(2):
        await old.keep(await old.take())
    drained = await client.control("POST", f"/api/task-queues/{QUEUE}/build-ids/drain", {"build_id": "b1"})
    assert drained.status == 200
    refused = await old.ask()
    assert (refused.status, refused.body["reason"]) == (409, "worker_draining")
    await _cold(new)


async def test_a_completion_that_keeps_nothing(worker: Worker) -> None:
    await worker.complete(await worker.take(), TICK, AGAIN)
    await _cold(worker, None)


async def test_a_failed_task(worker: Worker) -> None:
    await worker.fail(await worker.take(), "NonDeterministicReplayError")
    assert (await _cold(worker))["workflow_task_attempt"] == 2


async def test_a_repaired_run(worker: Worker) -> None:
    await worker.fail(await worker.take(), "NonDeterministicReplayError")
    repaired = await worker.client.control("POST", "/api/workflows/w1/repair", {})
    assert repaired.status == 200
    await _cold(worker)


async def test_a_lapsed_lease(worker: Worker) -> None:
    task = await worker.take()
    assert task["sticky_replay_mode"] == HIT
    again = await _cold(worker)
    assert (again["task_id"], again["workflow_task_attempt"]) == (task["task_id"], 2)
    late = await worker.complete(task, TICK, AGAIN, sticky=cache(task))
    assert late.status == 409
    await worker.keep(again)
    assert (await worker.take())["sticky_replay_mode"] == HIT


async def test_the_time_for_which_it_is_kept(client: Client) -> None:
    worker = Worker(client)
    await worker.register()
    await start(client)
    await worker.keep(await worker.take(), {"type": "start_timer", "delay_seconds": 2}, ttl_seconds=1)
    await _cold(worker)


async def test_the_next_run_of_the_workflow(worker: Worker) -> None:
    await worker.keep(await worker.take(), {"type": "continue_as_new"})
    task = await _cold(worker, None)
    assert task["total_history_events"] == 2


async def test_waiting_for_history_keeps_what_was_kept(worker: Worker) -> None:
    await worker.fail(await worker.take(), "WorkflowTaskWaitingForHistory")
    await worker.client.control("POST", "/api/workflows/w1/signal/go", {})
    task = await worker.take()
    assert (task["sticky_replay_mode"], len(task["history_events"])) == (HIT, 2)


async def test_events_that_came_meanwhile_are_in_the_tail(worker: Worker) -> None:
    task = await worker.take()
    await worker.client.control("POST", "/api/workflows/w1/signal/go", {})
    known = task["total_history_events"]
    assert ordinals(await worker.read(task, "MA==")) == list(range(1, known + 1))
    await worker.keep(task)
    task = await worker.take()
    tail = await worker.read(task, _token(known))
    assert ordinals(tail) == list(range(known + 1, task["total_history_events"] + 1))
    assert "SignalReceived" in [event["event_type"] for event in tail]


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sticky", "field"),
    [
        ("yes", "sticky_cache"),
        ([], "sticky_cache"),
        ({"ttl_seconds": 0}, "sticky_cache.ttl_seconds"),
        ({"ttl_seconds": 3601}, "sticky_cache.ttl_seconds"),
        ({"ttl_seconds": "soon"}, "sticky_cache.ttl_seconds"),
        ({"worker_id": ""}, "sticky_cache.worker_id"),
        ({"worker_id": "other"}, "sticky_cache.worker_id"),
        ({"run_id": "other"}, "sticky_cache.run_id"),
        ({"workflow_id": "other"}, "sticky_cache.workflow_id"),
    ],
)
async def test_a_cache_of_something_else_is_refused_and_nothing_is_done(
    worker: Worker, sticky: Any, field: str
) -> None:
    task = await worker.take()
    wrong = cache(task) | sticky if isinstance(sticky, dict) else sticky
    body = _claim(task) | {"commands": [TICK, AGAIN], "sticky_cache": wrong}
    answer = await worker.client.worker("POST", f"workflow-tasks/{task['task_id']}/complete", body)
    assert (answer.status, answer.body["reason"]) == (422, "validation_failed")
    assert list(answer.body["errors"]) == [field]
    await worker.keep(task)


async def test_hand_outs_are_counted(node: Node, worker: Worker) -> None:
    await worker.keep(await worker.take())
    await worker.register()
    await worker.take()
    shown = (await client_of(node).send("GET", "/metrics")).body.decode()
    assert "headrace_sticky_misses_total 0.0" in shown
    counted = worker.client.metrics.render().decode()
    assert f'headrace_sticky_replays_total{{mode="{COLD}"}} 1.0' in counted
    assert f'headrace_sticky_replays_total{{mode="{HIT}"}} 2.0' in counted
