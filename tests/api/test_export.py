"""The export of a run's history: it tells the truth, and the SDK's own command accepts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import trio
from durable_workflow.history_bundle_verify import verify_bundle
from hypothesis import given
from hypothesis import strategies as st

from cluster import payloads
from cluster.workflows.history_bundle import checksum
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Client

ME = {"worker_id": "w", "task_queue": "jobs"}
HEADERS = {"x-request-id": "r-7", "x-correlation-id": "c-9", "user-agent": "tests/1"}


async def _start(client: Client, **fields: Any) -> str:
    await client.worker("POST", "register", ME | {"runtime": "python"})
    body = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs", "input": ["x"]}
    answer = await client.control("POST", "/api/workflows", body | fields, **HEADERS)
    assert answer.status == 201
    return str(answer.body["run_id"])


async def _take(client: Client, kind: str = "workflow") -> dict[str, Any]:
    task: dict[str, Any] = (await client.worker("POST", f"{kind}-tasks/poll", ME)).body["task"]
    assert task is not None
    return task


async def _complete(client: Client, *commands: dict[str, Any]) -> None:
    task = await _take(client)
    body = {"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]}
    path = f"workflow-tasks/{task['task_id']}/complete"
    answer = await client.worker("POST", path, body | {"commands": list(commands)})
    assert answer.status == 200, answer.body


async def _activity(client: Client, verb: str, **outcome: Any) -> None:
    task = await _take(client, "activity")
    claim = {"lease_owner": "w", "activity_attempt_id": task["activity_attempt_id"]}
    answer = await client.worker("POST", f"activity-tasks/{task['task_id']}/{verb}", claim | outcome)
    assert answer.status == 200, answer.body


async def _command(client: Client, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.control("POST", f"/api/workflows/w1/{path}", body, **HEADERS)
    assert answer.status < 300, answer.body
    found: dict[str, Any] = answer.body
    return found


async def _export(client: Client, run_id: str) -> dict[str, Any]:
    answer = await client.control("GET", f"/api/workflows/w1/runs/{run_id}/history/export")
    assert answer.status == 200
    report = verify_bundle(answer.body)
    assert report["findings"] == []
    found: dict[str, Any] = answer.body
    return found


async def test_a_whole_life(client: Client) -> None:
    run_id = await _start(client, search_attributes={"Ratio": 1e-7}, memo={"big": 1e22, "ü": [1.5]})
    activity = {"type": "schedule_activity", "activity_type": "a", "retry_policy": {"max_attempts": 2}}
    await _complete(client, activity, {"type": "start_timer", "delay_seconds": 600})
    await _activity(client, "fail", failure={"message": "once", "type": "Oops"})
    await _activity(client, "complete", result=1)
    signal = await _command(client, "signal/go", input=["a\u2028\x7f"])
    update = await _command(client, "update/change", input=[2])
    update_id = update["update_id"]
    await _complete(client, {"type": "complete_update", "update_id": update_id})
    await _complete(client, {"type": "start_child_workflow", "workflow_type": "c"})
    cancel = await _command(client, "cancel", reason="enough")

    bundle = await _export(client, run_id)

    assert bundle["workflow"]["status"] == "cancelled"
    assert bundle["payloads"]["arguments"]["blob"] == payloads.encode(["x"]).blob
    assert [(c["type"], c["status"]) for c in bundle["commands"]] == [
        ("start", "applied"),
        ("signal", "applied"),
        ("update", "applied"),
        ("cancel", "applied"),
    ]
    assert [c["id"] for c in bundle["commands"][1:]] == [
        body["command_id"] for body in (signal, update, cancel)
    ]
    assert [(s["name"], s["command_id"]) for s in bundle["signals"]] == [("go", signal["command_id"])]
    (changed,) = bundle["updates"]
    assert (changed["id"], changed["name"], changed["status"]) == (update_id, "change", "completed")
    assert changed["applied_at"] is not None
    (done,) = bundle["activities"]
    assert (done["status"], done["attempt_count"]) == ("completed", 2)
    assert [t["status"] for t in bundle["timers"]] == ["cancelled"]
    assert [(f["source_kind"], f["message"], f["retried"]) for f in bundle["failures"]] == [
        ("activity_execution", "once", True)
    ]
    kinds = [task["type"] for task in bundle["tasks"]]
    assert (kinds.count("activity"), kinds.count("workflow") >= 3) == (1, True)
    assert {task["status"] for task in bundle["tasks"]} <= {"completed", "cancelled"}
    assert len(bundle["links"]["children"]) == 1


async def test_an_open_run_with_a_leased_task(client: Client) -> None:
    run_id = await _start(client)
    task = await _take(client)
    signal = await _command(client, "signal/go")

    bundle = await _export(client, run_id)

    (listed,) = bundle["tasks"]
    assert (listed["id"], listed["status"], listed["lease_owner"]) == (task["task_id"], "leased", "w")
    waiting = bundle["commands"][-1]
    assert (waiting["id"], waiting["status"], waiting["applied_at"]) == (
        signal["command_id"],
        "accepted",
        None,
    )
    assert bundle["signals"] == []


async def test_failures_of_every_kind(client: Client) -> None:
    run_id = await _start(client)
    claim = {"lease_owner": "w", "workflow_task_attempt": 1, "failure": {"message": "replay", "type": "R"}}
    task = await _take(client)
    await client.worker("POST", f"workflow-tasks/{task['task_id']}/fail", claim)
    (failing,) = (await _export(client, run_id))["failures"]
    assert (failing["source_kind"], failing["message"], failing["failure_count"]) == (
        "workflow_task",
        "replay",
        1,
    )
    await _command(client, "repair")
    update = await _command(client, "update/change")
    await _complete(client, {"type": "schedule_activity", "activity_type": "a"})
    failed = {"type": "fail_update", "update_id": update["update_id"], "message": "refused"}
    await _complete(client, failed)
    await _activity(client, "fail", failure={"message": "for good"})
    await _complete(client, {"type": "fail_workflow", "message": "over"})

    bundle = await _export(client, run_id)

    assert [f["source_kind"] for f in bundle["failures"]] == [
        "workflow_update",
        "activity_execution",
        "workflow_run",
    ]
    assert [f["message"] for f in bundle["failures"]] == ["refused", "for good", "over"]
    assert [c["type"] for c in bundle["commands"]] == ["start", "repair", "update"]
    (update_item,) = bundle["updates"]
    assert (update_item["status"], update_item["failure_id"]) == ("failed", bundle["failures"][0]["id"])


async def test_a_loser_of_a_race_is_shown_as_cancelled(client: Client) -> None:
    run_id = await _start(client)

    def member(index: int) -> dict[str, Any]:
        level = {
            "parallel_group_id": "select-calls:1:2",
            "parallel_group_kind": "timer",
            "parallel_group_mode": "select",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 2,
            "parallel_group_index": index,
            "selection_member_key": f"m{index}",
            "selection_member_index": index,
            "selection_member_base_sequence": 1 + index,
            "selection_member_size": 1,
            "selection_member_kind": "timer",
        }
        return {**level, "parallel_group_path": [level]}

    timer = {"type": "start_timer"}
    await _complete(
        client,
        timer | {"delay_seconds": 0} | member(0),
        timer | {"delay_seconds": 600} | member(1),
    )
    loser = {
        "type": "cancel_selection_operation",
        "selection_group_id": "select-calls:1:2",
        "member_key": "m1",
        "member_index": 1,
        "member_base_sequence": 2,
        "member_size": 1,
        "operation_kind": "timer",
        "operation_identity": f"{run_id}-t2",
    }
    await _complete(client, loser)

    assert [t["status"] for t in (await _export(client, run_id))["timers"]] == ["fired", "cancelled"]


async def test_who_asked_is_kept_with_every_command(another_node: OpenNode) -> None:
    async with another_node(auth_driver="token", operator_token="opsec", worker_token="wsec") as node:
        as_operator = {"authorization": "Bearer opsec"}
        client = client_of(node)
        body = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs"}
        run_id = (await client.control("POST", "/api/workflows", body, **HEADERS, **as_operator)).body[
            "run_id"
        ]
        await client.control(
            "POST", f"/api/workflows/w1/runs/{run_id}/signal/go", {}, **HEADERS, **as_operator
        )
        await client.control("POST", "/api/workflows/w1/terminate", {"reason": "r"}, **as_operator)
        await client.control("POST", "/api/workflows/w1/archive", {}, **as_operator)
        path = f"/api/workflows/w1/runs/{run_id}/history"
        bundle = (await client.control("GET", f"{path}/export", **as_operator)).body
        events = (await client.control("GET", path, **as_operator)).body["events"]

    assert "opsec" not in json.dumps(bundle)
    contexts = {command["type"]: command["context"] for command in bundle["commands"]}
    assert list(contexts) == ["start", "signal", "terminate", "archive"]
    signal = contexts["signal"]
    assert signal["caller"] == {"type": "server", "label": "Standalone Server"}
    assert (signal["auth"]["status"], signal["auth"]["method"]) == ("authorized", "token")
    assert (signal["auth"]["role"], signal["auth"]["roles"]) == ("operator", ["operator"])
    assert signal["auth"]["principal"]["legacy_full_access"] is False
    request = signal["request"]
    assert (request["method"], request["path"]) == ("POST", f"/api/workflows/w1/runs/{run_id}/signal/go")
    assert (request["request_id"], request["correlation_id"]) == ("r-7", "c-9")
    assert (request["user_agent"], len(request["fingerprint"])) == ("tests/1", 64)
    assert signal["server"] == {
        "namespace": "default",
        "workflow_id": "w1",
        "command": "signal",
        "metadata": {"request_id": "r-7"},
    }
    assert bundle["commands"][1]["target_scope"] == "run"
    by_command = {event["workflow_command_id"] for event in events} - {None}
    assert by_command == {command["id"] for command in bundle["commands"]}


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_gateway_may_say_who_asks_only_where_it_is_trusted(
    another_node: OpenNode, trusted: bool
) -> None:
    said = {"x-workflow-caller-type": "gateway", "x-who": "billing", "x-workflow-auth-method": "oidc"}
    settings = {"trust_forwarded_attribution_headers": trusted, "caller_label_header": "X-Who"}
    async with another_node(**settings) as node:
        client = client_of(node)
        run_id = await _start(client)
        await client.control("POST", "/api/workflows/w1/signal/go", {}, **said)
        bundle = await _export(client, run_id)

    context = bundle["commands"][-1]["context"]
    if trusted:
        assert context["caller"] == {"type": "gateway", "label": "billing"}
        assert context["auth"]["method"] == "oidc"
    else:
        assert context["caller"] == {"type": "server", "label": "Standalone Server"}
        assert (context["auth"]["status"], context["auth"]["method"]) == ("not_configured", "none")


async def test_workers_are_not_told_who_asked(client: Client) -> None:
    await _start(client)
    await _command(client, "signal/go")
    assert "tests/1" not in json.dumps(await _take(client))


async def test_what_the_server_does_by_itself_has_no_client(client: Client) -> None:
    await _start(client)
    await _complete(client, {"type": "start_child_workflow", "workflow_type": "c"})
    child = await _take(client)
    path = f"/api/workflows/{child['workflow_id']}/runs/{child['run_id']}/history/export"
    assert (await client.control("GET", path)).body["commands"] == []


async def test_the_sdks_command_accepts_it_and_sees_a_change(client: Client, tmp_path: Path) -> None:
    run_id = await _start(client, business_key="a/\u00fc\u2028\U0001f600")
    await _complete(client, {"type": "complete_workflow"})
    answer = await client.control("GET", f"/api/workflows/w1/runs/{run_id}/history/export")
    missing = await client.control("GET", "/api/workflows/w1/runs/nothing/history/export")
    path = tmp_path / "bundle.json"
    path.write_bytes(answer.raw.body)
    found = await _verify(path)

    assert "control_plane" not in answer.body
    assert found.returncode == 0, found.stdout.decode() + found.stderr.decode()
    assert (missing.status, missing.body["reason"]) == (404, "run_not_found")
    changed = json.loads(path.read_text())
    changed["commands"][0]["context"]["caller"]["label"] = "somebody else"
    path.write_text(json.dumps(changed))
    assert (await _verify(path)).returncode != 0


async def _verify(bundle: Path) -> CompletedProcess[bytes]:
    """What the SDK's own command says about a bundle."""
    command = Path(sys.executable).with_name("durable-workflow-history-bundle-verify")
    return await trio.run_process(
        [str(command), str(bundle)], capture_stdout=True, capture_stderr=True, check=False
    )


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_VALUES)
def test_any_json_has_the_checksum_the_sdk_expects(value: Any) -> None:
    bundle = {"workflow": {"value": value}}
    integrity = {
        "canonicalization": "json-recursive-ksort-v1",
        "checksum_algorithm": "sha256",
        "checksum": checksum(bundle),
    }
    report = verify_bundle({**bundle, "integrity": integrity})
    assert not [f for f in report["findings"] if f["rule"].startswith("integrity.checksum")]
