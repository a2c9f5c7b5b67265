"""One tenant cannot tell another tenant's ids from ids that never were, on any route, nor change a thing.

The routing table gives the routes; a route with an id in its path that is not tried here fails the test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import orjson

from cluster.ids import new_run_id, partition_of_run
from nodes.api.routes import Plane, Route
from nodes.api.table import ROUTES
from nodes.node import Node
from tests.unit.api.fakes import Answer, Client

VICTIM, RIVAL = {"x-namespace": "victim"}, {"x-namespace": "rival"}
WITH_IDS = [
    route for route in ROUTES if "{" in route.template and not route.template.startswith("/api/namespaces")
]
CLAIM = {"lease_owner": "{worker_id}", "workflow_task_attempt": 1}
ATTEMPT = {"lease_owner": "{worker_id}", "activity_attempt_id": "{attempt_id}"}
QUERY = {"lease_owner": "{worker_id}", "query_task_attempt": 1}
LIMITS = {"activity_tasks": {"max_active_leases_per_queue": 7}}

BODIES: dict[str, dict[str, Any]] = {
    "workflow-tasks/{task_id}/complete": {**CLAIM, "commands": [{"type": "complete_workflow"}]},
    "workflow-tasks/{task_id}/fail": {**CLAIM, "failure": {"message": "no"}},
    "workflow-tasks/{task_id}/heartbeat": CLAIM,
    "workflow-tasks/{task_id}/history": {**CLAIM, "next_history_page_token": "MA=="},
    "activity-tasks/{task_id}/complete": {**ATTEMPT, "result": None},
    "activity-tasks/{task_id}/fail": {**ATTEMPT, "failure": {"message": "no"}},
    "activity-tasks/{task_id}/heartbeat": ATTEMPT,
    "query-tasks/{query_task_id}/complete": {**QUERY, "result": None},
    "query-tasks/{query_task_id}/fail": {**QUERY, "failure": {"message": "no"}},
    "update-validation-tasks/{task_id}/approve": {
        "lease_owner": "{worker_id}",
        "update_validation_task_attempt": 1,
    },
    "update-validation-tasks/{task_id}/reject": {
        "lease_owner": "{worker_id}",
        "update_validation_task_attempt": 1,
        "failure": {"message": "no"},
    },
    "registrations/{worker_id}/deregister": {"registration_token": "guessed"},
    "sessions/{session_id}/heartbeat": {"worker_id": "{worker_id}"},
    "flows/{flow_id}/stop": {"type": "terminate"},
    "flows/{flow_id}/channels/{channel}": {"value": 1},
    "flows/{flow_id}/rpc/{rpc_name}": {"input": 1, "timeout_seconds": 1},
    "build-ids/drain": {"build_id": None},
    "build-ids/resume": {"build_id": None},
    "admission/limits/{task_queue}": LIMITS,
    "schedules/{schedule_id}/backfill": {
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-02T00:00:00Z",
    },
    "schedules/{schedule_id}": {"note": "taken"},
}
"""Well-formed bodies by the end of a route's path, so that answers are about ids and not about fields."""


@dataclass(frozen=True)
class Ids:
    """What stands in paths and bodies."""

    known: dict[str, str]

    def fill(self, text: str) -> str:
        for name, value in self.known.items():
            text = text.replace(f"{{{name}}}", value)
        return text


async def begin(client: Client) -> Ids:
    """Something of every kind in the victim's namespace; what runs there is leased to its worker."""
    for name in ("victim", "rival"):
        await client.control("POST", "/api/namespaces", {"name": name})

    async def control(method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await client.control(method, path, body, **VICTIM)
        assert answer.status < 300, answer.body
        found: dict[str, Any] = answer.body
        return found

    async def worker(path: str, body: Any) -> dict[str, Any]:
        answer = await client.worker("POST", path, body, **VICTIM)
        assert answer.status < 300, answer.body
        found: dict[str, Any] = answer.body
        return found

    me = {"worker_id": "worker-1", "task_queue": "jobs"}
    await worker("register", {**me, "runtime": "python"})
    session = await worker("sessions", {**me, "session_id": "session-1"})
    started = await control(
        "POST", "/api/workflows", {"workflow_id": "workflow-1", "workflow_type": "t", "task_queue": "jobs"}
    )
    task = (await worker("workflow-tasks/poll", me))["task"]
    await control(
        "POST", "/api/activities", {"activity_id": "activity-1", "activity_type": "a", "task_queue": "jobs"}
    )
    activity = (await worker("activity-tasks/poll", me))["task"]
    action = {"workflow_type": "t", "task_queue": "jobs"}
    await control("POST", "/api/schedules", {"schedule_id": "schedule-1", "spec": {}, "action": action})
    await control("POST", "/api/search-attributes", {"name": "Customer", "type": "keyword"})
    await control("POST", "/api/flows", {"flow_id": "flow-1", "flow_type": "Order", "start_step": "begin"})
    await control("PUT", "/api/admission/limits/jobs", LIMITS)
    return Ids(
        {
            "workflow_id": "workflow-1",
            "run_id": started["run_id"],
            "task_id": task["task_id"],
            "activity_task_id": activity["task_id"],
            "attempt_id": activity["activity_attempt_id"],
            "activity_id": "activity-1",
            "worker_id": "worker-1",
            "session_id": session.get("session_id", "session-1"),
            "schedule_id": "schedule-1",
            "flow_id": "flow-1",
            "task_queue": "jobs",
            "name": "Customer",
            "query_task_id": task["task_id"],
            "signal_name": "s",
            "update_name": "u",
            "query_name": "q",
            "channel": "c",
            "rpc_name": "r",
            "adapter": "orders",
        }
    )


def never_were(ids: Ids, node: Node) -> Ids:
    """Ids of the same form that nobody ever had."""
    run = ids.known["run_id"]
    partition = partition_of_run(run)
    assert partition is not None
    other = new_run_id(partition, node.clock.now_ms(), Random())
    made = {name: value.replace(run, other) for name, value in ids.known.items()}
    activity_run = ids.known["activity_task_id"].split("-")[0]
    made |= {name: value.replace(activity_run, other) for name, value in made.items()}
    names = [
        "workflow_id",
        "activity_id",
        "worker_id",
        "session_id",
        "schedule_id",
        "flow_id",
        "task_queue",
        "name",
    ]
    return Ids(made | {name: f"{ids.known[name]}-none".replace("Customer-none", "Nobody") for name in names})


async def _ask(client: Client, route: Route, ids: Ids, namespace: dict[str, str]) -> Answer:
    path, body = route.template, None
    if route.method != "GET":
        endings = sorted((end for end in BODIES if path.endswith(end)), key=len)
        body = BODIES[endings[-1]] if endings else {}
    if path.startswith("/api/worker/activity-tasks"):
        path = path.replace("{task_id}", "{activity_task_id}")
    path = ids.fill(path)
    assert "{" not in path, f"{path}: no id is known to try here"
    wire = None if body is None else orjson.loads(ids.fill(orjson.dumps(body).decode()))
    if route.plane is Plane.WORKER:
        return await client.worker(route.method, path.removeprefix("/api/worker/"), wire, **namespace)
    return await client.control(route.method, path, wire, **namespace)


def _shape(answer: Answer, ids: Ids) -> tuple[int, str]:
    """An answer without the ids that were asked for, and without times."""
    text = orjson.dumps(answer.body, option=orjson.OPT_SORT_KEYS).decode()
    for value in sorted(ids.known.values(), key=len, reverse=True):
        if len(value) > 1:
            text = re.sub(rf"(?<![\w-]){re.escape(value)}(?![\w-])", "ID", text)
    text = re.sub(r'"version":\d+', "VERSION", text)
    return answer.status, re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)", "TIME", text)


async def everything(client: Client, ids: Ids) -> dict[str, Any]:
    """What the victim sees of its own."""
    seen = {}
    for path in (
        "workflows/{workflow_id}",
        "workflows/{workflow_id}/runs/{run_id}/history",
        "activities/{activity_id}",
        "schedules/{schedule_id}",
        "flows/{flow_id}",
        "flows/{flow_id}/steps",
        "workers/{worker_id}",
        "search-attributes",
        "admission/limits/{task_queue}",
    ):
        answer = await client.control("GET", ids.fill(f"/api/{path}"), **VICTIM)
        assert answer.status == 200, (path, answer.body)
        seen[path] = answer.body
    return seen


async def test_ids_of_another_tenant_are_as_unknown_as_ids_that_never_were(
    node: Node, client: Client
) -> None:
    ids = await begin(client)
    nobody = never_were(ids, node)
    before = await everything(client, ids)
    told = []
    for route in WITH_IDS:
        stolen = _shape(await _ask(client, route, ids, RIVAL), ids)
        unknown = _shape(await _ask(client, route, nobody, RIVAL), nobody)
        if stolen != unknown:
            told.append((route.method, route.template, stolen, unknown))
    assert not told, "\n".join(map(str, told))
    assert await everything(client, ids) == before
