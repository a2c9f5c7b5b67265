"""Fields of raw commands: types, ranges, scopes, required ones and payloads."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import ValidationFailed
from cluster.workflows.command_fields import MAX_SECONDS, integer
from cluster.workflows.commands import (
    CompleteWorkflow,
    FailWorkflow,
    RecordSideEffect,
    ScheduleActivity,
    StartTimer,
    check_fields,
    ends_run,
    normalise,
    payloads_of,
)
from cluster.workflows.records import Payload, RetryPolicy
from tests.unit.workflows.simulation import BLOB, COMPLETE, FAIL, activity, timer


def faults(*commands: Any) -> dict[str, list[str]]:
    with pytest.raises(ValidationFailed) as failed:
        check_fields(list(commands))
    return failed.value.errors


def refusals(*commands: Any) -> dict[str, list[str]]:
    check_fields(list(commands))
    with pytest.raises(ValidationFailed) as failed:
        normalise(commands)
    return failed.value.errors


@pytest.mark.parametrize("commands", [None, [], {}, "x", 3])
def test_commands_are_a_list_of_at_least_one(commands: object) -> None:
    with pytest.raises(ValidationFailed) as failed:
        check_fields(commands)
    assert list(failed.value.errors) == ["commands"]
    assert failed.value.status == 422
    assert failed.value.reason == "validation_failed"


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ("x", "commands.0"),
        ({}, "commands.0.type"),
        ({"type": 3}, "commands.0.type"),
        ({"type": ""}, "commands.0.type"),
        (activity(activity_type=3), "commands.0.activity_type"),
        (activity(queue=[]), "commands.0.queue"),
        (activity(cancellation_policy=1), "commands.0.cancellation_policy"),
        (activity(worker_session="s"), "commands.0.worker_session"),
        (activity(retry_policy=[]), "commands.0.retry_policy"),
        (activity(retry_policy={"max_attempts": 0}), "commands.0.retry_policy.max_attempts"),
        (activity(retry_policy={"max_attempts": "x"}), "commands.0.retry_policy.max_attempts"),
        (activity(retry_policy={"backoff_seconds": 3}), "commands.0.retry_policy.backoff_seconds"),
        (activity(retry_policy={"backoff_seconds": [1, -1]}), "commands.0.retry_policy.backoff_seconds.1"),
        (activity(retry_policy={"backoff_seconds": [None]}), "commands.0.retry_policy.backoff_seconds.0"),
        (
            activity(retry_policy={"non_retryable_error_types": "X"}),
            "commands.0.retry_policy.non_retryable_error_types",
        ),
        (
            activity(retry_policy={"non_retryable_error_types": [3]}),
            "commands.0.retry_policy.non_retryable_error_types",
        ),
        (activity(start_to_close_timeout=0), "commands.0.start_to_close_timeout"),
        (activity(start_to_close_timeout=True), "commands.0.start_to_close_timeout"),
        (activity(start_to_close_timeout=1.5), "commands.0.start_to_close_timeout"),
        (activity(heartbeat_timeout="soon"), "commands.0.heartbeat_timeout"),
        (activity(arguments={"codec": "avro", "external_storage": {}}), "commands.0.arguments"),
        (timer(-1), "commands.0.delay_seconds"),
        (timer(MAX_SECONDS + 1), "commands.0.delay_seconds"),
        ({"type": "record_version_marker", "version": "1.0"}, "commands.0.version"),
        ({"type": "record_version_marker", "version": 1 << 63}, "commands.0.version"),
        ({"type": "fail_workflow", "non_retryable": "yes"}, "commands.0.non_retryable"),
        ({"type": "fail_workflow", "exception": "E"}, "commands.0.exception"),
        ({"type": "upsert_search_attributes", "attributes": []}, "commands.0.attributes"),
    ],
)
def test_types_and_ranges(command: Any, field: str) -> None:
    assert list(faults(command)) == [field]


def test_faults_name_the_place_of_their_command() -> None:
    assert list(faults(timer(), activity(queue=1), timer(-1))) == [
        "commands.1.queue",
        "commands.2.delay_seconds",
    ]


@pytest.mark.parametrize(
    ("field", "value", "kind", "text"),
    [
        ("retry_policy", {}, "start_timer", "schedule_activity and start_child_workflow"),
        ("start_to_close_timeout", 1, "start_timer", "schedule_activity"),
        ("schedule_to_start_timeout", 1, "start_child_workflow", "schedule_activity"),
        ("schedule_to_close_timeout", 1, "complete_workflow", "schedule_activity"),
        ("heartbeat_timeout", 1, "continue_as_new", "schedule_activity"),
        ("execution_timeout_seconds", 1, "schedule_activity", "start_child_workflow"),
        ("run_timeout_seconds", 1, "continue_as_new", "start_child_workflow"),
        ("non_retryable", False, "complete_update", "fail_workflow and fail_update"),
    ],
)
def test_scopes(field: str, value: object, kind: str, text: str) -> None:
    command = {"type": kind, field: value}
    assert faults(command) == {f"commands.0.{field}": [f"{field} is only supported for {text} commands."]}


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("start_child_workflow", "retry_policy"),
        ("fail_update", "non_retryable"),
        ("record_local_activity", "start_to_close_timeout"),
        ("record_local_activity", "non_retryable"),
    ],
)
def test_fields_in_their_scope_pass(kind: str, field: str) -> None:
    values: dict[str, Any] = {"retry_policy": {}, "non_retryable": True, "start_to_close_timeout": 3}
    check_fields([{"type": kind, field: values[field]}])


@pytest.mark.parametrize(
    ("smaller", "larger", "kind"),
    [
        ("heartbeat_timeout", "start_to_close_timeout", "schedule_activity"),
        ("start_to_close_timeout", "schedule_to_close_timeout", "schedule_activity"),
        ("schedule_to_start_timeout", "schedule_to_close_timeout", "schedule_activity"),
        ("run_timeout_seconds", "execution_timeout_seconds", "start_child_workflow"),
    ],
)
def test_order_of_timeouts(smaller: str, larger: str, kind: str) -> None:
    check_fields([{"type": kind, smaller: "7", larger: 7}])
    command = {"type": kind, smaller: 8, larger: "7"}
    assert faults(command) == {f"commands.0.{smaller}": [f"{smaller} cannot exceed {larger}."]}


def test_all_faults_of_a_command_are_reported() -> None:
    assert len(faults({"type": "start_timer", "delay_seconds": -1, "retry_policy": [], "queue": 3})) == 3


def test_deep_nesting_is_refused() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"x": deep}
    assert list(faults({**FAIL, "exception": deep})) == ["commands.0"]


@pytest.mark.parametrize(("value", "expected"), [(3, 3), ("3", 3), ("-3", -3)])
def test_numeric_strings_are_integers(value: object, expected: int) -> None:
    assert integer(value) == expected


@pytest.mark.parametrize("value", [True, None, 1.0, "", "x", "1.0", "٣", "9" * 30, [], {}])
def test_other_values_are_no_integers(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the value is the message)
        integer(value)


def test_normalise_reads_an_activity() -> None:
    raw = activity(
        queue="q",
        retry_policy={"max_attempts": "3", "backoff_seconds": [1, "2"], "non_retryable_error_types": ["E"]},
        start_to_close_timeout="10",
        heartbeat_timeout=5,
        arguments=BLOB,
        worker_session={"session_id": "s"},
        something_new=1,
    )
    check_fields([raw])
    assert normalise([raw]) == (
        ScheduleActivity(
            activity_type="charge",
            queue="q",
            arguments=Payload(codec="avro", blob=BLOB),
            retry=RetryPolicy(max_attempts=3, backoff_seconds=(1, 2), non_retryable_error_types=("E",)),
            start_to_close_seconds=10,
            heartbeat_seconds=5,
            worker_session={"session_id": "s"},
        ),
    )


def test_an_empty_policy_means_one_attempt() -> None:
    (command,) = normalise([activity(retry_policy={}, queue="")])
    assert isinstance(command, ScheduleActivity)
    assert command.retry == RetryPolicy(max_attempts=1)
    assert command.queue is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"codec": "avro", "blob": None}, None),
        (BLOB, Payload(codec="avro", blob=BLOB)),
        ({"codec": "avro", "blob": BLOB}, Payload(codec="avro", blob=BLOB)),
        (42, Payload(codec="avro", blob=BLOB)),
        ({"a": 1}, Payload(codec="avro", blob="wwHioz3/VYAiNw4CAmEEAgA=")),
        ({"codec": "avro", "blob": BLOB, "more": 1}, None),
    ],
)
def test_payload_values(value: object, expected: Payload | None) -> None:
    (command,) = normalise([{"type": "record_side_effect", "result": value}])
    assert isinstance(command, RecordSideEffect)
    if expected is None and value and len(value) == 3:  # type: ignore[arg-type]
        assert command.result is not None
    else:
        assert command.result == expected


def test_a_bare_blob_has_the_codec_of_the_run() -> None:
    (command,) = normalise([COMPLETE | {"result": "AA=="}], codec="other")
    assert command == CompleteWorkflow(result=Payload(codec="other", blob="AA=="))


@pytest.mark.parametrize(
    ("command", "field"),
    [
        ({"type": "schedule_activity"}, "commands.0.activity_type"),
        ({"type": "schedule_activity", "activity_type": ""}, "commands.0.activity_type"),
        ({"type": "start_timer"}, "commands.0.delay_seconds"),
        ({"type": "fail_workflow"}, "commands.0.message"),
        ({"type": "record_version_marker", "version": 1}, "commands.0.change_id"),
        ({"type": "record_version_marker", "change_id": "x"}, "commands.0.version"),
        ({**COMPLETE, "result": {"codec": "json", "blob": "e30="}}, "commands.0.result.codec"),
        ({**COMPLETE, "result": {"codec": "", "blob": "e30="}}, "commands.0.result.codec"),
        ({**COMPLETE, "result": {"codec": "avro", "blob": 3}}, "commands.0.result.blob"),
        ({**COMPLETE, "result": {"n": 1 << 63}}, "commands.0.result"),
        (activity(arguments={"codec": "json", "blob": ""}), "commands.0.arguments.codec"),
    ],
)
def test_what_normalise_requires(command: dict[str, Any], field: str) -> None:
    assert list(refusals(command)) == [field]


@pytest.mark.parametrize("kind", ["start_service_operation", "nonsense"])
def test_unknown_types_are_refused_by_name(kind: str) -> None:
    text = f"Workflow task command type [{kind}] is not supported by the server yet."
    assert refusals(timer(), {"type": kind}) == {"commands.1.type": [text]}


def test_normalise_reports_all_faults() -> None:
    assert list(refusals({"type": "x"}, {"type": "start_timer"}, {"type": "record_version_marker"})) == [
        "commands.0.type",
        "commands.1.delay_seconds",
        "commands.2.change_id",
        "commands.2.version",
    ]


def test_zero_delay_is_a_delay() -> None:
    assert normalise([timer(0)]) == (StartTimer(delay_seconds=0),)


def test_a_failure_keeps_its_fields() -> None:
    (command,) = normalise([{**FAIL, "exception_class": None, "other": 1}])
    assert command == FailWorkflow(failure={"message": "no stock", "exception_type": "OutOfStock"})


def test_payloads_of_commands() -> None:
    payload = Payload(codec="avro", blob=BLOB)
    commands = normalise([activity(arguments=BLOB), timer(), COMPLETE, FAIL, {"type": "record_side_effect"}])
    assert [payloads_of(command) for command in commands] == [(payload,), (), (payload,), (), ()]


def test_which_batches_end_a_run() -> None:
    assert ends_run([timer(), COMPLETE])
    assert ends_run([FAIL])
    assert not ends_run([timer(), activity()])
