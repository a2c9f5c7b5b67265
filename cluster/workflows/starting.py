"""The first decision of a run, and how a run follows another under the same workflow id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cluster import payloads
from cluster.ids import derived_run_id, partition_of_run
from cluster.times import iso_seconds
from cluster.workflows import activities, deadlines, hosting
from cluster.workflows.changes import Arm, Changes, NewRun
from cluster.workflows.command_records import ScheduleActivity
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.names import RUN_TIMER, TASK_TIMER, start_command
from cluster.workflows.records import Run, RunInfo, RunState, RunStatus


def start(
    info: RunInfo,
    now_us: int,
    *,
    delay_seconds: int = 0,
    signals: int = 0,
    context: Mapping[str, Any] | None = None,
) -> Changes:
    """Begins a run: its state, two events and the first workflow task, ready after ``delay_seconds``.

    ``signals`` are those the store moves over from the run before; they follow the two events.
    ``context`` says which client asked for it.
    """
    decision = _started(info, now_us, context)
    decision.releases = signals
    decision.set(signals=signals)
    if delay_seconds:
        decision.set(task_index=1, task_open=True, task_waiting=True)
        decision.effects.append(Arm(TASK_TIMER, decision.in_seconds(delay_seconds)))
    else:
        decision.open_workflow_task()
    changes = decision.changes()
    # The store appends them when it takes them from the other run.
    changes.releases = 0
    return changes


def start_host(
    info: RunInfo, activity: ScheduleActivity, now_us: int, context: Mapping[str, Any] | None = None
) -> Changes:
    """Begins a run that hosts a standalone activity: it has no workflow task."""
    decision = _started(info, now_us, context)
    activities.schedule(decision, activity, hosting.ONLY_STEP, None)
    decision.set(status=RunStatus.WAITING, next_step=hosting.ONLY_STEP + 1)
    return decision.changes()


def _started(info: RunInfo, now_us: int, context: Mapping[str, Any] | None) -> Decision:
    decision = Decision(Run(info=info, state=RunState(), version=0), now_us)
    identity: dict[str, Any] = {
        "workflow_id": info.workflow_id,
        "workflow_instance_id": info.workflow_id,
        "workflow_run_id": info.run_id,
        "workflow_type": info.workflow_type,
    }
    command_id = None if context is None else start_command(info.run_id)
    decision.record(
        EventType.START_ACCEPTED, identity | {"outcome": "started_new"}, workflow_command_id=command_id
    )
    decision.log_command(
        start_command(info.run_id),
        "start",
        context,
        sequence=0,
        outcome="started_new",
        target_scope="instance",
    )
    parent = info.parent
    optional = {
        "business_key": info.business_key,
        "memo": payloads.json_view(info.memo) or None,
        "search_attributes": info.search_attributes or None,
        "execution_timeout_seconds": info.execution_timeout_seconds,
        "run_timeout_seconds": info.run_timeout_seconds,
        "execution_deadline_at": info.execution_deadline_ms and iso_seconds(info.execution_deadline_ms),
        "run_deadline_at": info.run_deadline_ms and iso_seconds(info.run_deadline_ms),
        "compatibility": info.marker or None,
        "parent_workflow_id": parent and parent.workflow_id,
        "parent_workflow_run_id": parent and parent.run_id,
        "parent_sequence": parent and parent.step,
        "continued_from_run_id": info.continued_from,
        "attempt": info.attempt if info.retry is not None else None,
    }
    started = identity | {"run_number": info.run_number, "task_queue": info.task_queue}
    started |= {name: value for name, value in optional.items() if value is not None}
    decision.record(EventType.WORKFLOW_STARTED, started)
    due = deadlines.run_due_ms(info)
    if due is not None:
        decision.effects.append(Arm(RUN_TIMER, due))
    return decision


def next_run(
    info: RunInfo, now_us: int, *, delay_seconds: int = 0, signals: int = 0, **changed: Any
) -> NewRun:
    """The run after ``info``'s: same workflow id, memo, search attributes and execution deadline.

    The run timeout counts anew, from when its first task may be worked on.
    """
    now_ms = now_us // 1000
    partition = partition_of_run(info.run_id) or 0
    timeout = info.run_timeout_seconds
    following = replace(
        info,
        run_id=derived_run_id(info.run_id, "next", partition, now_ms),
        run_number=info.run_number + 1,
        continued_from=info.run_id,
        started_at_us=now_us,
        run_deadline_ms=None if timeout is None else deadlines.due_in(now_us, delay_seconds + timeout),
        **changed,
    )
    begun = start(following, now_us, delay_seconds=delay_seconds, signals=signals)
    return NewRun(following, begun, first=False)
