"""Task queues through the whole interface: every status, every field, and why a task waits."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest
import trio

from cluster import payloads
from cluster.errors import StoreUnavailable
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.store_time import early_in_a_minute, next_millisecond
from tests.unit.api.fakes import Answer, Client
from tests.waiting import eventually

SECTION_FIELDS = {
    "status",
    "budget_source",
    "server_budget_source",
    "active_worker_count",
    "configured_slot_count",
    "leased_count",
    "ready_count",
    "available_slot_count",
    "server_max_active_leases_per_queue",
    "server_active_lease_count",
    "server_remaining_active_lease_capacity",
    "server_max_active_leases_per_namespace",
    "server_namespace_active_lease_count",
    "server_remaining_namespace_active_lease_capacity",
    "server_max_dispatches_per_minute",
    "server_dispatch_count_this_minute",
    "server_remaining_dispatch_capacity",
    "server_max_dispatches_per_minute_per_namespace",
    "server_namespace_dispatch_count_this_minute",
    "server_remaining_namespace_dispatch_capacity",
    "server_dispatch_budget_group",
    "server_max_dispatches_per_minute_per_budget_group",
    "server_budget_group_dispatch_count_this_minute",
    "server_remaining_budget_group_dispatch_capacity",
    "server_lock_required",
    "server_lock_supported",
}


async def register(client: Client, worker: str = "w", queue: str = "q", **fields: Any) -> None:
    body = {"worker_id": worker, "task_queue": queue, "runtime": "python", **fields}
    assert (await client.worker("POST", "register", body)).status == 201


async def start(client: Client, number: int = 1, queue: str = "q", stem: str = "wf") -> None:
    """Start ``number`` runs; their tasks are ready in this order."""
    for index in range(number):
        if index:
            await next_millisecond(cast(Node, client.node).store)
        body = {"workflow_type": "t", "task_queue": queue, "workflow_id": f"{stem}-{queue}-{index}"}
        assert (await client.control("POST", "/api/workflows", body)).status == 201


async def poll(
    client: Client, kind: str = "workflow", worker: str = "w", queue: str = "q", seconds: int = 0
) -> Any:
    body = {"worker_id": worker, "task_queue": queue, "timeout_seconds": seconds}
    answer = await client.worker("POST", f"{kind}-tasks/poll", body)
    assert answer.status == 200
    return answer.body


async def complete(client: Client, task: dict[str, Any], *commands: dict[str, Any]) -> Answer:
    body = {
        "lease_owner": task["lease_owner"],
        "workflow_task_attempt": task["workflow_task_attempt"],
        "commands": list(commands) or [{"type": "complete_workflow", "result": None}],
    }
    answer = await client.worker("POST", f"workflow-tasks/{task['task_id']}/complete", body)
    assert answer.status == 200, answer.body
    return answer


async def section(client: Client, kind: str = "workflow", queue: str = "q") -> dict[str, Any]:
    answer = await client.control("GET", f"/api/task-queues/{queue}")
    assert answer.status == 200
    found: dict[str, Any] = answer.body["admission"][f"{kind}_tasks"]
    assert set(found) == SECTION_FIELDS
    return found


def overrides(kind: str = "workflow", key: str = "*", **fields: Any) -> dict[str, str]:
    tree = {key: {f"{kind}_tasks": fields}}
    return {"task_queue_admission_overrides": orjson.dumps(tree).decode()}


def schedule(activity_type: str = "act", queue: str = "q", **more: Any) -> dict[str, Any]:
    arguments = payloads.encode([])
    return {
        "type": "schedule_activity",
        "activity_type": activity_type,
        "queue": queue,
        "arguments": {"codec": arguments.codec, "blob": arguments.blob},
        **more,
    }


# -- O01 to O10 -----------------------------------------------------------------------------------


async def test_a_lease_limit_throttles_and_says_so(another_node: OpenNode) -> None:
    async with another_node(**overrides(max_active_leases_per_queue=1)) as node:
        client = client_of(node)
        await register(client)
        await start(client, 2)
        first = await poll(client)
        assert first["poll_status"] == "leased"
        assert first["task"]["workflow_id"] == "wf-q-0"
        second = await poll(client)
        assert (second["task"], second["poll_status"]) == (None, "throttled")
        assert second["reason"] == "task_queue_admission_throttled"
        limit = {"limit": "max_active_leases_per_queue", "maximum": 1, "count": 1}
        assert second["throttled_by"] == limit
        shown = await section(client)
        assert shown["status"] == "throttled"
        assert shown["server_max_active_leases_per_queue"] == 1
        assert shown["server_active_lease_count"] == 1
        assert shown["server_remaining_active_lease_capacity"] == 0
        assert shown["server_max_dispatches_per_minute"] is None
        assert shown["server_dispatch_count_this_minute"] == 0
        assert shown["server_remaining_dispatch_capacity"] is None
        assert shown["server_lock_required"] is shown["server_lock_supported"] is True
        assert shown["server_budget_source"] == "server.admission.queue_overrides"
        await complete(client, first["task"])
        await eventually(lambda: _leased(client))


async def _leased(client: Client) -> bool:
    return bool((await poll(client))["task"])


async def test_a_dispatch_limit_throttles_and_says_when_to_come_back(another_node: OpenNode) -> None:
    async with another_node(workflow_task_max_dispatches_per_minute="1") as node:
        client = client_of(node)
        await early_in_a_minute(node.store)
        await register(client)
        await start(client, 2)
        assert (await poll(client))["poll_status"] == "leased"
        body = {"worker_id": "w", "task_queue": "q", "timeout_seconds": 0}
        answer = await client.worker("POST", "workflow-tasks/poll", body)
        assert answer.body["poll_status"] == "throttled"
        assert 1 <= answer.body["retry_after_seconds"] <= 60
        assert answer.headers["retry-after"] == str(answer.body["retry_after_seconds"])
        shown = await section(client)
        assert shown["status"] == "throttled"
        assert shown["server_max_active_leases_per_queue"] is None
        assert shown["server_active_lease_count"] == 1
        assert shown["server_dispatch_count_this_minute"] == 1
        assert shown["server_remaining_dispatch_capacity"] == 0
        source = "server.admission.workflow_tasks.max_dispatches_per_minute"
        assert shown["server_budget_source"] == source


async def test_a_namespace_limit_of_the_environment(another_node: OpenNode) -> None:
    async with another_node(workflow_task_max_dispatches_per_minute_per_namespace=1) as node:
        client = client_of(node)
        await early_in_a_minute(node.store)
        for queue in ("q", "p"):
            await register(client, f"w-{queue}", queue)
            await start(client, 1, queue)
        assert (await poll(client, worker="w-q"))["poll_status"] == "leased"
        assert (await poll(client, worker="w-p", queue="p"))["poll_status"] == "throttled"
        shown = await section(client, queue="p")
        name = "server.admission.workflow_tasks.max_dispatches_per_minute_per_namespace"
        assert shown["server_budget_source"] == name
        assert shown["server_namespace_dispatch_count_this_minute"] == 1
        assert shown["server_remaining_namespace_dispatch_capacity"] == 0
        assert shown["server_max_dispatches_per_minute"] is None


async def test_a_budget_group_over_queues(another_node: OpenNode) -> None:
    fields: dict[str, Any] = {"budget_group": "api", "max_dispatches_per_minute_per_budget_group": 1}
    async with another_node(**overrides(**fields)) as node:
        client = client_of(node)
        await early_in_a_minute(node.store)
        for queue in ("q", "p"):
            await register(client, f"w-{queue}", queue)
            await start(client, 1, queue)
        assert (await poll(client, worker="w-q"))["poll_status"] == "leased"
        assert (await poll(client, worker="w-p", queue="p"))["poll_status"] == "throttled"
        shown = await section(client, queue="p")
        assert shown["server_dispatch_budget_group"] == "api"
        assert shown["server_max_dispatches_per_minute_per_budget_group"] == 1
        assert shown["server_budget_group_dispatch_count_this_minute"] == 1
        assert shown["server_remaining_budget_group_dispatch_capacity"] == 0


async def test_an_activity_limit_under_its_short_name(another_node: OpenNode) -> None:
    async with another_node(
        **overrides("activity", "default:external-activities", max_active_leases=1)
    ) as node:
        client = client_of(node)
        await register(client)
        await register(client, "x", "external-activities")
        await start(client)
        task = (await poll(client))["task"]
        await complete(client, task, *(schedule(queue="external-activities") for _ in range(2)))
        where: dict[str, Any] = {"worker": "x", "queue": "external-activities"}
        assert (await poll(client, "activity", **where))["poll_status"] == "leased"
        assert (await poll(client, "activity", **where))["poll_status"] == "throttled"
        shown = await section(client, "activity", "external-activities")
        assert shown["status"] == "throttled"
        assert shown["server_active_lease_count"] == 1
        assert shown["server_dispatch_count_this_minute"] == 0
        assert shown["server_remaining_dispatch_capacity"] is None


async def test_the_statuses_without_limits(client: Client, node: Node) -> None:
    await start(client, 2)
    shown = await section(client)
    assert shown["status"] == "no_active_workers"
    assert shown["server_lock_required"] is False
    assert shown["server_budget_source"] == "server.admission.workflow_tasks.max_active_leases_per_queue"
    await register(client, max_concurrent_workflow_tasks=1)
    shown = await section(client)
    assert (shown["status"], shown["configured_slot_count"], shown["ready_count"]) == ("accepting", 1, 2)
    await poll(client)
    shown = await section(client)
    assert (shown["status"], shown["leased_count"], shown["available_slot_count"]) == ("saturated", 1, 0)
    assert shown["server_active_lease_count"] == 1
    assert (await poll(client))["poll_status"] == "leased", "slots are informational"
    await _without_slots(node)
    assert (await section(client))["status"] == "no_slots"
    drain = {"build_id": None}
    assert (await client.control("POST", "/api/task-queues/q/build-ids/drain", drain)).status == 200
    await client.worker("POST", "heartbeat", {"worker_id": "w"})
    assert (await section(client))["status"] == "no_active_workers"


async def _without_slots(node: Node) -> None:
    key = node.store.keys.registrations("default")
    record = orjson.loads(await node.store.call("HGET", key, "w"))
    record["max_concurrent_workflow_tasks"] = 0
    await node.store.call("HSET", key, "w", orjson.dumps(record))


async def test_an_exhausted_limit_wins_over_missing_workers(another_node: OpenNode) -> None:
    async with another_node(**overrides(max_active_leases=1)) as node:
        client = client_of(node)
        await register(client)
        await start(client, 2)
        await poll(client)
        await client.control("POST", "/api/task-queues/q/build-ids/drain", {"build_id": None})
        await client.worker("POST", "heartbeat", {"worker_id": "w"})
        shown = await section(client)
        assert (shown["status"], shown["active_worker_count"]) == ("throttled", 0)


async def test_a_worker_that_leaves_makes_room(another_node: OpenNode) -> None:
    async with another_node(**overrides(max_active_leases=1)) as node:
        client = client_of(node)
        await register(client)
        await register(client, "v")
        await start(client, 2)
        assert (await poll(client))["task"]
        assert (await poll(client, worker="v"))["poll_status"] == "throttled"
        assert (await client.worker("DELETE", "registrations/w")).status == 200
        body = await poll(client, worker="v", seconds=10)
        assert body["poll_status"] == "leased"


async def test_counters_that_cannot_be_read_are_unavailable(
    another_node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with another_node(**overrides(max_active_leases=1)) as node:
        client = client_of(node)
        await register(client)
        await start(client)
        run = node.store.run

        async def without_counters(script: str, *args: Any, **more: Any) -> Any:
            if script in ("budgets", "admit"):
                raise StoreUnavailable("the slot is away")
            return await run(script, *args, **more)

        await poll(client)
        monkeypatch.setattr(node.store, "run", without_counters)
        shown = await section(client)
        assert (shown["status"], shown["server_lock_supported"]) == ("unavailable", False)
        assert (await section(client, "activity"))["status"] == "accepting"
        for seconds in (0, 1):
            body = await poll(client, seconds=seconds)
            assert (body["task"], body["poll_status"]) == (None, "unavailable")
            assert body["reason"] == "task_queue_admission_unavailable"
        monkeypatch.undo()
        assert (await poll(client))["poll_status"] == "throttled"


async def test_the_detail_of_a_queue(client: Client, node: Node) -> None:
    await register(client, "b", supported_workflow_types=["t"], max_concurrent_workflow_tasks=10)
    await register(client, "a", "q", build_id="b1")
    await start(client, 3)
    task = (await poll(client, worker="b"))["task"]
    await complete(client, task, schedule(), schedule())
    leased = (await poll(client, "activity", worker="b"))["task"]
    other = (await poll(client, worker="b"))["task"]
    answer = await client.control("GET", "/api/task-queues/q")
    body = answer.body
    assert set(body) == {
        "name",
        "namespace",
        "pollers",
        "stats",
        "current_leases",
        "repair",
        "admission",
    }
    assert (body["name"], body["namespace"]) == ("q", "default")
    assert [poller["worker_id"] for poller in body["pollers"]] == ["a", "b"]
    assert body["pollers"][1]["max_concurrent_workflow_tasks"] == 10
    assert not body["pollers"][0]["is_stale"]
    stats = body["stats"]
    assert stats["approximate_backlog_count"] == 2
    assert stats["workflow_tasks"] == {
        "ready_count": 1,
        "leased_count": 1,
        "expired_lease_count": 0,
        "added_last_minute": 3,
        "dispatched_last_minute": 2,
    }
    assert stats["activity_tasks"]["added_last_minute"] == 2
    assert stats["tasks_dispatched_last_minute"] == 3
    assert stats["pollers"] == {"active_count": 2, "stale_count": 0, "stale_after_seconds": 60}
    assert stats["approximate_backlog_age"] == f"{stats['approximate_backlog_age_seconds']}s"
    assert stats["oldest_ready_task"]["workflow_id"] == "wf-q-2"
    leases = {lease["task_id"]: lease for lease in body["current_leases"]}
    assert set(leases) == {leased["task_id"], other["task_id"]}
    activity = leases[leased["task_id"]]
    assert activity["activity_attempt_id"] == leased["activity_attempt_id"]
    assert (activity["attempt_number"], activity["is_expired"]) == (1, False)
    assert (activity["workflow_id"], activity["lease_owner"]) == ("wf-q-0", "b")
    assert leases[other["task_id"]]["workflow_task_attempt"] == 1
    assert body["repair"]["policy"] == {"redispatch_after_seconds": 3}
    assert body["admission"]["query_tasks"] == {
        "status": "accepting",
        "budget_source": "server.query_tasks.max_pending_per_queue",
        "max_pending_per_queue": 1024,
        "approximate_pending_count": 0,
        "remaining_pending_capacity": 1024,
        "lock_required": True,
        "lock_supported": True,
    }


async def test_an_unknown_queue_is_an_empty_one(client: Client) -> None:
    body = (await client.control("GET", "/api/task-queues/no%2Fwhere")).body
    assert (body["name"], body["pollers"], body["current_leases"]) == ("no/where", [], [])
    assert body["stats"]["approximate_backlog_count"] == 0
    assert body["stats"]["oldest_ready_task"] is None
    assert body["stats"]["approximate_backlog_age"] is None
    assert body["repair"]["candidates"] == 0
    assert body["repair"]["needs_attention"] is False


async def test_the_list_has_queues_with_tasks_and_queues_with_workers(client: Client) -> None:
    await register(client, "w", "only-workers")
    await start(client, 2, "only-tasks")
    body = (await client.control("GET", "/api/task-queues")).body
    assert body["namespace"] == "default"
    assert [queue["name"] for queue in body["task_queues"]] == ["only-tasks", "only-workers"]
    assert all(set(queue) == {"name", "stats", "repair", "admission"} for queue in body["task_queues"])
    tasks, workers = (queue["admission"]["workflow_tasks"] for queue in body["task_queues"])
    assert (tasks["status"], tasks["ready_count"]) == ("no_active_workers", 2)
    assert (workers["status"], workers["ready_count"]) == ("accepting", 0)


async def test_a_look_costs_the_same_whatever_the_queue_holds(client: Client, node: Node) -> None:
    async def cost() -> int:
        before = node.store.statistics().pipe.round_trips
        await client.control("GET", "/api/task-queues/q")
        return node.store.statistics().pipe.round_trips - before

    await register(client)
    await cost()
    few = await cost()
    await start(client, 60)
    assert await cost() <= few + 2
    assert few <= 12


# -- limits at run time -----------------------------------------------------------------------------


async def test_limits_change_while_work_runs_and_hold_on_every_node(another_node: OpenNode) -> None:
    async with another_node() as one, another_node() as two:
        here, there = client_of(one), client_of(two)
        await register(here)
        await start(here, 6)
        held = [(await poll(client))["task"] for client in (here, there)]
        assert all(held)
        path = "/api/admission/limits/q"
        body = {"workflow_tasks": {"max_active_leases_per_queue": 3}}
        answer = await here.control("PUT", path, body)
        assert answer.status == 200
        limit = answer.body["effective"]["workflow_tasks"]["max_active_leases_per_queue"]
        assert limit == {"value": 3, "source": "server.admission.runtime_limits"}
        assert answer.body["version"] == 1
        assert (await poll(there))["poll_status"] == "leased"
        assert (await poll(there))["poll_status"] == "throttled"
        assert (await poll(here))["poll_status"] == "throttled"
        assert (await section(there))["server_active_lease_count"] == 3
        listed = (await there.control("GET", "/api/admission/limits")).body
        assert listed["limits"] == [{"task_queue": "q", **body}]
        assert (await there.control("DELETE", path)).status == 200
        assert (await poll(here))["poll_status"] == "leased"
        assert (await here.control("DELETE", path)).body["reason"] == "admission_limits_not_found"


async def test_a_raised_limit_wakes_parked_polls(another_node: OpenNode) -> None:
    rarely: dict[str, Any] = {"worker_poll_interval_ms": 60_000, **overrides(max_active_leases=1)}
    async with another_node(**rarely) as one, another_node(**rarely) as two:
        here, there = client_of(one), client_of(two)
        await register(here)
        await start(here, 2)
        assert (await poll(here))["task"]
        got: list[Any] = []

        async def park() -> None:
            got.append(await poll(there, seconds=60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(park)
            await eventually(lambda: two.polls.parked == 1)
            await here.control("PUT", "/api/admission/limits/*", {"workflow_tasks": {"max_active_leases": 2}})
            await eventually(lambda: bool(got))
        assert got[0]["poll_status"] == "leased"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"workflow_tasks": {"max_active_leases": -1}}, "workflow_tasks.max_active_leases"),
        ({"workflow_tasks": {"max_active_leases": "many"}}, "workflow_tasks.max_active_leases"),
        ({"workflow_tasks": {"max_leases": 1}}, "workflow_tasks.max_leases"),
        ({"workflows": {}}, "workflows"),
        ({"activity_tasks": {"budget_group": 3}}, "activity_tasks.budget_group"),
        ({"activity_tasks": []}, "activity_tasks"),
    ],
)
async def test_limits_that_make_no_sense_are_refused(client: Client, body: Any, field: str) -> None:
    answer = await client.control("PUT", "/api/admission/limits/q", body)
    assert answer.status == 422
    assert list(answer.body["errors"]) == [field]
    assert (await client.control("GET", "/api/admission/limits")).body["limits"] == []


async def test_null_and_zero_at_run_time(another_node: OpenNode) -> None:
    async with another_node(
        workflow_task_max_active_leases_per_queue=7, **overrides(max_active_leases=5)
    ) as node:
        client = client_of(node)
        for value, expected in ((None, 7), (0, None), (3, 3)):
            body = {"workflow_tasks": {"max_active_leases": value}}
            assert (await client.control("PUT", "/api/admission/limits/q", body)).status == 200
            assert (await section(client))["server_max_active_leases_per_queue"] == expected
        assert (await client.control("PUT", "/api/admission/limits/q", {})).status == 200
        assert (await section(client))["server_max_active_leases_per_queue"] == 5


# -- why --------------------------------------------------------------------------------------------


async def why(client: Client, task_id: str, queue: str = "q") -> Answer:
    return await client.control("GET", f"/api/task-queues/{queue}/why?task={task_id}")


async def ready_task(client: Client, queue: str = "q") -> str:
    body = (await client.control("GET", f"/api/task-queues/{queue}")).body
    found: str = body["stats"]["oldest_ready_task"]["task_id"]
    return found


async def test_why_a_task_waits_for_a_worker(client: Client, node: Node) -> None:
    await start(client, 2)
    task = await ready_task(client)
    body = (await why(client, task)).body
    assert (body["state"], body["waiting"], body["reason"]) == ("ready", True, "no_worker")
    assert (body["workflow_id"], body["task_queue"]) == ("wf-q-0", "q")
    await register(client, supported_workflow_types=["other"])
    body = (await why(client, task)).body
    assert body["reason"] == "unsupported_type"
    assert body["reasons"][0]["supported_types"] == ["other"]
    await register(client, supported_workflow_types=["t"], max_concurrent_workflow_tasks=1)
    assert (await why(client, task)).body["reason"] == "waiting_for_poll"
    leased = (await poll(client))["task"]["task_id"]
    body = (await why(client, leased)).body
    assert (body["state"], body["waiting"], body["lease_owner"]) == ("leased", False, "w")
    assert (await why(client, await ready_task(client))).body["reason"] == "no_free_slot"
    await _without_slots(node)
    assert (await why(client, await ready_task(client))).body["reason"] == "no_slot"
    await client.control("POST", "/api/task-queues/q/build-ids/drain", {"build_id": None})
    await client.worker("POST", "heartbeat", {"worker_id": "w"})
    assert (await why(client, await ready_task(client))).body["reason"] == "workers_draining"


async def test_why_a_limit_holds_a_task_back(another_node: OpenNode) -> None:
    fields: dict[str, Any] = {"max_active_leases": 1, "max_dispatches_per_minute": 1}
    async with another_node(**overrides(**fields)) as node:
        client = client_of(node)
        await early_in_a_minute(node.store)
        await register(client)
        await start(client, 2)
        leased = (await poll(client))["task"]
        task = await ready_task(client)
        body = (await why(client, task)).body
        assert body["reason"] == "limit_reached"
        assert [reason["limit"] for reason in body["reasons"]] == [
            "max_active_leases_per_queue",
            "max_dispatches_per_minute",
        ]
        assert body["reasons"][0]["maximum"] == body["reasons"][0]["count"] == 1
        assert body["retry_after_seconds"] is None
        await complete(client, leased)
        await eventually(lambda: _minute_is_all(client, task))
        answer = await why(client, task)
        assert answer.headers["retry-after"] == str(answer.body["retry_after_seconds"])


async def _minute_is_all(client: Client, task: str) -> bool:
    reasons = (await why(client, task)).body["reasons"]
    return [reason.get("limit") for reason in reasons] == ["max_dispatches_per_minute"]


async def test_why_a_retry_waits_and_what_a_run_waits_for(client: Client) -> None:
    await register(client)
    await start(client)
    task = (await poll(client))["task"]
    retry = {"max_attempts": 3, "backoff_seconds": [30]}
    await complete(client, task, schedule(retry_policy=retry))
    activity = (await poll(client, "activity"))["task"]
    body = (await why(client, task["task_id"])).body
    assert (body["state"], body["waiting"]) == ("ended", False)
    assert body["run_waits_for"] == [activity["task_id"]]
    failed = await client.worker(
        "POST",
        f"activity-tasks/{activity['task_id']}/fail",
        {
            "activity_attempt_id": activity["activity_attempt_id"],
            "lease_owner": "w",
            "failure": {"message": "no", "type": "Boom"},
        },
    )
    assert failed.status == 200
    answer = await why(client, activity["task_id"])
    assert (answer.body["state"], answer.body["reason"]) == ("delayed", "not_yet_due")
    # Whole seconds, rounded up, until a time that is itself rounded up.
    assert 1 <= int(answer.headers["retry-after"]) <= 31
    assert answer.body["reasons"][0]["due_at"].endswith("Z")


async def test_why_of_what_nobody_knows(client: Client) -> None:
    await start(client)
    task = await ready_task(client)
    for unknown in ("x", task.replace(task[:4], "01KB"), f"{task}0000000"):
        assert (await why(client, unknown)).status == 404
    assert (await client.control("GET", "/api/task-queues/q/why")).status == 422
    answer = await why(client, task, "p")
    assert (answer.status, answer.body["reason"]) == (409, "task_queue_mismatch")
    assert answer.body["task_queue"] == "q"
    await client.control("POST", "/api/namespaces", {"name": "other"})
    elsewhere = await client.control("GET", f"/api/task-queues/q/why?task={task}", **{"x-namespace": "other"})
    assert elsewhere.status == 404
