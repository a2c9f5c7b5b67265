"""Signals, updates, cancel and terminate."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import Refused
from cluster.workflows import guards
from cluster.workflows.client_commands import ClientCommand, CommandKind, Scope
from cluster.workflows.limits import Limits
from cluster.workflows.records import Payload
from tests.unit.workflows.simulation import (
    BLOB,
    COMPLETE,
    RUN_ID,
    WAITING,
    Simulation,
    activity,
    contender,
    timer,
)


def answer(update_id: str) -> dict[str, Any]:
    return {"type": "complete_update", "update_id": update_id, "result": {"codec": "avro", "blob": BLOB}}


def refusal(update_id: str) -> dict[str, Any]:
    return {"type": "fail_update", "update_id": update_id, "message": "no", "exception_type": "ValueError"}


# -- signals --------------------------------------------------------------------------------


def test_signals_before_the_first_poll_follow_the_start_and_make_no_second_task() -> None:
    sim = Simulation()
    sim.signal("one")
    sim.signal("two")
    assert sim.types == ["StartAccepted", "WorkflowStarted", "SignalReceived", "SignalReceived"]
    assert sim.state.task_index == 1


def test_a_signal_wakes_a_waiting_run_with_its_context() -> None:
    sim = Simulation()
    sim.complete(activity())
    told = sim.signal("go")
    assert told["outcome"] == "signal_received"
    assert told["command_status"] == "accepted"
    resume = sim.state.resume
    assert resume["workflow_wait_kind"] == "signal"
    assert resume["signal_name"] == "go"
    assert resume["workflow_command_id"] == told["command_id"]
    assert resume["open_wait_id"] == f"signal-application:{resume['workflow_signal_id']}"
    assert sim.payload("SignalReceived")["arguments"] == {"codec": "avro", "blob": BLOB}


def test_signals_during_a_leased_task_come_after_its_events() -> None:
    sim = Simulation()
    sim.claim()
    for _ in range(3):
        sim.signal()
    assert sim.types == ["StartAccepted", "WorkflowStarted"]
    sim.complete(activity())
    assert sim.types[2:] == ["ActivityScheduled", *["SignalReceived"] * 3]
    assert [event["id"] for event in sim.history[3:]] == [f"{RUN_ID}-p{n}" for n in (1, 2, 3)]
    assert sim.task_lease().state == "r"


def test_the_state_does_not_grow_with_signals() -> None:
    import msgspec

    sim = Simulation()
    sim.claim()
    sim.signal()
    small = len(msgspec.msgpack.encode(sim.state))
    for _ in range(200):
        sim.signal()
    assert len(msgspec.msgpack.encode(sim.state)) <= small + 16


def test_signals_no_task_has_seen_are_limited() -> None:
    sim = Simulation(Limits(pending_signal_count=2))
    sim.signal()
    sim.signal()
    with pytest.raises(Refused) as over:
        sim.signal()
    assert over.value.reason == "structural_limit_exceeded"
    assert over.value.status == 409
    assert over.value.fields["limit_kind"] == "pending_signal_count"
    sim.claim()
    with pytest.raises(Refused):
        sim.signal()
    sim.complete(activity())
    sim.signal()
    assert sim.state.signals == 1


def test_a_large_argument_is_refused() -> None:
    sim = Simulation(Limits(payload_size=10))
    with pytest.raises(Refused, match="payload_size"):
        sim.signal()


# -- request ids ----------------------------------------------------------------------------


def test_a_repeated_request_gives_the_same_answer_and_no_second_effect() -> None:
    sim = Simulation()
    first = sim.signal("go", request_id="r1")
    again = sim.signal("go", request_id="r1")
    assert first["retained"] is False
    assert again == first | {"retained": True}
    assert sim.types.count("SignalReceived") == 1


@pytest.mark.parametrize(
    ("other", "conflict"),
    [
        (ClientCommand(CommandKind.SIGNAL, name="other", request_id="r1"), "signal_name"),
        (ClientCommand(CommandKind.UPDATE, name="go", request_id="r1"), "command_type"),
        (
            ClientCommand(
                CommandKind.SIGNAL, name="go", input=Payload(codec="avro", blob="x"), request_id="r1"
            ),
            "input",
        ),
    ],
)
def test_a_request_id_means_one_command(other: ClientCommand, conflict: str) -> None:
    sim = Simulation()
    first = sim.signal("go", request_id="r1")
    with pytest.raises(Refused) as refused:
        sim.tell(other)
    assert refused.value.reason == "request_id_conflict"
    assert refused.value.fields["retained_command_id"] == first["command_id"]
    assert refused.value.fields["retained_command_type"] == "signal"
    assert refused.value.fields["conflict"] == [conflict]


def test_a_repeated_cancel_is_told_what_the_first_was() -> None:
    sim = Simulation()
    first = sim.cancel(request_id="c")
    assert sim.cancel(request_id="c") == first | {"retained": True}


# -- updates --------------------------------------------------------------------------------


def test_an_update_gets_a_task_of_its_own_and_an_ordinary_one_after() -> None:
    sim = Simulation()
    sim.complete(activity())
    update_id = sim.update()["update_id"]
    assert sim.types[-1] == "UpdateAccepted"
    assert sim.state.resume["workflow_update_id"] == update_id
    sim.complete(answer(update_id))
    assert sim.types[-2:] == ["UpdateApplied", "UpdateCompleted"]
    assert sim.payload("UpdateApplied")["arguments"] == {"codec": "avro", "blob": BLOB}
    assert sim.task_lease().state == "r"
    assert sim.state.task_update is None
    assert sim.answers[f"u:{update_id}"]["update_status"] == "completed"
    sim.fail_task(WAITING)
    assert not sim.state.task_open


def test_an_update_takes_no_step() -> None:
    sim = Simulation()
    sim.complete(activity())
    sim.complete(answer(sim.update()["update_id"]))
    assert sim.state.next_step == 2


def test_updates_are_done_in_their_order_with_ordinary_tasks_between() -> None:
    sim = Simulation()
    ids = [sim.update()["update_id"] for _ in range(3)]
    kinds = []
    sim.complete(activity())
    while sim.state.task_open:
        update_id = sim.state.resume.get("workflow_update_id")
        kinds.append(update_id)
        if update_id is None:
            sim.fail_task(WAITING)
        else:
            sim.complete(answer(update_id))
    assert kinds == [ids[0], None, ids[1], None, ids[2], None]


def test_a_failed_update_is_not_applied() -> None:
    sim = Simulation()
    sim.complete(activity())
    update_id = sim.update()["update_id"]
    sim.complete(refusal(update_id))
    assert "UpdateApplied" not in sim.types
    assert sim.payload("UpdateCompleted")["message"] == "no"
    assert sim.answers[f"u:{update_id}"]["failure"]["exception_type"] == "ValueError"
    assert sim.task_lease().state == "r"


def test_answers_to_updates_nobody_asked_for_are_refused_whole() -> None:
    sim = Simulation()
    sim.complete(activity())
    update_id = sim.update()["update_id"]
    for commands in ([answer(f"{RUN_ID}-u9")], [answer(update_id), refusal(update_id)]):
        with pytest.raises(Refused) as refused:
            sim.complete(*commands)
        assert refused.value.reason == "invalid_commands"
    assert [update.number for update in sim.state.updates] == [1]


def test_an_update_that_is_never_answered_fails_in_the_end() -> None:
    sim = Simulation()
    sim.complete(activity())
    update_id = sim.update()["update_id"]
    tasks = 0
    while sim.state.task_open:
        sim.fail_task(WAITING)
        tasks += 1
    assert tasks == 6
    assert sim.answers[f"u:{update_id}"]["update_status"] == "failed"


def test_open_updates_are_limited() -> None:
    sim = Simulation(Limits(pending_update_count=1))
    sim.update()
    with pytest.raises(Refused, match="pending_update_count"):
        sim.update()


@pytest.mark.parametrize("frozen", [False, True])
def test_the_end_of_the_run_fails_open_updates(frozen: bool) -> None:
    sim = Simulation()
    if frozen:
        sim.claim()
    update_id = sim.update()["update_id"]
    sim.complete(COMPLETE)
    assert sim.types[-2:] == ["UpdateCompleted", "WorkflowCompleted"]
    assert sim.types.index("UpdateAccepted") < sim.types.index("UpdateCompleted")
    assert sim.answers[f"u:{update_id}"]["update_status"] == "failed"


# -- cancel and terminate -------------------------------------------------------------------


def test_cancel_ends_everything_at_once() -> None:
    sim = Simulation()
    sim.complete(activity(), timer(9), contender(timer(5), 3, 1, 0))
    sim.claim_activity(1)
    told = sim.cancel()
    assert told["outcome"] == "cancelled"
    assert sim.types[-5:] == [
        "CancelRequested",
        "ActivityCancelled",
        "TimerCancelled",
        "TimerCancelled",
        "WorkflowCancelled",
    ]
    assert sim.payload("WorkflowCancelled")["reason"] == "enough"
    assert sim.state.status == "cancelled"
    assert sim.state.closed_reason == "cancelled"


def test_terminate_ends_a_run_whose_task_is_leased_and_keeps_what_waited() -> None:
    sim = Simulation()
    sim.claim()
    sim.signal()
    sim.terminate()
    assert sim.types[2:] == ["SignalReceived", "TerminateRequested", "WorkflowTerminated"]
    lease = sim.lease(f"{RUN_ID}-w1")
    assert lease.state == ""


def test_a_running_activity_learns_of_the_cancel() -> None:
    sim = Simulation()
    sim.complete(activity())
    lease = sim.claim_activity(1)
    from cluster.ids import AttemptId, TaskId, TaskKind

    task = TaskId(RUN_ID, TaskKind.ACTIVITY, 1)
    attempt = AttemptId(task, lease.attempt, lease.delivery)
    sim.cancel()
    beat = guards.activity_heartbeat(sim.run, sim.activity_lease(1), task, attempt, "orders", "worker-1")
    assert beat["cancel_requested"] is True
    assert beat["can_continue"] is False
    assert beat["reason"] == "run_cancelled"


@pytest.mark.parametrize("kind", list(CommandKind))
def test_a_closed_run_takes_nothing(kind: CommandKind) -> None:
    sim = Simulation()
    sim.complete(COMPLETE)
    with pytest.raises(Refused) as refused:
        sim.tell(ClientCommand(kind, Scope.RUN, name="x"))
    assert refused.value.reason == "run_not_active"
    assert refused.value.fields["outcome"] == "rejected_not_active"
    assert refused.value.fields["target_scope"] == "run"
    assert refused.value.fields["requested_run_id"] == RUN_ID


def test_commands_are_numbered() -> None:
    sim = Simulation()
    told = [sim.signal(), sim.update(), sim.signal()]
    assert [each["command_sequence"] for each in told] == [1, 2, 3]
    assert [each["command_id"] for each in told] == [f"{RUN_ID}-m{n}" for n in (1, 2, 3)]
