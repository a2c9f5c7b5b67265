"""Child workflows: started by a command, reporting to the run that started them.

A child lives in its parent's partition (rule F1), so its start is part of the parent's commit and
its end is part of its own: there is no moment at which one of them knows and the other does not.
A child may go on in further runs (continue-as-new, retries); the parent hears of the last one's end,
under the id of the first.
"""

from __future__ import annotations

from typing import Any, Final

from cluster.ids import derived_run_id, derived_workflow_id, partition_of_run
from cluster.workflows import starting
from cluster.workflows.changes import Changes, ChildOver, CloseChild, NewRun
from cluster.workflows.command_records import StartChildWorkflow
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.failures import envelope
from cluster.workflows.records import ChildState, Lease, ParentRef, Run, RunInfo

_EVENTS: Final = {
    "completed": EventType.CHILD_RUN_COMPLETED,
    "failed": EventType.CHILD_RUN_FAILED,
    "timed_out": EventType.CHILD_RUN_FAILED,
    "cancelled": EventType.CHILD_RUN_CANCELLED,
    "terminated": EventType.CHILD_RUN_TERMINATED,
}


def start_child(
    decision: Decision, command: StartChildWorkflow, step: int, task_id: str, partitions: int
) -> None:
    """Begins a child and its first run in the same commit."""
    parent = decision.info
    now_ms = decision.now_ms
    partition = partition_of_run(parent.run_id) or 0
    seed = f"{parent.run_id}/{step}"
    execution, run = command.execution_timeout_seconds, command.run_timeout_seconds
    info = RunInfo(
        namespace=parent.namespace,
        workflow_id=derived_workflow_id(seed, partition, partitions, now_ms),
        run_id=derived_run_id(parent.run_id, str(step), partition, now_ms),
        workflow_type=command.workflow_type,
        task_queue=command.queue or parent.task_queue,
        marker=parent.marker,
        payload_codec=command.arguments.codec if command.arguments else parent.payload_codec,
        input=command.arguments,
        execution_timeout_seconds=execution,
        run_timeout_seconds=run,
        started_at_us=decision.now_us,
        execution_deadline_ms=None if execution is None else decision.in_seconds(execution),
        run_deadline_ms=None if run is None else decision.in_seconds(run),
        parent=ParentRef(workflow_id=parent.workflow_id, run_id=parent.run_id, step=step),
        retry=command.retry,
        traceparent=parent.traceparent,
    )
    child = ChildState(
        step=step,
        workflow_id=info.workflow_id,
        run_id=info.run_id,
        workflow_type=info.workflow_type,
        policy=command.parent_close_policy.value,
        group=command.group,
    )
    decision.open_child(child)
    decision.starts.append(NewRun(info, starting.start(info, decision.now_us), first=True))
    payload = _identity(decision, child)
    if command.policy_given:
        payload["parent_close_policy"] = child.policy
    if command.cancellation_policy is not None:
        payload["cancellation_policy"] = command.cancellation_policy
    scheduled = payload | {"task_queue": info.task_queue}
    if command.arguments is not None:
        scheduled["arguments"] = envelope(command.arguments)
    decision.record(EventType.CHILD_WORKFLOW_SCHEDULED, scheduled, workflow_task_id=task_id)
    decision.record(EventType.CHILD_RUN_STARTED, payload, workflow_task_id=task_id)


def child_over(run: Run, step: int, over: ChildOver, task_lease: Lease, now_us: int) -> Changes | None:
    """A child of ``run`` closed for good; None when nobody waits for it any more."""
    child = run.children.get(step)
    if run.state.status.closed or child is None:
        return None
    decision = Decision(run, now_us, task_lease)
    decision.end_child(child)
    payload = _identity(decision, child)
    if over.run_id != child.run_id:
        payload["child_workflow_last_run_id"] = over.run_id
    completed = over.status == "completed"
    decision.end(child.group, _EVENTS[over.status], payload | _ending(over), failed=not completed)
    return decision.changes()


def withdraw(decision: Decision, child: ChildState) -> None:
    """Gives up an open child: it is cancelled, and its end is not waited for."""
    decision.end_child(child)
    decision.effects.append(
        CloseChild(
            child.workflow_id, decision.info.run_id, "cancel", "The parent workflow cancelled the operation."
        )
    )


def _ending(over: ChildOver) -> dict[str, Any]:
    """How the child's last event reads in its parent's history."""
    payload = over.payload
    if over.status == "completed":
        output = payload.get("output")
        if output is None:
            return {"result": None}
        return {"result": output["blob"], "payload_codec": output["codec"]}
    if over.status in ("failed", "timed_out"):
        failure = {name: value for name, value in payload.items() if name != "deadline_at"}
        failure.setdefault("exception_type", "ChildWorkflowTimedOut" if over.status == "timed_out" else None)
        return {name: value for name, value in failure.items() if value is not None}
    message = payload.get("reason") or f"The child workflow was {over.status}."
    return {"message": message, "reason": payload.get("reason"), "closed_reason": over.status}


def _identity(decision: Decision, child: ChildState) -> dict[str, Any]:
    """What every event of a child carries in its parent's history."""
    return {
        "child_call_id": decision.child_call_id(child.step),
        "child_workflow_instance_id": child.workflow_id,
        "child_workflow_run_id": child.run_id,
        "child_workflow_type": child.workflow_type,
        "sequence": child.step,
        **child.group,
    }
