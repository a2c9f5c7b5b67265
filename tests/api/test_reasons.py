"""Every reason of the contract's index can be met, with its status, envelope and fields.

``INDEX`` is that index (server-behaviour, Appendix A). Each reason is either provoked here, or its
test elsewhere is named, or it is said why it cannot occur.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from cluster import payloads
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import CONTROL, WORKER, Answer, Client

TOP = Path(__file__).parents[1]

INDEX = """
unauthorized | 401 | C W |
forbidden | 403 | C W | role allowed_roles
server_error | 500 | C W |
payload_too_large | 413 | C W | limit
unsupported_media_type | 415 | C W | accepted_content_types
malformed_json | 400 | C W | json_error
missing_control_plane_version | 400 | C | supported_version requested_version remediation
unsupported_control_plane_version | 400 | C | supported_version requested_version remediation
missing_protocol_version | 400 | W | error supported_version requested_version remediation
unsupported_protocol_version | 400 | W | error supported_version requested_version remediation
not_found | 404 | C W |
method_not_allowed | 405 | C W |
validation_failed | 422 | C W | errors validation_errors
namespace_not_found | 404 | C W | namespace remediation
namespace_already_exists | 409 | C | namespace
instance_not_found | 404 | C | workflow_id
run_not_found | 404 | C | workflow_id run_id
duplicate_not_allowed | 409 | C | outcome
workflow_id_reserved_in_namespace | 409 | C | workflow_id
historical_run_command_rejected | 409 | C | run_id target_scope
run_not_active | 409 | C | outcome rejection_reason
instance_not_started | 409 | C |
run_not_closed | 409 | C |
unknown_signal | 404 | C |
unknown_update | 404 | C |
rejected_unknown_query | 404 | C | query_name
invalid_signal_arguments | 422 | C | validation_errors
invalid_update_arguments | 422 | C | validation_errors
invalid_query_arguments | 422 | C | validation_errors
structural_limit_exceeded | 422 | W | limit_kind current_value configured_limit
query_worker_unavailable | 409 | C | query_name
query_rejected | 409 | C | query_name
query_task_queue_full | 429 | C | query_name
query_task_queue_unavailable | 503 | W | task namespace task_queue poll_status
query_worker_timeout | 504 | C | query_name
query_task_not_found | 404 | W | query_task_id
query_task_not_leased | 409 | W | query_task_id
query_task_attempt_mismatch | 409 | W | current_attempt
worker_not_registered | 412 | W | worker_id
worker_not_found | 404 | C | worker_id
workflow_definition_changed | 409 | W | workflow_type remediation
task_queue_mismatch | 409 | W | registered_task_queue requested_task_queue
build_id_mismatch | 409 | W | registered_build_id requested_build_id
worker_draining | 409 | W | task poll_status
task_queue_admission_unavailable | 200 | W | task poll_status
task_not_found | 404 | W | task_id
attempt_not_found | 404 | W | task_id activity_attempt_id
task_not_leased | 409 | W | task_id
task_mismatch | 409 | W | task_id
lease_owner_mismatch | 409 | W | lease_owner
lease_expired | 409 | W | lease_owner lease_expires_at task_status
workflow_task_attempt_mismatch | 409 | W | current_attempt
run_closed | 409 | W | stop_reason can_continue run_status
stale_attempt | 409 | W | recorded
run_cancelled | 409 | W | recorded cancel_requested can_continue
run_terminated | 409 | W | recorded cancel_requested can_continue
run_already_closed | 409 | W |
run_timed_out | 409 | W | task_id
invalid_commands | 409 | W | task_id
invalid_page_token | 400 | W | task_id
history_not_available | 404 | W | task_id
schedule_not_found | 404 | C |
schedule_already_exists | 409 | C | schedule_id
memo_too_large | 422 | C | limit
invalid_time_range | 422 | C |
invalid_after_sequence | 422 | C |
attribute_not_found | 404 | C |
attribute_already_exists | 409 | C | name type
name_reserved | 409 | C |
system_attribute | 409 | C |
search_attribute_limit_reached | 422 | C | limit
external_storage_not_configured | 422 | C |
external_storage_disabled | 422 | C |
storage_driver_unavailable | 422 | C |
"""
ROWS: Final = {
    reason.strip(): (int(status), planes.split(), fields.split())
    for reason, status, planes, fields in (line.split("|") for line in INDEX.strip().splitlines())
}

ELSEWHERE = {
    "unauthorized": "unit/api/test_roles.py::test_nobody_passes_without_a_credential",
    "forbidden": "unit/api/test_roles.py::test_a_role_that_may_not_is_told_who_may",
    "server_error": "unit/api/test_roles.py::test_a_token_driver_without_tokens_is_a_server_error",
    "query_task_queue_unavailable": "api/test_queries.py::test_a_store_that_is_away_is_no_empty_queue",
    "task_queue_admission_unavailable": (
        "cluster/admission/test_outage.py::test_a_poll_that_cannot_ask_is_unavailable"
    ),
    "query_task_queue_full": "cluster/queries/test_lines.py::test_a_storm_meets_its_limit_and_leaves_nothing",
    "query_task_not_leased": "api/test_queries.py::test_a_query_is_answered_by_a_worker_on_another_node",
    "rejected_unknown_query": "api/test_queries.py::test_a_worker_that_fails_a_query",
    "query_rejected": "api/test_queries.py::test_a_worker_that_fails_a_query",
    "query_task_attempt_mismatch": "api/test_queries.py::test_the_guard_of_answers",
    "lease_expired": (
        "unit/workflows/test_guards.py::test_expiry_comes_before_the_owner_and_the_owner_before_the_attempt"
    ),
    "run_timed_out": (
        "unit/workflows/test_workflow_tasks.py::test_a_completion_after_the_deadline_times_the_run_out"
    ),
}
IMPOSSIBLE = {
    "instance_not_started": "a start is one commit: a workflow without a started run cannot be seen",
    "run_already_closed": "who asks and whether the run is open is decided in one commit, as run_closed",
    "history_not_available": "a history lies beside its run and goes with it, then the task is not found",
    "external_storage_disabled": "no namespace can have external storage that could be disabled",
}

ME = {"worker_id": "w", "task_queue": "jobs"}
LEASE = {"lease_owner": "w", "workflow_task_attempt": 1}
DONE = {"commands": [{"type": "complete_workflow"}]}
FINGERPRINT = {"supported_workflow_types": ["t"], "workflow_definition_fingerprints": {"t": "sha256:1"}}
HANDLERS = {
    "supported_workflow_types": ["t"],
    "workflow_command_contracts": {
        "t": {
            "signals": ["go"],
            "updates": ["change"],
            "queries": ["look"],
            **{
                f"{kind}_contracts": [
                    {"name": name, "parameters": [{"name": "x", "position": 0, "required": True}]}
                ]
                for kind, name in (("signal", "go"), ("update", "change"), ("query", "look"))
            },
        }
    },
}
SCHEDULE = {"schedule_id": "s1", "spec": {}, "action": {"workflow_type": "t"}}
SETTINGS = {
    "max_payload_bytes": 60_000,
    "max_memo_bytes": 100,
    "max_search_attributes": 1,
    "max_pending_activities": 2,
    "query_task_timeout": 1,
}


class Stage:
    """What most reasons need: a workflow, a worker, a leased task."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def register(self, **fields: Any) -> Answer:
        return await self.client.worker("POST", "register", ME | {"runtime": "python"} | fields)

    async def start(self, **fields: Any) -> str:
        body = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs"} | fields
        return str((await self.client.control("POST", "/api/workflows", body)).body.get("run_id"))

    async def task(self, kind: str = "workflow") -> dict[str, Any]:
        await self.register()
        found: dict[str, Any] = (await self.client.worker("POST", f"{kind}-tasks/poll", ME)).body["task"]
        return found

    async def leased(self, **fields: Any) -> str:
        await self.start(**fields)
        return str((await self.task())["task_id"])

    async def complete(self, task_id: str, *commands: dict[str, Any], **claim: Any) -> Answer:
        body = {**LEASE, **({"commands": list(commands)} if commands else DONE), **claim}
        return await self.client.worker("POST", f"workflow-tasks/{task_id}/complete", body)

    async def attempt(self) -> dict[str, Any]:
        await self.complete(await self.leased(), {"type": "schedule_activity", "activity_type": "a"})
        return await self.task("activity")

    async def end(self, task: dict[str, Any], **claim: Any) -> Answer:
        body = {"lease_owner": "w", "activity_attempt_id": task["activity_attempt_id"], "result": 1}
        return await self.client.worker("POST", f"activity-tasks/{task['task_id']}/complete", body | claim)

    async def tell(self, path: str, body: Any = None, method: str = "POST") -> Answer:
        return await self.client.control(method, f"/api/{path}", body)

    async def poll(self, kind: str = "workflow", **fields: Any) -> Answer:
        return await self.client.worker("POST", f"{kind}-tasks/poll", ME | fields)


Provoke = Callable[[Stage, str, str], Awaitable[Answer]]
PROVOKE: dict[str, Provoke] = {}


def provokes(*reasons: str) -> Callable[[Provoke], Provoke]:
    def keep(provoke: Provoke) -> Provoke:
        PROVOKE.update(dict.fromkeys(reasons, provoke))
        return provoke

    return keep


def _place(plane: str) -> tuple[str, dict[str, str]]:
    return ("/api/workflows", CONTROL) if plane == "C" else ("/api/worker/register", WORKER)


@provokes("payload_too_large", "unsupported_media_type", "malformed_json")
async def _bodies(stage: Stage, plane: str, reason: str) -> Answer:
    path, headers = _place(plane)
    kind = "text/plain" if reason == "unsupported_media_type" else "application/json"
    body = b"x" * 70_000 if reason == "payload_too_large" else b"{"
    return await stage.client.send("POST", path, headers=headers | {"content-type": kind}, body=body)


@provokes(
    "missing_control_plane_version",
    "unsupported_control_plane_version",
    "missing_protocol_version",
    "unsupported_protocol_version",
)
async def _versions(stage: Stage, plane: str, reason: str) -> Answer:
    path, headers = _place(plane)
    sent = {} if reason.startswith("missing") else dict.fromkeys(headers, "999")
    return await stage.client.send("POST", path, {}, headers=sent)


@provokes("not_found", "method_not_allowed")
async def _paths(stage: Stage, plane: str, reason: str) -> Answer:
    path, headers = _place(plane)
    where = f"{path}/no/such/path" if reason == "not_found" else path
    return await stage.client.send("PATCH", where, headers=headers)


@provokes("validation_failed")
async def _fields(stage: Stage, plane: str, _reason: str) -> Answer:
    path, headers = _place(plane)
    return await stage.client.send("POST", path, {}, headers=headers)


@provokes("namespace_not_found")
async def _namespace(stage: Stage, plane: str, _reason: str) -> Answer:
    path, headers = _place(plane)
    return await stage.client.send("POST", path, {}, headers=headers | {"x-namespace": "nowhere"})


@provokes("namespace_already_exists")
async def _namespace_twice(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("namespaces", {"name": "Default"})


@provokes("instance_not_found")
async def _no_instance(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("workflows/none", method="GET")


@provokes("run_not_found")
async def _no_run(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.start()
    return await stage.tell("workflows/w1/runs/none", method="GET")


@provokes("duplicate_not_allowed")
async def _duplicate(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.start()
    return await stage.tell("workflows", {"workflow_type": "t", "workflow_id": "w1"})


@provokes("workflow_id_reserved_in_namespace")
async def _reserved(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.start()
    await stage.tell("namespaces", {"name": "other"})
    body = {"workflow_type": "t", "workflow_id": "w1"}
    return await stage.client.control("POST", "/api/workflows", body, **{"x-namespace": "other"})


@provokes("historical_run_command_rejected")
async def _historical(stage: Stage, _plane: str, _reason: str) -> Answer:
    first = await stage.start()
    await stage.complete((await stage.task())["task_id"], {"type": "continue_as_new"})
    return await stage.tell(f"workflows/w1/runs/{first}/cancel", {})


@provokes("run_not_active")
async def _closed(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.start()
    await stage.tell("workflows/w1/cancel", {})
    return await stage.tell("workflows/w1/signal/go", {})


@provokes("run_not_closed")
async def _open(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.start()
    return await stage.tell("workflows/w1/archive", {})


@provokes("unknown_signal", "unknown_update")
async def _unknown_handler(stage: Stage, _plane: str, reason: str) -> Answer:
    await stage.register(**HANDLERS)
    await stage.start()
    return await stage.tell(f"workflows/w1/{reason.partition('_')[2]}/other", {"input": [1]})


@provokes("invalid_signal_arguments", "invalid_update_arguments", "invalid_query_arguments")
async def _arguments(stage: Stage, _plane: str, reason: str) -> Answer:
    await stage.register(**HANDLERS)
    await stage.start()
    kind = reason.split("_")[1]
    name = {"signal": "go", "update": "change", "query": "look"}[kind]
    for good in ([1], {"x": 1}):
        assert (await stage.tell(f"workflows/w1/{kind}/{name}", {"input": good})).status in (200, 202, 504)
    for bad in ([], [1, 2], {"y": 1}, {"codec": "avro", "blob": payloads.encode([1, 2]).blob}):
        assert (await stage.tell(f"workflows/w1/{kind}/{name}", {"input": bad})).status == 422
    return await stage.tell(f"workflows/w1/{kind}/{name}", {})


@provokes("structural_limit_exceeded")
async def _limit(stage: Stage, _plane: str, _reason: str) -> Answer:
    activity = {"type": "schedule_activity", "activity_type": "a"}
    return await stage.complete(await stage.leased(), activity, activity, activity)


@provokes("query_worker_unavailable")
async def _no_worker(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.start()
    return await stage.tell("workflows/w1/query/look", {})


@provokes("query_worker_timeout")
async def _slow_worker(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.register()
    await stage.start()
    return await stage.tell("workflows/w1/query/look", {})


@provokes("query_task_not_found")
async def _no_query(stage: Stage, _plane: str, _reason: str) -> Answer:
    claim = {"lease_owner": "w", "query_task_attempt": 1, "result": 1}
    return await stage.client.worker("POST", "query-tasks/none/complete", claim)


@provokes("worker_not_registered")
async def _stranger(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.poll()


@provokes("worker_not_found")
async def _no_such_worker(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("workers/none", method="GET")


@provokes("workflow_definition_changed")
async def _changed(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.register(**FINGERPRINT)
    return await stage.register(
        **FINGERPRINT | {"workflow_definition_fingerprints": {"t": "sha256:2"}},
    )


@provokes("task_queue_mismatch")
async def _other_queue(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.register()
    return await stage.poll(task_queue="other")


@provokes("build_id_mismatch")
async def _other_build(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.register(build_id="a")
    return await stage.poll(build_id="b")


@provokes("worker_draining")
async def _draining(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.register(build_id="a")
    await stage.tell("task-queues/jobs/build-ids/drain", {"build_id": "a"})
    return await stage.poll()


@provokes("task_not_found")
async def _no_task(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.complete("none")


@provokes("attempt_not_found")
async def _no_attempt(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.end(await stage.attempt(), activity_attempt_id="none")


@provokes("task_mismatch")
async def _another_attempt(stage: Stage, _plane: str, _reason: str) -> Answer:
    activity = {"type": "schedule_activity", "activity_type": "a"}
    await stage.complete(await stage.leased(), activity, activity)
    first, second = await stage.task("activity"), await stage.task("activity")
    return await stage.end(first, activity_attempt_id=second["activity_attempt_id"])


@provokes("task_not_leased")
async def _not_leased(stage: Stage, _plane: str, _reason: str) -> Answer:
    task_id = await stage.leased()
    await stage.complete(task_id, {"type": "start_timer", "delay_seconds": 60})
    return await stage.complete(task_id)


@provokes("lease_owner_mismatch")
async def _other_owner(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.complete(await stage.leased(), lease_owner="v")


@provokes("workflow_task_attempt_mismatch")
async def _other_attempt(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.complete(await stage.leased(), workflow_task_attempt=2)


@provokes("run_closed")
async def _task_of_closed(stage: Stage, _plane: str, _reason: str) -> Answer:
    task_id = await stage.leased()
    await stage.tell("workflows/w1/cancel", {})
    return await stage.complete(task_id)


@provokes("stale_attempt")
async def _stale(stage: Stage, _plane: str, _reason: str) -> Answer:
    task = await stage.attempt()
    await stage.end(task)
    return await stage.end(task)


@provokes("run_cancelled", "run_terminated")
async def _stopped(stage: Stage, _plane: str, reason: str) -> Answer:
    task = await stage.attempt()
    await stage.tell(f"workflows/w1/{'cancel' if reason == 'run_cancelled' else 'terminate'}", {})
    return await stage.end(task)


@provokes("invalid_commands")
async def _two_ends(stage: Stage, _plane: str, _reason: str) -> Answer:
    end = {"type": "complete_workflow"}
    return await stage.complete(await stage.leased(), end, end)


@provokes("invalid_page_token")
async def _token(stage: Stage, _plane: str, _reason: str) -> Answer:
    task_id = await stage.leased()
    body = {**LEASE, "next_history_page_token": "!"}
    return await stage.client.worker("POST", f"workflow-tasks/{task_id}/history", body)


@provokes("schedule_not_found")
async def _no_schedule(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("schedules/none", method="GET")


@provokes("schedule_already_exists")
async def _schedule_twice(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.tell("schedules", SCHEDULE)
    return await stage.tell("schedules", SCHEDULE)


@provokes("memo_too_large")
async def _memo(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("schedules", SCHEDULE | {"memo": {"x": "y" * 200}})


@provokes("invalid_time_range")
async def _range(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.tell("schedules", SCHEDULE)
    body = {"start_time": "2026-01-02T00:00:00Z", "end_time": "2026-01-01T00:00:00Z"}
    return await stage.tell("schedules/s1/backfill", body)


@provokes("invalid_after_sequence")
async def _after(stage: Stage, _plane: str, _reason: str) -> Answer:
    await stage.tell("schedules", SCHEDULE)
    return await stage.tell("schedules/s1/history?after_sequence=x", method="GET")


@provokes("attribute_not_found")
async def _no_attribute(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("search-attributes/None", method="DELETE")


@provokes("attribute_already_exists", "search_attribute_limit_reached", "name_reserved")
async def _attribute(stage: Stage, _plane: str, reason: str) -> Answer:
    await stage.tell("search-attributes", {"name": "Tier", "type": "keyword"})
    names = {"attribute_already_exists": "Tier", "name_reserved": "Status"}
    return await stage.tell("search-attributes", {"name": names.get(reason, "More"), "type": "keyword"})


@provokes("system_attribute")
async def _system(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("search-attributes/Status", method="DELETE")


@provokes("external_storage_not_configured")
async def _storage(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("storage/test", {"small_payload_bytes": 1, "large_payload_bytes": 1})


@provokes("storage_driver_unavailable")
async def _driver(stage: Stage, _plane: str, _reason: str) -> Answer:
    return await stage.tell("namespaces/default/external-storage", {"driver": "s3"}, "PUT")


@pytest.mark.parametrize("reason", ROWS)
async def test_a_reason_can_be_met(another_node: OpenNode, reason: str) -> None:
    if reason in IMPOSSIBLE or reason in ELSEWHERE:
        return
    status, planes, fields = ROWS[reason]
    async with another_node(**SETTINGS) as node:
        stage = Stage(client_of(node))
        for plane in planes:
            answer = await PROVOKE[reason](stage, plane, reason)
            assert (answer.status, answer.body.get("reason")) == (status, reason)
            assert answer.body.get("message") or answer.body.get("error")
            assert set(fields) <= answer.body.keys()
            assert ("protocol_version" in answer.body) == (plane == "W")
            versions = {"x-durable-workflow-protocol-version", "x-durable-workflow-control-plane-version"}
            assert len(versions & answer.headers.keys()) == 1


def test_every_reason_is_accounted_for() -> None:
    kept = [set(PROVOKE), set(ELSEWHERE), set(IMPOSSIBLE)]
    assert set.union(*kept) == set(ROWS)
    assert sum(map(len, kept)) == len(ROWS)
    for reason, place in ELSEWHERE.items():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (TOP / path).read_text(), f"{reason}: {place}"
