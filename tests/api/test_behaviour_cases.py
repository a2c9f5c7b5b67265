"""Behaviours of the workflow plane by their numbers, on a real node.

A test here is named by the number of its case. COVERED says which other test shows a case,
NOT_COVERED why none does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cluster import payloads
from cluster.settings import Settings
from nodes.node import Node
from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import CONTROL, WORKER, Answer, Client
from tests.waiting import eventually

TOP = Path(__file__).parents[2]
ME = {"worker_id": "w", "task_queue": "jobs"}
START = {"workflow_type": "t", "workflow_id": "w1", "task_queue": "jobs", "input": ["x"]}

ALL = """
A01 A02 A04 A05 A06 A08 A09 A10 A12 A13 A14 B01 B02 B04 B05 B06 B08 B09 C01 C02 C04 C05 C06 C08 C09 C10 C12
D01 D02 D04 D05 D06 D08 D09 E01 E02 E04 E05 E06 E08 E09 E10 E12 E13 E14 E16 E17
F01 F02 F04 F05 F06 F08 F09 F10 F12 F13 F14 F16 F17 G01 G02 G04 G05 G06
H01 H02 H04 H05 H06 H08 H09 H10 H12 H13 H14 I01 I02 I04 I05 I06 I08 I09 I10 I12 I13 I14
J01 J02 J04 J05 J06 J08 K01 K02 K04 K05 K06 K08 K09 K10 L01 L02 L04 L05 L06 L08
M01 M02 M04 M05 M06 M08 M09 M10 M12 M13 M14 M16 N01 N02 N04 N05 N06
O01 O02 O04 O05 O06 O08 O09 O10 O12 O13 O14 P01 P02 P04 P05 P06
Q01 Q02 Q04 Q05 Q06 Q08 Q09 Q10 Q12 Q13 Q14 Q16 Q17 Q18 Q20 Q21 Q22 Q24
R01 R02 R04 R05 R06 R08 R09 R10 R12 R13 R14 R16 R17 S01 S02 S03 S04 S05 S06 S07 S08 S09
T01 T02 T04 T05 T06 T08 T09 T10 U01 U02 U04 U05 U06 U08 U09 V01 V02 V03 V04 V05 W01 W02 W03 W04
X01 X02 X04 X05 X06 Y01 Y02
"""

_ORDER = "unit/api/test_order.py::"
_ROLES = "unit/api/test_roles.py::"
_NAMES = "unit/api/test_namespaces.py::"
_WORKERS = "unit/api/test_workers.py::"
_TASKS = "unit/api/test_tasks.py::"
_WORKFLOWS = "unit/api/test_workflows.py::"
_SELF = "unit/api/test_discovery.py::"
_FLEET = "api/test_worker_fleet.py::"
_BUILDS = "api/test_build_ids.py::"
_POLLS = "cluster/queues/test_poll_requests.py::"
_QUEUES = "api/test_task_queues.py::"
_QUERIES = "api/test_queries.py::"
_CARE = "api/test_care.py::"
_SYSTEM = "api/test_system.py::"
_SCHEDULES = "api/test_schedules.py::"
_ATTRIBUTES = "api/test_search_attributes.py::"
_BRIDGES = "api/test_bridges.py::"
_GUARDS = "unit/workflows/test_guards.py::"

COVERED = {
    "A04": _ROLES + "test_nobody_passes_without_a_credential",
    "A05": _ROLES + "test_a_token_driver_without_tokens_is_a_server_error",
    "A06": _ROLES + "test_signatures_cover_the_raw_body",
    "A08": _ROLES + "test_a_signature_driver_without_keys_is_a_server_error",
    "A09": _ROLES + "test_nobody_passes_without_a_credential",
    "A12": _ROLES + "test_public_routes_ask_for_nothing",
    "A13": _ORDER + "test_authentication_comes_before_version_and_namespace",
    "A14": _ORDER + "test_authentication_comes_before_version_and_namespace",
    "B01": _ROLES + "test_a_role_passes_exactly_where_the_table_says",
    "B02": _ROLES + "test_a_role_passes_exactly_where_the_table_says",
    "B04": _ROLES + "test_the_shared_token_alone_opens_everything",
    "B05": _ROLES + "test_beside_a_role_token_the_shared_one_is_an_admin",
    "B06": _ORDER + "test_a_wrong_role_learns_nothing_about_namespaces",
    "B08": _ROLES + "test_a_role_that_may_not_is_told_who_may",
    "C01": _ORDER + "test_authentication_comes_before_version_and_namespace",
    "C02": _ORDER + "test_a_wrong_role_learns_nothing_about_namespaces",
    "C04": _ORDER + "test_an_unknown_namespace_comes_before_the_fields",
    "C05": _ORDER + "test_the_version_comes_before_the_namespace",
    "C06": _ORDER + "test_the_version_comes_before_the_namespace",
    "C08": _ORDER + "test_the_version_comes_before_the_namespace",
    "C10": _ORDER + "test_unknown_paths_and_methods",
    "D01": _ORDER + "test_body_guards_come_first",
    "D04": _ORDER + "test_body_guards_come_first",
    "D06": _SCHEDULES + "test_d06_a_large_memo_is_refused",
    "E01": _NAMES + "test_create_and_list",
    "E02": _NAMES + "test_create_and_list",
    "E04": _NAMES + "test_a_name_is_taken_in_any_case",
    "E06": _NAMES + "test_field_errors_are_reported_together",
    "E08": _NAMES + "test_describe_and_update",
    "E09": _NAMES + "test_describe_and_update",
    "E10": _ORDER + "test_where_the_namespace_comes_from",
    "E12": _NAMES + "test_the_configured_default_is_created_and_used",
    "E13": _ORDER + "test_an_unknown_namespace_comes_before_the_fields",
    "E14": _NAMES + "test_administration_needs_no_context_namespace",
    "F01": _WORKERS + "test_registering",
    "F02": _WORKERS + "test_an_id_is_made_when_none_is_given",
    "F04": _WORKERS + "test_wrong_fields",
    "F05": _WORKERS + "test_a_registration_replaces_the_old_one",
    "F06": _FLEET + "test_a_worker_is_shown_as_it_registered",
    "F08": _WORKERS + "test_fingerprints_are_kept_while_their_type_is_advertised",
    "F09": _WORKERS + "test_fingerprints_are_kept_while_their_type_is_advertised",
    "F10": _WORKERS + "test_namespaces_do_not_share_workers",
    "F12": _WORKERS + "test_heartbeats",
    "F13": _WORKERS + "test_heartbeats",
    "F14": _WORKERS + "test_wrong_fields",
    "F17": _WORKERS + "test_wrong_fields",
    "G01": _FLEET + "test_a_worker_is_shown_as_it_registered",
    "G02": _FLEET + "test_filters",
    "G04": _FLEET + "test_silence_makes_a_worker_stale",
    "G05": _FLEET + "test_a_worker_is_shown_as_it_registered",
    "G06": _FLEET + "test_an_operator_forgets_a_worker",
    "H01": _BUILDS + "test_no_workers",
    "H02": _BUILDS + "test_entries_and_their_order",
    "H04": _BUILDS + "test_entries_and_their_order",
    "H05": _BUILDS + "test_entries_and_their_order",
    "H06": _BUILDS + "test_entries_and_their_order",
    "H08": _BUILDS + "test_entries_and_their_order",
    "H09": _BUILDS + "test_draining_twice_keeps_the_time",
    "H10": _BUILDS + "test_draining_twice_keeps_the_time",
    "H12": _BUILDS + "test_rows_drain_with_their_next_heartbeat",
    "H13": _BUILDS + "test_rows_drain_with_their_next_heartbeat",
    "H14": _BUILDS + "test_cohorts_are_of_one_namespace_and_queue",
    "I01": _WORKERS + "test_who_may_poll",
    "I02": _WORKERS + "test_who_may_poll",
    "I04": _BUILDS + "test_a_bound_run_goes_to_its_build_only",
    "I05": _BUILDS + "test_a_bound_run_goes_to_its_build_only",
    "I06": "api/test_node.py::test_a_workflow_with_an_activity",
    "I08": "api/test_node.py::test_names_cannot_leave_their_namespace",
    "I09": "api/test_node.py::test_a_workflow_with_an_activity",
    "I13": _TASKS + "test_a_poll_without_a_task_says_why",
    "I14": _TASKS + "test_workflow_task_calls_need_their_claim",
    "J01": _POLLS + "test_the_same_attempt_comes_again_on_any_node",
    "J04": _POLLS + "test_the_same_attempt_comes_again_on_any_node",
    "J05": _POLLS + "test_after_the_task_is_done_the_same_poll_gets_a_fresh_one",
    "K02": _GUARDS + "test_expiry_comes_before_the_owner_and_the_owner_before_the_attempt",
    "K04": _GUARDS + "test_an_unknown_task",
    "L01": "api/test_node.py::test_history_pages",
    "L02": "api/test_node.py::test_history_pages",
    "L04": _TASKS + "test_long_histories_are_compressed_on_request",
    "L05": _WORKFLOWS + "test_history",
    "L06": _CARE + "test_history_waits_for_an_event_on_any_node",
    "L08": "unit/api/test_bodies.py::test_large_answers_are_compressed_on_request",
    "M01": "api/test_node.py::test_a_workflow_with_an_activity",
    "M16": "unit/workflows/test_commands.py::test_payload_values",
    "N01": _TASKS + "test_an_activity_task_as_workers_see_it",
    "N02": _TASKS + "test_activity_heartbeats_carry_progress",
    "N04": _TASKS + "test_wrong_activity_failures",
    "N05": _GUARDS + "test_who_may_not_answer_an_activity",
    "O01": _QUEUES + "test_a_lease_limit_throttles_and_says_so",
    "O02": _QUEUES + "test_a_dispatch_limit_throttles_and_says_when_to_come_back",
    "O04": _QUEUES + "test_a_namespace_limit_of_the_environment",
    "O05": _QUEUES + "test_a_budget_group_over_queues",
    "O06": _QUEUES + "test_an_activity_limit_under_its_short_name",
    "O08": _QUEUES + "test_the_detail_of_a_queue",
    "O09": _QUEUES + "test_the_detail_of_a_queue",
    "O10": _QUEUES + "test_an_unknown_queue_is_an_empty_one",
    "O12": "cluster/admission/test_limits_hold.py::test_so_many_dispatches_a_minute",
    "O13": "unit/admission/test_limits.py::test_the_documented_example",
    "O14": _QUEUES + "test_the_statuses_without_limits",
    "P01": _QUERIES + "test_a_query_is_answered_by_a_worker_on_another_node",
    "P02": _QUERIES + "test_nobody_answers_in_time",
    "P06": "cluster/queries/test_lines.py::test_many_at_once_never_exceed_the_limit",
    "Q02": _WORKFLOWS + "test_an_existing_run_is_200_and_a_duplicate_409",
    "Q04": _WORKFLOWS + "test_wrong_starts",
    "Q14": _CARE + "test_archive",
    "Q20": "api/test_node.py::test_a_workflow_with_an_activity",
    "Q24": _CARE + "test_debugging_a_run",
    "R01": _SCHEDULES + "test_r01_a_list_shows_the_schedules_of_its_namespace",
    "R02": _SCHEDULES + "test_r02_create",
    "R04": _SCHEDULES + "test_r04_describe",
    "R05": _SCHEDULES + "test_r05_update",
    "R06": _SCHEDULES + "test_r06_delete",
    "R08": "unit/schedules/test_occurrences.py::test_the_next_occurrence",
    "R09": _SCHEDULES + "test_r09_overlap_policies",
    "R10": _SCHEDULES + "test_r10_no_runs_left",
    "R12": _SCHEDULES + "test_r09_overlap_policies",
    "R13": "unit/schedules/test_decisions.py::test_the_whole_table",
    "R14": _SCHEDULES + "test_r14_what_waits_starts_when_the_run_before_closes",
    "R16": _SCHEDULES + "test_r16_history_pages",
    "R17": _SCHEDULES + "test_r17_events_say_who_asked",
    "S01": _ATTRIBUTES + "test_s01_a_new_namespace_has_the_system_attributes_only",
    "S02": _ATTRIBUTES + "test_s02_s03_s04_s08_definitions_are_of_one_namespace",
    "S03": _ATTRIBUTES + "test_s02_s03_s04_s08_definitions_are_of_one_namespace",
    "S04": _ATTRIBUTES + "test_s02_s03_s04_s08_definitions_are_of_one_namespace",
    "S05": _ATTRIBUTES + "test_s05_system_attributes_are_reserved",
    "S06": _ATTRIBUTES + "test_s06_bad_definitions",
    "S07": _ATTRIBUTES + "test_s07_every_type",
    "S08": _ATTRIBUTES + "test_s02_s03_s04_s08_definitions_are_of_one_namespace",
    "S09": _ATTRIBUTES + "test_s09_the_limit_holds_when_many_define_at_once",
    "T01": _SYSTEM + "test_retention_of_an_empty_namespace",
    "T02": _SYSTEM + "test_named_runs_whatever_their_age",
    "T05": _SYSTEM + "test_a_heartbeat_removes_one_run_a_minute",
    "T06": _SYSTEM + "test_activity_timeouts",
    "T09": _QUEUES + "test_an_unknown_queue_is_an_empty_one",
    "T10": "cluster/test_bootstrap.py::test_exactly_one_of_eight_creates_it",
    "U01": _SYSTEM + "test_metrics_name_the_types_that_fail_most",
    "U04": _SYSTEM + "test_operator_metrics_count",
    "U05": _SELF + "test_health_and_readiness",
    "U06": _SELF + "test_health_and_readiness",
    "V01": "e2e/test_wire.py::test_a_parked_poll_is_woken_by_another_node",
    "V05": "e2e/test_wire.py::test_a_parked_poll_is_woken_by_another_node",
    "X01": "unit/test_settings.py::test_unknown_dw_variables_may_be_allowed_others_not",
    "X05": "e2e/test_wire.py::test_each_step_on_another_node",
    "C12": "unit/api/test_providers.py::test_it_sees_what_a_request_is_about_before_anything_is_looked_up",
    "P04": _QUERIES + "test_a_store_that_is_away_is_no_empty_queue",
    "P05": _QUERIES + "test_a_store_that_is_away_is_no_empty_queue",
    "T04": "api/test_passes.py::test_runs_past_their_retention_go",
    "V02": "cluster/queues/test_matcher.py::test_no_wake_is_lost_under_hammering",
    "W01": _BRIDGES + "test_w01_an_event_starts_one_workflow",
    "W02": _BRIDGES + "test_w02_w03_an_event_tells_a_workflow_once",
    "W03": _BRIDGES + "test_w02_w03_an_event_tells_a_workflow_once",
    "W04": _BRIDGES + "test_w04_what_cannot_be_done_is_rejected",
    "X06": "deploy/test_files.py::test_only_a_dead_process_is_restarted",
    "Y01": "unit/test_payloads.py::test_payloads_that_are_refused",
}

NOT_COVERED = {
    "E16": "payloads stay in the store; the route refuses every policy, see test_reasons.py",
    "E17": "there is no external store to test; the route says so, see test_reasons.py",
    "Q22": "workflow types are names that workers register; no code of the server stands behind them",
    "U08": "these manifests describe carriers that are not offered; clients would switch them on",
    "X04": "about another server's load generator; tests/chaos/remains.py bounds families of keys",
}


def test_every_case_has_a_test_or_a_reason() -> None:
    names = re.findall(r"^(?:async )?def test_((?:[a-z]\d\d_)+)", _text(__file__), re.MULTILINE)
    here = {case.upper() for name in names for case in name.rstrip("_").split("_")}
    known = set(ALL.split())
    assert here | COVERED.keys() | NOT_COVERED.keys() == known
    assert not COVERED.keys() & NOT_COVERED.keys()


def test_the_tests_that_are_named_exist() -> None:
    for case, place in COVERED.items():
        path, _, name = place.partition("::")
        assert f"def {name}(" in _text(TOP / "tests" / path), f"{case}: {place}"


def _text(path: str | Path) -> str:
    return Path(path).read_text()


# -- requests -----------------------------------------------------------------------------------


async def start(client: Client, **fields: Any) -> Answer:
    return await client.control("POST", "/api/workflows", START | fields)


async def describe(client: Client, workflow_id: str = "w1") -> dict[str, Any]:
    body: dict[str, Any] = (await client.control("GET", f"/api/workflows/{workflow_id}")).body
    return body


async def take(client: Client, kind: str = "workflow", **fields: Any) -> dict[str, Any]:
    """Register and poll: there must be a task."""
    await client.worker("POST", "register", ME | {"runtime": "python"})
    task: dict[str, Any] = (await client.worker("POST", f"{kind}-tasks/poll", ME | fields)).body["task"]
    assert task is not None
    return task


async def complete(client: Client, task: dict[str, Any], *commands: dict[str, Any]) -> Answer:
    claim = {"lease_owner": "w", "workflow_task_attempt": task["workflow_task_attempt"]}
    target = f"workflow-tasks/{task['task_id']}/complete"
    return await client.worker("POST", target, {**claim, "commands": list(commands)})


async def event_types(client: Client) -> list[str]:
    run = (await describe(client))["run_id"]
    history = await client.control("GET", f"/api/workflows/w1/runs/{run}/history?page_size=1000")
    return [event["event_type"] for event in history.body["events"]]


# -- authentication, order, limits --------------------------------------------------------------


async def test_a01_no_credentials_are_needed_without_authentication(client: Client) -> None:
    assert (await client.send("GET", "/api/cluster/info", headers={})).status == 200


async def test_a02_a_token_is_ignored_without_authentication(client: Client) -> None:
    headers = {"authorization": "Bearer whatever"}
    assert (await client.send("GET", "/api/cluster/info", headers=headers)).status == 200


async def test_a10_an_unknown_driver_is_refused_at_the_start(another_node: OpenNode) -> None:
    with pytest.raises(Exception, match="auth_driver"):
        async with another_node(auth_driver="oracle"):
            raise AssertionError("the node started")


async def test_b09_every_role_may_read_the_cluster_info(another_node: OpenNode) -> None:
    tokens = {"worker_token": "a", "operator_token": "b", "admin_token": "c"}
    async with another_node(auth_driver="token", **tokens) as node:
        for token in tokens.values():
            headers = {"authorization": f"Bearer {token}"}
            info = await client_of(node).send("GET", "/api/cluster/info", headers=headers)
            assert (info.status, "package_provenance" in info.body) == (200, False)


async def test_c09_the_envelope_is_that_of_the_path(client: Client) -> None:
    both = CONTROL | WORKER
    worker = await client.send("POST", "/api/worker/register", {}, headers=both)
    assert "protocol_version" in worker.body
    assert "control_plane" not in worker.body
    control = await client.send("GET", "/api/workflows/none", headers=both)
    assert "protocol_version" not in control.body
    assert "control_plane" in control.body


async def test_d02_small_bodies_and_gets_pass(client: Client) -> None:
    assert (await start(client)).status == 201
    assert (await client.control("GET", "/api/workflows")).status == 200


async def test_d05_the_limit_of_a_memo(another_node: OpenNode) -> None:
    async with another_node(max_memo_bytes=50) as node:
        large = await start(client_of(node), memo={"text": "x" * 60})
        assert (large.status, list(large.body["validation_errors"])) == (422, ["memo"])
        assert (await start(client_of(node), memo={"text": "x"})).status == 201


@pytest.mark.parametrize("verb", ["signal", "query", "update"])
async def test_d08_names_are_checked_before_the_workflow(another_node: OpenNode, verb: str) -> None:
    async with another_node(max_operation_name_length=16) as node:
        for name in ("x" * 17, "a%01b"):
            answer = await client_of(node).control("POST", f"/api/workflows/none/{verb}/{name}", {})
            assert (answer.status, list(answer.body["errors"])) == (422, [f"{verb}_name"])


async def test_d09_the_limits_are_told(another_node: OpenNode) -> None:
    async with another_node(max_memo_bytes=77) as node:
        limits = (await client_of(node).send("GET", "/api/cluster/info", headers={})).body["limits"]
        assert (limits["max_payload_bytes"], limits["max_memo_bytes"]) == (2097152, 77)
        assert limits["max_search_attributes"] == 100


async def test_e05_a_namespace_is_found_in_any_case(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "production"})
    assert (await client.control("GET", "/api/namespaces/Production")).body["name"] == "production"


# -- workers, polls, leases ---------------------------------------------------------------------


async def test_f16_what_workers_are_told_of_the_server(client: Client) -> None:
    answer = await client.worker("POST", "register", ME | {"runtime": "python"})
    told = answer.body["server_capabilities"]
    assert (told["history_page_size_default"], told["history_page_size_max"]) == (500, 1000)
    assert told["history_compression"] == {
        "supported_encodings": ["gzip", "deflate"],
        "compression_threshold": 50,
    }
    assert told["supported_workflow_task_commands"][:6] == [
        "complete_workflow",
        "fail_workflow",
        "continue_as_new",
        "schedule_activity",
        "start_timer",
        "start_child_workflow",
    ]
    assert told["poll_status"] is True


async def test_i10_a_timer_that_is_not_due_is_no_task(client: Client) -> None:
    await start(client)
    await complete(client, await take(client), {"type": "start_timer", "delay_seconds": 600})
    assert (await client.worker("POST", "workflow-tasks/poll", ME)).body["task"] is None


async def test_i12_nothing_runs_until_a_worker_polls(client: Client) -> None:
    await start(client)
    assert (await describe(client))["status"] == "pending"
    assert await event_types(client) == ["StartAccepted", "WorkflowStarted"]


async def test_j02_another_poll_does_not_get_the_leased_task(client: Client) -> None:
    await start(client)
    await take(client, poll_request_id="one")
    other = await client.worker("POST", "workflow-tasks/poll", ME | {"poll_request_id": "two"})
    assert other.body["task"] is None


async def test_j06_a_repeated_poll_shows_the_renewed_lease(client: Client) -> None:
    await start(client)
    first = await take(client, poll_request_id="one")
    claim = {"lease_owner": "w", "workflow_task_attempt": 1}

    async def later() -> bool:
        await client.worker("POST", f"workflow-tasks/{first['task_id']}/heartbeat", claim)
        again = await take(client, poll_request_id="one")
        assert again["task_id"] == first["task_id"]
        return bool(again["lease_expires_at"] > first["lease_expires_at"])

    await eventually(later)


async def test_k01_a_heartbeat_renews_the_lease(client: Client) -> None:
    await start(client)
    task = await take(client)
    claim = {"lease_owner": "w", "workflow_task_attempt": 1}
    beat = (await client.worker("POST", f"workflow-tasks/{task['task_id']}/heartbeat", claim)).body
    assert (beat["renewed"], beat["task_status"], beat["reason"]) == (True, "leased", None)
    assert beat["lease_expires_at"] >= task["lease_expires_at"]


async def test_k05_k06_an_expired_lease_goes_to_the_next_worker(another_node: OpenNode) -> None:
    async with another_node(workflow_task_timeout=1, worker_poll_timeout=20) as node:
        client = client_of(node)
        await start(client)
        task = await take(client)
        other = ME | {"worker_id": "other", "timeout_seconds": 20}
        await client.worker("POST", "register", other | {"runtime": "python"})
        again = (await client.worker("POST", "workflow-tasks/poll", other)).body["task"]
        assert (again["task_id"], again["lease_owner"]) == (task["task_id"], "other")
        late = await complete(client, task, {"type": "complete_workflow"})
        assert (late.status, late.body["reason"]) == (409, "lease_owner_mismatch")


@pytest.mark.parametrize(("verb", "reason"), [("cancel", "run_cancelled"), ("terminate", "run_terminated")])
async def test_k08_a_stopped_run_refuses_its_worker(client: Client, verb: str, reason: str) -> None:
    await start(client)
    task = await take(client)
    await client.control("POST", f"/api/workflows/w1/{verb}", {"reason": "enough"})
    answer = await complete(client, task, {"type": "complete_workflow"})
    assert (answer.status, answer.body["reason"]) == (409, "run_closed")
    assert (answer.body["stop_reason"], answer.body["can_continue"]) == (reason, False)
    assert answer.body["cancel_requested"] is True


async def test_k09_a_repair_pass_of_a_healthy_run_does_nothing(client: Client) -> None:
    run = (await start(client)).body["run_id"]
    report = (await client.control("POST", "/api/system/repair/pass", {"run_ids": [run]})).body
    assert report["repaired_existing_tasks"] == 0


async def test_k10_failing_a_task_needs_its_lease(client: Client) -> None:
    await start(client)
    task = await take(client)
    target = f"workflow-tasks/{task['task_id']}/fail"
    failure = {"failure": {"message": "replay"}, "workflow_task_attempt": 1}
    wrong = await client.worker("POST", target, failure | {"lease_owner": "other"})
    assert (wrong.status, wrong.body["reason"]) == (409, "lease_owner_mismatch")
    done = (await client.worker("POST", target, failure | {"lease_owner": "w"})).body
    assert (done["outcome"], done["recorded"], done["next_task_id"]) == ("failed", True, None)


# -- completing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ({"type": "start_timer", "delay_seconds": 1, "retry_policy": {}}, "retry_policy"),
        ({"type": "complete_workflow", "heartbeat_timeout": 5}, "heartbeat_timeout"),
        ({"type": "start_timer", "delay_seconds": 1, "run_timeout_seconds": 5}, "run_timeout_seconds"),
        ({"type": "complete_workflow", "non_retryable": True}, "non_retryable"),
        (
            {
                "type": "schedule_activity",
                "activity_type": "a",
                "heartbeat_timeout": 9,
                "start_to_close_timeout": 5,
            },
            "heartbeat_timeout",
        ),
    ],
)
async def test_m02_fields_of_other_commands(client: Client, command: dict[str, Any], field: str) -> None:
    await start(client)
    answer = await complete(client, await take(client), command)
    assert (answer.status, list(answer.body["errors"])) == (422, [f"commands.0.{field}"])


async def test_m04_m05_an_activity_with_rules_fails_for_good(client: Client) -> None:
    await start(client)
    activity = {
        "type": "schedule_activity",
        "activity_type": "a",
        "queue": "jobs",
        "retry_policy": {"max_attempts": 3, "backoff_seconds": [1]},
        "start_to_close_timeout": 10,
        "schedule_to_start_timeout": 20,
        "schedule_to_close_timeout": 30,
        "heartbeat_timeout": 5,
    }
    scheduled = (await complete(client, await take(client), activity)).body
    assert (scheduled["run_status"], len(scheduled["created_task_ids"])) == ("waiting", 1)
    attempt = await take(client, "activity")
    assert attempt["retry_policy"]["max_attempts"] == 3
    assert set(attempt["deadlines"]) == {
        "start_to_close",
        "schedule_to_start",
        "schedule_to_close",
        "heartbeat",
    }
    claim = {"lease_owner": "w", "activity_attempt_id": attempt["activity_attempt_id"]}
    details = {"codec": "avro", "blob": payloads.encode({"a": 1}).blob}
    failed = await client.worker(
        "POST",
        f"activity-tasks/{attempt['task_id']}/fail",
        claim | {"failure": {"message": "no", "non_retryable": True, "details": details}},
    )
    resumed = await take(client)
    assert failed.body["next_task_id"] == resumed["task_id"]
    assert resumed["workflow_wait_kind"] == "activity"
    event = next(e for e in resumed["history_events"] if e["event_type"] == "ActivityFailed")
    assert (event["payload"]["message"], event["payload"]["non_retryable"]) == ("no", True)
    ended = (await complete(client, resumed, {"type": "fail_workflow", "message": "no"})).body
    assert ended["run_status"] == "failed"
    assert (await describe(client))["status_bucket"] == "failed"


async def test_m06_a_timer_without_delay_fires_at_once(client: Client) -> None:
    await start(client)
    await complete(client, await take(client), {"type": "start_timer", "delay_seconds": 0})
    resumed = await take(client)
    assert resumed["open_wait_id"].startswith("timer:")
    assert "TimerFired" in await event_types(client)


async def test_m08_a_child_tells_its_parent(client: Client) -> None:
    await start(client)
    wrong = {"type": "start_child_workflow", "workflow_type": "c", "parent_close_policy": "forget"}
    parent = await take(client)
    refused = await complete(client, parent, wrong)
    assert (refused.status, list(refused.body["errors"])) == (422, ["commands.0.parent_close_policy"])
    await complete(client, parent, {"type": "start_child_workflow", "workflow_type": "c"})
    child = await take(client)
    assert child["workflow_type"] == "c"
    await complete(client, child, {"type": "complete_workflow"})
    resumed = await take(client)
    assert (resumed["workflow_id"], resumed["workflow_wait_kind"]) == ("w1", "child")
    assert "ChildRunCompleted" in await event_types(client)


async def test_m09_q13_a_run_goes_on_as_a_new_one(client: Client) -> None:
    first = (await start(client)).body["run_id"]
    done = (await complete(client, await take(client), {"type": "continue_as_new"})).body
    assert (done["run_id"], done["run_status"]) == (first, "completed")
    runs = (await client.control("GET", "/api/workflows/w1/runs")).body
    assert [(run["run_number"], run["status"]) for run in runs["runs"]] == [(1, "completed"), (2, "pending")]
    second = (await describe(client))["run_id"]
    assert (await take(client))["run_id"] == second != first
    current = await client.control("POST", f"/api/workflows/w1/runs/{second}/signal/go", {})
    assert current.status == 202
    old = await client.control("POST", f"/api/workflows/w1/runs/{first}/signal/go", {})
    assert (old.status, old.body["reason"], old.body["target_scope"]) == (
        409,
        "historical_run_command_rejected",
        "run",
    )
    unknown = await client.control("POST", f"/api/workflows/none/runs/{first}/signal/go", {})
    assert (unknown.status, unknown.body["reason"]) == (404, "instance_not_found")


async def test_m10_events_of_one_task_stand_in_order(client: Client) -> None:
    await start(client, search_attributes={"tenant": "a", "phase": "x"})
    done = await complete(
        client,
        await take(client),
        {"type": "record_side_effect", "result": payloads.encode(1).blob},
        {"type": "upsert_search_attributes", "attributes": {"phase": "done", "tenant": None}},
        {"type": "record_version_marker", "change_id": "c", "version": 1},
        {"type": "complete_workflow"},
    )
    assert done.body["created_task_ids"] == []
    assert (await event_types(client))[2:] == [
        "SideEffectRecorded",
        "SearchAttributesUpserted",
        "VersionMarkerRecorded",
        "WorkflowCompleted",
    ]
    assert (await describe(client))["search_attributes"] == {"phase": "done"}


async def test_m12_q09_a_signal_wakes_its_workflow(client: Client) -> None:
    await start(client)
    await complete(client, await take(client), {"type": "start_timer", "delay_seconds": 600})
    sent = await client.control("POST", "/api/workflows/w1/signal/go", {"input": [1]})
    assert (sent.status, sent.body["outcome"], sent.body["command_status"]) == (
        202,
        "signal_received",
        "accepted",
    )
    assert sent.body["command_source"] == "control_plane"
    legacy = {"signal", "accepted", "workflow_instance_id", "workflow_command_id", "command_reason"}
    assert not legacy & sent.body.keys()
    resumed = await take(client)
    assert (resumed["signal_name"], resumed["workflow_command_id"]) == ("go", sent.body["command_id"])
    assert resumed["open_wait_id"].startswith("signal-application:")


@pytest.mark.parametrize("final", [None, False, True])
async def test_m13_a_workflow_fails(client: Client, final: bool | None) -> None:
    await start(client)
    command = {"type": "fail_workflow", "message": "no", "non_retryable": final}
    assert (await complete(client, await take(client), command)).body["run_status"] == "failed"


async def test_m14_too_many_open_activities(another_node: OpenNode) -> None:
    async with another_node(max_pending_activities=2) as node:
        client = client_of(node)
        await start(client)
        activity = {"type": "schedule_activity", "activity_type": "a"}
        answer = await complete(client, await take(client), activity, activity, activity)
        assert (answer.status, answer.body["reason"], answer.body["limit_kind"]) == (
            422,
            "structural_limit_exceeded",
            "pending_activity_count",
        )
        assert (answer.body["configured_limit"], answer.body["outcome"]) == (2, "rejected")


@pytest.mark.parametrize(("verb", "reason"), [("cancel", "run_cancelled"), ("terminate", "run_terminated")])
async def test_n06_an_activity_of_a_stopped_run(client: Client, verb: str, reason: str) -> None:
    await start(client)
    await complete(client, await take(client), {"type": "schedule_activity", "activity_type": "a"})
    attempt = await take(client, "activity")
    await client.control("POST", f"/api/workflows/w1/{verb}")
    claim = {"lease_owner": "w", "activity_attempt_id": attempt["activity_attempt_id"]}
    target = f"activity-tasks/{attempt['task_id']}"
    beat = (await client.worker("POST", f"{target}/heartbeat", claim)).body
    assert (beat["cancel_requested"], beat["can_continue"], beat["reason"]) == (True, False, reason)
    late = await client.worker("POST", f"{target}/complete", claim | {"result": 1})
    assert (late.status, late.body["recorded"], late.body["reason"]) == (409, False, reason)


# -- the control plane --------------------------------------------------------------------------


async def test_q01_a_start_with_everything(client: Client) -> None:
    more = {"business_key": "b", "memo": {"m": 1}, "search_attributes": {"Tier": "gold"}}
    started = await start(client, **more)
    assert (started.status, started.body["status"], started.body["payload_codec"]) == (201, "pending", "avro")
    shown = await describe(client)
    assert {name: shown[name] for name in more} == more
    assert (shown["run_number"], shown["run_count"]) == (1, 1)
    assert {shown["actions"][f"can_{verb}"] for verb in ("signal", "query", "update", "cancel")} == {True}


async def test_q05_timeouts(client: Client) -> None:
    await start(client, execution_timeout_seconds=300, run_timeout_seconds=120)
    shown = await describe(client)
    assert (shown["execution_timeout_seconds"], shown["run_timeout_seconds"]) == (300, 120)
    await start(client, workflow_id="w2", execution_timeout_seconds=300)
    assert (await describe(client, "w2"))["run_timeout_seconds"] is None
    for bad in (0, -1):
        wrong = await start(client, workflow_id="w3", execution_timeout_seconds=bad, run_timeout_seconds=bad)
        assert (wrong.status, len(wrong.body["errors"])) == (422, 2)


async def test_q06_no_input_is_no_arguments(client: Client) -> None:
    await start(client, input=None)
    envelope = (await describe(client))["input_envelope"]
    assert envelope == {"codec": "avro", "blob": payloads.encode([]).blob}


async def test_q08_q18_what_does_not_exist(client: Client) -> None:
    run = (await start(client)).body["run_id"]
    await client.control("POST", "/api/namespaces", {"name": "other"})
    for path, reason in (
        ("/api/workflows/none", "instance_not_found"),
        ("/api/workflows/none/runs", "instance_not_found"),
        (f"/api/workflows/none/runs/{run}", "run_not_found"),
        (f"/api/workflows/w1/runs/{run[:-1]}0", "run_not_found"),
    ):
        answer = await client.control("GET", path)
        assert (answer.status, answer.body["reason"]) == (404, reason)
        assert answer.body["message"]
        assert answer.body["control_plane"]["operation"]
    elsewhere = await client.control("GET", "/api/workflows/w1", **{"x-namespace": "other"})
    assert elsewhere.status == 404


async def test_q10_updates(client: Client) -> None:
    await start(client)
    accepted = await client.control("POST", "/api/workflows/w1/update/change", {"input": [1]})
    assert (accepted.status, accepted.body["update_status"]) == (202, "accepted")
    waited = await client.control(
        "POST",
        "/api/workflows/w1/update/change",
        {"wait_for": "completed", "wait_timeout_seconds": 1},
    )
    assert (waited.status, waited.body["wait_timed_out"]) == (202, True)
    legacy = await client.control("POST", "/api/workflows/w1/update/change", {"wait_policy": "completed"})
    assert (legacy.status, list(legacy.body["errors"])) == (422, ["wait_policy"])


@pytest.mark.parametrize(
    "path", ["signal/x", "query/x", "update/x", "cancel", "terminate", "repair", "archive"]
)
async def test_q12_operations_on_unknown_workflows(client: Client, path: str) -> None:
    answer = await client.control("POST", f"/api/workflows/none/{path}", {})
    described = answer.body["control_plane"]
    assert (answer.status, answer.body["reason"]) == (404, "instance_not_found")
    assert (described["operation"], described["workflow_id"]) == (path.partition("/")[0], "none")
    if "/" in path:
        assert described["operation_name"] == "x"


async def test_q16_early_refusals_describe_the_operation(client: Client) -> None:
    headers = {"x-durable-workflow-control-plane-version": "999"}
    answer = await client.send("POST", "/api/workflows/w1/signal/go", {}, headers=headers)
    described = answer.body["control_plane"]
    assert answer.status == 400
    assert (described["operation"], described["operation_name"], described["workflow_id"]) == (
        "signal",
        "go",
        "w1",
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/workflows", {}),
        ("GET", "/api/workflows?page_size=0", None),
        ("GET", "/api/workflows/w/runs/r/history?page_size=0", None),
        ("POST", "/api/namespaces", {}),
        ("POST", "/api/schedules", {}),
        ("POST", "/api/search-attributes", {}),
        ("POST", "/api/activities", {}),
        ("POST", "/api/system/retention/pass", {"run_ids": 5}),
        ("POST", "/api/system/activity-timeouts/pass", {"execution_ids": 5}),
    ],
)
async def test_q17_field_errors_of_the_control_plane(
    client: Client, method: str, path: str, body: dict[str, Any] | None
) -> None:
    answer = await client.control(method, path, body)
    assert (answer.status, answer.body["reason"]) == (422, "validation_failed")
    assert answer.body["errors"] == answer.body["validation_errors"] != {}
    assert ("control_plane" in answer.body) == path.startswith("/api/workflows")


async def test_q21_envelopes_and_unknown_codecs(client: Client) -> None:
    blob = payloads.encode([1]).blob
    await start(client, input={"codec": "avro", "blob": blob})
    assert (await describe(client))["input"] == [1]
    for path in ("", "/w1/signal/go", "/w1/query/look", "/w1/update/change"):
        body = {"input": {"codec": "morse", "blob": blob}}
        fields = (START | {"workflow_id": "w9"} | body) if not path else body
        answer = await client.control("POST", f"/api/workflows{path}", fields)
        assert (answer.status, list(answer.body["errors"])) == (422, ["input.codec"])


async def test_t08_what_the_cluster_says_of_repair(client: Client) -> None:
    policy = (await client.control("GET", "/api/system/repair")).body["policy"]
    assert policy["scan_strategy"] == "scope_fair_round_robin"
    assert policy["failure_backoff_strategy"] == "exponential_by_repair_count"
    assert policy["scan_limit"] > 0


# -- what other servers keep in caches ----------------------------------------------------------


async def test_j08_v04_what_is_kept_of_polls_expires_and_is_of_one_worker_and_queue(
    node: Node, client: Client
) -> None:
    for worker in ("w", "v"):
        for queue in ("jobs", "more"):
            me = {"worker_id": f"{worker}-{queue}", "task_queue": queue}
            await client.worker("POST", "register", me | {"runtime": "python"})
            poll = await client.worker("POST", "workflow-tasks/poll", me | {"poll_request_id": "same"})
            assert poll.body["poll_status"] == "empty"
    keys = node.store.keys
    kept = await node.store.call("KEYS", keys.poll("*"))
    assert len(kept) == 4
    for key in kept:
        assert 0 < await node.store.call("PTTL", key) <= 120_000


async def test_v03_a_parked_poll_gets_its_task_when_the_time_has_come(another_node: OpenNode) -> None:
    async with another_node(worker_poll_timeout=20) as node:
        client = client_of(node)
        await start(client)
        await complete(client, await take(client), {"type": "start_timer", "delay_seconds": 1})
        resumed = await take(client, timeout_seconds=20)
        assert resumed["workflow_wait_kind"] == "timer"
        fired = next(e for e in resumed["history_events"] if e["event_type"] == "TimerFired")
        scheduled = next(e for e in resumed["history_events"] if e["event_type"] == "TimerScheduled")
        assert fired["recorded_at"] >= scheduled["payload"]["fire_at"]


# -- the rest -----------------------------------------------------------------------------------


async def test_u02_projections_cannot_drift(client: Client) -> None:
    metrics = (await client.control("GET", "/api/system/metrics")).body["metrics"]
    drift = metrics["dw_projection_drift_total"]
    assert (drift["total"], drift["table_count"], drift["tables_with_drift"]) == (0, 5, 0)
    assert drift["scope"] == "server"
    assert [row["table"] for row in drift["by_table"]] == [
        "run_summaries",
        "run_waits",
        "run_timeline_entries",
        "run_timer_entries",
        "run_lineage_entries",
    ]


async def test_u09_provenance_is_for_administrators_and_only_on_request(
    another_node: OpenNode, tmp_path: Path
) -> None:
    path = tmp_path / "provenance"
    tokens = {"worker_token": "a", "operator_token": "b", "admin_token": "c", "auth_driver": "token"}

    async def shown(**settings: Any) -> list[Any]:
        async with another_node(package_provenance_path=str(path), **tokens, **settings) as node:
            found = []
            for token in "abc":
                headers = {"authorization": f"Bearer {token}"}
                info = await client_of(node).send("GET", "/api/cluster/info", headers=headers)
                assert info.status == 200
                found.append(info.body.get("package_provenance"))
            return found

    assert await shown(expose_package_provenance=True) == [None, None, None]
    path.write_text('{"built_from": "1234abcd"}')
    assert await shown() == [None, None, None]
    assert await shown(expose_package_provenance=True) == [None, None, {"built_from": "1234abcd"}]
    path.write_text("no JSON")
    assert await shown(expose_package_provenance=True) == [None, None, {"text": "no JSON"}]


@pytest.mark.parametrize(("name", "value"), [("mode", "embedded"), ("task_dispatch_mode", "queue")])
def test_x02_workers_poll_and_nothing_else_is_accepted(name: str, value: str) -> None:
    assert (Settings().mode, Settings().task_dispatch_mode) == ("service", "poll")
    with pytest.raises(ValueError, match=name):
        Settings(**{name: value})


async def test_y02_a_start_passes_on_what_was_given_and_no_more(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "other"})
    headers = {"x-namespace": "other", "x-request-id": "r1"}
    body = START | {"execution_timeout_seconds": 60}
    run_id = (await client.control("POST", "/api/workflows", body, **headers)).body["run_id"]
    shown = (await client.control("GET", "/api/workflows/w1", **headers)).body
    assert (shown["namespace"], shown["execution_timeout_seconds"]) == ("other", 60)
    assert (shown["run_timeout_seconds"], shown["run_deadline_at"]) == (None, None)
    path = f"/api/workflows/w1/runs/{run_id}/history/export"
    (command,) = (await client.control("GET", path, **headers)).body["commands"]
    assert command["context"]["request"]["request_id"] == "r1"
    refused = await start(client, duplicate_policy="use_existing")
    assert (refused.status, list(refused.body["errors"])) == (422, ["duplicate_policy"])
