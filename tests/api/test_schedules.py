"""Schedules over HTTP on a real node (8.3; cases R01 to R17)."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import payloads
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client
from tests.waiting import eventually

ACTION = {"workflow_type": "report", "task_queue": "jobs", "input": ["daily"]}
NEVER = {"cron_expressions": ["0 0 1 1 *"]}
HOURS_OF_NEW_YEAR = {"cron_expressions": ["0 * 1 1 *"]}


async def create(client: Client, schedule_id: str = "s1", **fields: Any) -> Answer:
    body = {"schedule_id": schedule_id, "spec": NEVER, "action": ACTION, **fields}
    return await client.control("POST", "/api/schedules", body)


async def describe(client: Client, schedule_id: str = "s1") -> dict[str, Any]:
    answer = await client.control("GET", f"/api/schedules/{schedule_id}")
    assert answer.status == 200
    body: dict[str, Any] = answer.body
    return body


async def trigger(client: Client, schedule_id: str = "s1", **fields: Any) -> dict[str, Any]:
    answer = await client.control("POST", f"/api/schedules/{schedule_id}/trigger", fields)
    assert answer.status == 200
    body: dict[str, Any] = answer.body
    return body


async def close_run(client: Client) -> None:
    """A worker completes the next workflow task on the queue of ACTION."""
    worker = {"worker_id": "w", "task_queue": "jobs"}
    await client.worker("POST", "register", worker | {"runtime": "python"})
    task = (await client.worker("POST", "workflow-tasks/poll", worker)).body["task"]
    answer = await client.worker(
        "POST",
        f"workflow-tasks/{task['task_id']}/complete",
        {
            "lease_owner": "w",
            "workflow_task_attempt": task["workflow_task_attempt"],
            "commands": [{"type": "complete_workflow"}],
        },
    )
    assert answer.body["run_status"] == "completed"


async def events(client: Client, schedule_id: str = "s1") -> list[str]:
    answer = await client.control("GET", f"/api/schedules/{schedule_id}/history")
    return [event["event_type"] for event in answer.body["events"]]


async def test_r01_a_list_shows_the_schedules_of_its_namespace(client: Client) -> None:
    empty = await client.control("GET", "/api/schedules")
    assert empty.body == {"schedules": [], "next_page_token": None}
    await client.control("POST", "/api/namespaces", {"name": "other"})
    await create(client, "s1")
    await create(client, "s2", action=ACTION | {"workflow_type": "other"}, paused=True)
    await create(client, "gone")
    await client.control("DELETE", "/api/schedules/gone")
    listed = (await client.control("GET", "/api/schedules")).body["schedules"]
    assert {row["schedule_id"] for row in listed} == {"s1", "s2"}
    elsewhere = await client.control("GET", "/api/schedules", **{"x-namespace": "other"})
    assert elsewhere.body["schedules"] == []
    for query, found in (
        ("status=paused", {"s2"}),
        ("status=active", {"s1"}),
        ("workflow_type=report", {"s1"}),
        ("query=2", {"s2"}),
        ("status=deleted", set()),
    ):
        rows = (await client.control("GET", f"/api/schedules?{query}")).body["schedules"]
        assert {row["schedule_id"] for row in rows} == found


async def test_a_list_comes_in_pages_newest_first(client: Client) -> None:
    names = [f"s{number}" for number in range(7)]
    for name in names:
        await create(client, name)
    seen: list[str] = []
    query = "page_size=3"
    while True:
        page = (await client.control("GET", f"/api/schedules?{query}")).body
        seen += [row["schedule_id"] for row in page["schedules"]]
        if page["next_page_token"] is None:
            break
        query = f"page_size=3&next_page_token={page['next_page_token']}"
    assert sorted(seen) == names
    created = [(await describe(client, name))["created_at"] for name in seen]
    assert created == sorted(created, reverse=True)


async def test_r02_create(client: Client) -> None:
    created = await create(client, note="hello")
    assert (created.status, created.body) == (201, {"schedule_id": "s1", "outcome": "created"})
    shown = await describe(client)
    assert (shown["status"], shown["note"], shown["paused"]) == ("active", "hello", False)
    assert shown["next_fire"].endswith("-01-01T00:00:00+00:00")
    drawn = await client.control("POST", "/api/schedules", {"spec": NEVER, "action": ACTION})
    assert len(drawn.body["schedule_id"]) == 26
    await create(client, "idle", paused=True)
    assert (await describe(client, "idle"))["status"] == "paused"
    assert (await describe(client, "idle"))["next_fire"] is None
    again = await create(client)
    assert (again.status, again.body["reason"], again.body["schedule_id"]) == (
        409,
        "schedule_already_exists",
        "s1",
    )
    await client.control("DELETE", "/api/schedules/s1")
    assert (await create(client)).status == 201


async def test_r04_describe(client: Client) -> None:
    await create(client, memo={"team": "a"}, search_attributes={"Tier": "gold"}, jitter_seconds=3, max_runs=5)
    shown = await describe(client)
    assert shown["spec"] == {"cron_expressions": ["0 0 1 1 *"], "intervals": [], "timezone": None}
    assert shown["action"]["input"] == ["daily"]
    assert shown["action"]["input_envelope"]["blob"] == payloads.encode(["daily"]).blob
    assert (shown["overlap_policy"], shown["max_runs"], shown["remaining_actions"]) == ("skip", 5, 5)
    assert (shown["memo"], shown["search_attributes"]) == ({"team": "a"}, {"Tier": "gold"})
    assert shown["info"]["recent_actions"] == []
    missing = await client.control("GET", "/api/schedules/none")
    assert (missing.status, missing.body["reason"]) == (404, "schedule_not_found")
    await client.control("DELETE", "/api/schedules/s1")
    assert (await client.control("GET", "/api/schedules/s1")).status == 404


async def test_r05_update(client: Client) -> None:
    await create(client, note="first", max_runs=3)
    await trigger(client)
    change = {
        "spec": {"intervals": [{"every": "PT30M"}]},
        "action": {"task_queue": "elsewhere"},
        "max_runs": 10,
    }
    updated = await client.control("PUT", "/api/schedules/s1", change)
    assert (updated.status, updated.body) == (200, {"schedule_id": "s1", "outcome": "updated"})
    shown = await describe(client)
    assert shown["note"] == "first"
    assert shown["spec"] == {"cron_expressions": [], "intervals": [{"every": "PT30M"}], "timezone": None}
    assert (shown["action"]["workflow_type"], shown["action"]["task_queue"]) == ("report", "elsewhere")
    assert shown["remaining_actions"] == 9
    await client.control("PUT", "/api/schedules/s1", {"note": "second"})
    assert (await describe(client))["note"] == "second"
    assert (await describe(client))["spec"] == shown["spec"]
    assert (await client.control("PUT", "/api/schedules/none", {"note": "x"})).status == 404


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"cron_expressions": [5]}, "spec.cron_expressions.0"),
        ({"intervals": [{"every": "PT1H"}, {"offset": "PT1M"}]}, "spec.intervals.1.every"),
        ({"timezone": 3}, "spec.timezone"),
    ],
)
async def test_r05_a_spec_of_wrong_types_is_refused(client: Client, spec: dict[str, Any], field: str) -> None:
    answer = await create(client, spec=spec)
    assert (answer.status, list(answer.body["errors"])) == (422, [field])


async def test_a_spec_that_means_nothing_never_fires(client: Client) -> None:
    for number, spec in enumerate(({}, {"cron_expressions": ["junk"]}, {"intervals": [{"every": "soon"}]})):
        assert (await create(client, f"s{number}", spec=spec)).status == 201
        assert (await describe(client, f"s{number}"))["next_fire"] is None


async def test_d06_a_large_memo_is_refused(another_node: OpenNode) -> None:
    async with another_node(max_memo_bytes=50) as node:
        client = client_of(node)
        large = await create(client, memo={"text": "x" * 60})
        assert (large.status, large.body["reason"], large.body["limit"]) == (422, "memo_too_large", 50)
        assert (await create(client, memo={"text": "x"})).status == 201
        large = await client.control("PUT", "/api/schedules/s1", {"memo": {"text": "x" * 60}})
        assert (large.status, large.body["reason"]) == (422, "memo_too_large")


async def test_r06_delete(client: Client) -> None:
    await create(client)
    deleted = await client.control("DELETE", "/api/schedules/s1")
    assert (deleted.status, deleted.body) == (200, {"schedule_id": "s1", "outcome": "deleted"})
    for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/trigger")):
        answer = await client.control(method, f"/api/schedules/s1{path}", {} if method != "GET" else None)
        assert (answer.status, answer.body["reason"]) == (404, "schedule_not_found")
    assert await events(client) == ["ScheduleCreated", "ScheduleDeleted"]


async def test_pause_and_resume(client: Client) -> None:
    await create(client)
    paused = await client.control("POST", "/api/schedules/s1/pause", {"note": "holiday"})
    assert paused.body == {"schedule_id": "s1", "outcome": "paused"}
    shown = await describe(client)
    assert (shown["status"], shown["note"], shown["next_fire"]) == ("paused", "holiday", None)
    assert shown["paused_at"] is not None
    assert (await client.control("POST", "/api/schedules/s1/pause")).status == 200
    skipped = await trigger(client)
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "status_not_triggerable")
    resumed = await client.control("POST", "/api/schedules/s1/resume", {"note": "back"})
    assert resumed.body == {"schedule_id": "s1", "outcome": "resumed"}
    shown = await describe(client)
    assert (shown["status"], shown["note"], shown["paused_at"]) == ("active", "back", None)
    assert shown["next_fire"] is not None
    again = await client.control("POST", "/api/schedules/s1/resume")
    assert (again.status, again.body["reason"]) == (409, "schedule_not_paused")


async def test_a_trigger_starts_the_workflow(client: Client) -> None:
    await create(client, memo={"team": "a"}, search_attributes={"Tier": "gold"})
    done = await trigger(client)
    assert (done["schedule_id"], done["outcome"]) == ("s1", "triggered")
    run = (await client.control("GET", f"/api/workflows/{done['workflow_id']}")).body
    assert (run["run_id"], run["workflow_type"], run["task_queue"]) == (done["run_id"], "report", "jobs")
    assert (run["input"], run["memo"], run["search_attributes"]) == (
        ["daily"],
        {"team": "a"},
        {"Tier": "gold"},
    )
    shown = await describe(client)
    assert (shown["fires_count"], shown["latest_workflow_instance_id"]) == (1, done["workflow_id"])
    assert shown["info"]["recent_actions"][0]["workflow_id"] == done["workflow_id"]
    assert await events(client) == ["ScheduleCreated", "ScheduleTriggered"]


async def test_r09_overlap_policies(client: Client) -> None:
    await create(client)
    await trigger(client)
    skipped = await trigger(client)
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "overlap_policy_skip")
    info = (await describe(client))["info"]
    assert (info["skipped_trigger_count"], info["last_skip_reason"]) == (1, "overlap_policy_skip")
    buffered = await trigger(client, overlap_policy="buffer_one")
    assert (buffered["outcome"], buffered["buffer_depth"]) == ("buffered", 1)
    assert (await trigger(client, overlap_policy="buffer_one"))["outcome"] == "buffer_full"
    assert (await trigger(client, overlap_policy="buffer_all"))["buffer_depth"] == 2
    assert (await trigger(client, overlap_policy="allow_all"))["outcome"] == "triggered"
    wrong = await client.control("POST", "/api/schedules/s1/trigger", {"overlap_policy": "whatever"})
    assert (wrong.status, list(wrong.body["errors"])) == (422, ["overlap_policy"])


@pytest.mark.parametrize(
    ("policy", "status"), [("cancel_other", "cancelled"), ("terminate_other", "terminated")]
)
async def test_r14_the_run_before_is_ended(client: Client, policy: str, status: str) -> None:
    await create(client, overlap_policy=policy)
    first = await trigger(client)
    second = await trigger(client)
    assert second["outcome"] == "triggered"
    before = (await client.control("GET", f"/api/workflows/{first['workflow_id']}")).body
    after = (await client.control("GET", f"/api/workflows/{second['workflow_id']}")).body
    assert (before["status"], after["status"]) == (status, "pending")
    shown = await describe(client)
    assert (shown["fires_count"], shown["latest_workflow_instance_id"]) == (2, second["workflow_id"])
    worker = {"worker_id": "w", "task_queue": "jobs"}
    await client.worker("POST", "register", worker | {"runtime": "python"})
    task = (await client.worker("POST", "workflow-tasks/poll", worker)).body["task"]
    assert task["run_id"] == second["run_id"]
    assert (await client.worker("POST", "workflow-tasks/poll", worker)).body["task"] is None


async def test_r09_a_closed_run_is_no_overlap(client: Client) -> None:
    await create(client, overlap_policy="buffer_one")
    await trigger(client)
    await close_run(client)
    assert (await trigger(client))["outcome"] == "triggered"


async def test_r14_what_waits_starts_when_the_run_before_closes(client: Client) -> None:
    await create(client, overlap_policy="buffer_all")
    first = await trigger(client)
    await trigger(client)
    await trigger(client)
    await close_run(client)

    async def started(count: int) -> bool:
        return bool((await describe(client))["fires_count"] == count)

    await eventually(lambda: started(2))
    shown = await describe(client)
    assert shown["latest_workflow_instance_id"] != first["workflow_id"]
    assert len(shown["info"]["buffered_actions"]) == 1
    assert shown["info"]["recent_actions"][-1]["outcome"] == "drained"
    await close_run(client)
    await eventually(lambda: started(3))
    assert (await describe(client))["info"]["buffered_actions"] == []


async def test_a_paused_schedule_keeps_what_waits(client: Client) -> None:
    await create(client, overlap_policy="buffer_one")
    await trigger(client)
    await trigger(client)
    await client.control("POST", "/api/schedules/s1/pause")
    await close_run(client)
    assert len((await describe(client))["info"]["buffered_actions"]) == 1
    await client.control("POST", "/api/schedules/s1/resume")

    async def started() -> bool:
        return bool((await describe(client))["fires_count"] == 2)

    await eventually(started)


async def test_max_runs_ends_the_schedule(client: Client) -> None:
    await create(client, max_runs=2, overlap_policy="allow_all")
    await trigger(client)
    assert (await describe(client))["remaining_actions"] == 1
    await trigger(client)
    assert (await client.control("GET", "/api/schedules/s1")).status == 404
    answer = await client.control("GET", "/api/schedules/s1/history")
    assert answer.body["events"][-1]["event_type"] == "ScheduleDeleted"
    assert answer.body["events"][-1]["payload"]["reason"] == "max_runs_exhausted"


async def test_r10_no_runs_left(client: Client) -> None:
    await create(client, max_runs=5)
    await trigger(client)
    await client.control("PUT", "/api/schedules/s1", {"max_runs": 1})
    done = await trigger(client)
    assert (done["outcome"], done["reason"]) == ("skipped", "remaining_actions_exhausted")


async def test_a_schedule_fires_by_itself(client: Client) -> None:
    await create(client, spec={"intervals": [{"every": "PT1S"}]}, overlap_policy="allow_all", max_runs=2)

    async def over() -> bool:
        return (await client.control("GET", "/api/schedules/s1")).status == 404

    await eventually(over)
    answer = await client.control("GET", "/api/schedules/s1/history")
    fired = [event for event in answer.body["events"] if event["event_type"] == "ScheduleTriggered"]
    assert len(fired) == 2
    assert len({event["workflow_instance_id"] for event in fired}) == 2
    assert fired[0]["payload"]["fire_time"] != fired[1]["payload"]["fire_time"]


async def test_backfill(client: Client) -> None:
    await create(client, spec=HOURS_OF_NEW_YEAR, overlap_policy="buffer_one")
    body = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T03:00:00Z"}
    done = await client.control("POST", "/api/schedules/s1/backfill", body)
    assert (done.status, done.body["outcome"], done.body["fires_attempted"]) == (200, "backfill_started", 3)
    assert [row["fire_time"] for row in done.body["results"]] == [
        f"2026-01-01T0{hour}:00:00+00:00" for hour in range(3)
    ]
    assert {row["outcome"] for row in done.body["results"]} == {"started"}
    assert (await describe(client))["fires_count"] == 3
    # A request that is sent again starts nothing again.
    again = await client.control("POST", "/api/schedules/s1/backfill", body)
    assert {(row["outcome"], row["reason"]) for row in again.body["results"]} == {
        ("skipped", "already_started")
    }
    empty = await client.control(
        "POST",
        "/api/schedules/s1/backfill",
        {"start_time": "2026-01-01T00:00:01+00:00", "end_time": "2026-01-01T00:59:00+00:00"},
    )
    assert (empty.status, empty.body["results"]) == (200, [])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"start_time": "2026-01-02", "end_time": "2026-01-01"}, "invalid_time_range"),
        ({"start_time": "2026-01-01", "end_time": "2026-01-01"}, "invalid_time_range"),
        ({"start_time": "2020-01-01", "end_time": "2026-01-01"}, "invalid_time_range"),
        ({"start_time": "soon", "end_time": "2026-01-01"}, "validation_failed"),
        ({"end_time": "2026-01-01"}, "validation_failed"),
        ({"start_time": 5, "end_time": "2026-01-01"}, "validation_failed"),
    ],
)
async def test_bad_backfills(client: Client, fields: dict[str, Any], reason: str) -> None:
    await create(client, spec={"cron_expressions": ["0 * * * *"]})
    answer = await client.control("POST", "/api/schedules/s1/backfill", fields)
    assert (answer.status, answer.body["reason"]) == (422, reason)


async def test_a_backfill_stops_with_the_last_run(client: Client) -> None:
    await create(client, spec=HOURS_OF_NEW_YEAR, overlap_policy="allow_all", max_runs=2)
    body = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T09:00:00Z"}
    done = await client.control("POST", "/api/schedules/s1/backfill", body)
    assert done.body["fires_attempted"] == 2
    assert (await client.control("GET", "/api/schedules/s1")).status == 404


async def test_r16_history_pages(client: Client) -> None:
    await create(client, overlap_policy="allow_all")
    for _ in range(4):
        await trigger(client)
    first = (await client.control("GET", "/api/schedules/s1/history?limit=3")).body
    assert [event["sequence"] for event in first["events"]] == [1, 2, 3]
    assert (first["has_more"], first["next_cursor"]) == (True, 3)
    last = (await client.control("GET", "/api/schedules/s1/history?limit=3&after_sequence=3")).body
    assert [event["sequence"] for event in last["events"]] == [4, 5]
    assert (last["has_more"], last["next_cursor"]) == (False, None)
    assert last["events"][0]["workflow_run_id"]
    for limit in ("0", "-4", "junk", "100000"):
        assert (
            len((await client.control("GET", f"/api/schedules/s1/history?limit={limit}")).body["events"]) == 5
        )
    for after in ("-1", "x", "1.5"):
        bad = await client.control("GET", f"/api/schedules/s1/history?after_sequence={after}")
        assert (bad.status, bad.body["reason"]) == (422, "invalid_after_sequence")
    assert (await client.control("GET", "/api/schedules/none/history")).status == 404


async def test_r17_events_say_who_asked(another_node: OpenNode) -> None:
    async with another_node(auth_driver="token", operator_token="secret") as node:
        client = client_of(node)
        headers = {"authorization": "Bearer secret", "x-request-id": "r1"}
        body = {"schedule_id": "s1", "spec": NEVER, "action": ACTION, "paused": True}
        assert (await client.control("POST", "/api/schedules", body, **headers)).status == 201
        shown = (await client.control("GET", "/api/schedules/s1/history", **headers)).body["events"]
        assert [event["event_type"] for event in shown] == ["ScheduleCreated", "SchedulePaused"]
        for event in shown:
            context = event["payload"]["command_context"]
            assert context["auth"]["role"] == "operator"
            assert context["request"]["method"] == "POST"
            assert context["request"]["request_id"] == "r1"
        assert "secret" not in str(shown)


async def test_nothing_of_a_deleted_schedule_stays(node: Node, client: Client) -> None:
    await create(client)
    await client.control("DELETE", "/api/schedules/s1")
    keys = [f"{node.store.keys.base(p)}:timers" for p in range(node.store.keys.partitions)]
    for key in keys:
        members = await node.store.call("ZRANGE", key, 0, -1)
        assert not [name for name in members if name.startswith(b"schedule")]
