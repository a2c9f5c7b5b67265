"""Turns a decision into one conditional commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from cluster.ids import TaskKind
from cluster.schedules.names import freed_timer
from cluster.store.keys import Keys, QueueName, encode
from cluster.store.transaction import ReadyTask, Transaction
from cluster.workflows.changes import (
    Arm,
    Changes,
    Disarm,
    DropTask,
    ReadyActivityTask,
    ReadyWorkflowTask,
    Requeue,
)
from cluster.workflows.deadlines import activity_lease_ms, hand_out_deadline, schedule_to_close_ms
from cluster.workflows.events import encode_event
from cluster.workflows.records import ActivityState, Payload, Run, RunInfo
from cluster.workflows.retry import snapshot as retry_snapshot
from cluster.workflows.storage import encode_record, item_field

DROPS_AT_ONCE: Final = 50
"""Tasks a closing commit drops itself; the rest goes to the partition's chunked work (F2)."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long leases of tasks last, in milliseconds."""

    workflow_ms: int = 60_000
    activity_ms: int = 300_000


def timer_name(run_id: str, name: str) -> str:
    """Member of the partition's timers for the timer ``name`` of a run."""
    return f"{run_id} {name}"


def plan(
    tx: Transaction,
    keys: Keys,
    run: Run,
    changes: Changes,
    leases: LeaseTimes,
) -> int:
    """Add what ``changes`` asks for to ``tx``; returns the size of the state in bytes.

    ``run`` is the run before the decision (version 0: it does not exist yet).
    """
    info = run.info
    key = keys.run(tx.partition, info.run_id)
    state = changes.state
    encoded = encode_record(state)
    fields: dict[str, str | bytes | int] = {
        "v": run.version + 1,
        "s": encoded,
        "wt": f"w{state.task_index}" if state.task_open and not state.task_waiting else "",
    }
    ended: list[str] = []
    for kind, items in (("a", changes.activities), ("t", changes.timers)):
        for step, item in items.items():
            if item is None:
                ended.append(item_field(kind, step))
            else:
                fields[item_field(kind, step)] = encode_record(item)
    if changes.closes:
        fields["c"] = str(state.status)
    tx.hset(key, fields)
    if ended:
        tx.hdel(key, ended)
    _append_events(tx, keys, run, changes)
    _apply_effects(tx, keys, run, changes, leases)
    if changes.closes and state.closed_at_us is not None:
        closed = keys.closed(tx.partition, info.namespace)
        tx.redis("ZADD", closed, state.closed_at_us // 1000, info.run_id)
        if info.schedule_id is not None:
            tx.arm(freed_timer(info.namespace, info.schedule_id), state.closed_at_us // 1000)
    _count_failures(tx, keys, run, changes)
    tx.frees = run.version > 0 and not any(isinstance(e, ReadyActivityTask) for e in changes.effects)
    return len(encoded) + sum(len(value) for value in fields.values() if isinstance(value, bytes))


def _count_failures(tx: Transaction, keys: Keys, run: Run, changes: Changes) -> None:
    """Keep the index of runs whose workflow task fails again and again."""
    before, after = run.state.task_failures, changes.state.task_failures
    if changes.state.status.closed:
        after = 0
    if before == after:
        return
    key = keys.failing(tx.partition, run.info.namespace)
    if after:
        tx.redis("ZADD", key, after, run.info.run_id)
    else:
        tx.redis("ZREM", key, run.info.run_id)


def _append_events(tx: Transaction, keys: Keys, run: Run, changes: Changes) -> None:
    first = run.state.history_length + 1
    events = [
        encode_event(run.info.run_id, first + offset, event) for offset, event in enumerate(changes.events)
    ]
    if events:
        tx.append(keys.history(tx.partition, run.info.run_id), events)


def _apply_effects(tx: Transaction, keys: Keys, run: Run, changes: Changes, leases: LeaseTimes) -> None:
    info = run.info
    dropped = 0
    later: list[str] = []
    for effect in changes.effects:
        match effect:
            case ReadyWorkflowTask():
                tx.enqueue(_workflow_task(info, effect, leases))
            case ReadyActivityTask(activity):
                tx.enqueue(_activity_task(info, activity, leases))
            case Requeue(task_id, attempt):
                tx.requeue(task_id, attempt, 0)
            case DropTask(task_id) if dropped < DROPS_AT_ONCE:
                dropped += 1
                tx.drop(task_id)
            case DropTask(task_id):
                later.append(task_id)
            case Arm(name, due_ms):
                tx.arm(timer_name(info.run_id, name), due_ms)
            case Disarm(name):
                tx.disarm(timer_name(info.run_id, name))
    for start in range(0, len(later), DROPS_AT_ONCE):
        chunk = orjson.dumps({"drop": later[start : start + DROPS_AT_ONCE]})
        tx.redis("RPUSH", keys.work(tx.partition), chunk)


def _workflow_task(info: RunInfo, effect: ReadyWorkflowTask, leases: LeaseTimes) -> ReadyTask:
    return ReadyTask(
        task_id=f"{info.run_id}-w{effect.index}",
        run_id=info.run_id,
        heads=QueueName(TaskKind.WORKFLOW, info.namespace, info.task_queue, info.marker).encode(),
        type_part=encode(info.workflow_type),
        attempt=effect.attempt,
        lease_ms=leases.workflow_ms,
    )


def _activity_task(info: RunInfo, activity: ActivityState, leases: LeaseTimes) -> ReadyTask:
    after_ms, cap_ms = hand_out_deadline(activity)
    return ReadyTask(
        task_id=f"{info.run_id}-a{activity.step}",
        run_id=info.run_id,
        heads=QueueName(TaskKind.ACTIVITY, info.namespace, activity.task_queue, info.marker).encode(),
        type_part=encode(activity.activity_type),
        attempt=activity.attempt,
        lease_ms=activity_lease_ms(activity, leases.activity_ms),
        timer=timer_name(info.run_id, f"a{activity.step}"),
        timer_after_ms=after_ms,
        timer_cap_ms=cap_ms,
        body=activity_body(info, activity),
    )


def activity_body(info: RunInfo, activity: ActivityState) -> bytes:
    """The parts of a poll answer that are known when an activity is scheduled, as JSON.

    ``timeouts`` is for the node that hands the task out; it turns them into deadlines.
    """
    body: dict[str, Any] = {
        "workflow_id": info.workflow_id,
        "run_id": info.run_id,
        "workflow_type": info.workflow_type,
        "activity_execution_id": f"{info.run_id}-a{activity.step}",
        "activity_type": activity.activity_type,
        "payload_codec": activity.arguments.codec if activity.arguments else info.payload_codec,
        "arguments": _payload(activity.arguments),
        "retry_policy": retry_snapshot(activity),
        "worker_session": activity.worker_session,
        "timeouts": _present(
            {
                "schedule_to_start_at_ms": _schedule_to_start_ms(activity),
                "start_to_close_seconds": activity.start_to_close_seconds,
                "schedule_to_close_at_ms": schedule_to_close_ms(activity) or None,
                "heartbeat_seconds": activity.heartbeat_seconds,
            }
        ),
    }
    return orjson.dumps(_present(body))


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _payload(payload: Payload | None) -> dict[str, str] | None:
    return None if payload is None else {"codec": payload.codec, "blob": payload.blob}


def _schedule_to_start_ms(activity: ActivityState) -> int | None:
    seconds = activity.schedule_to_start_seconds
    return None if not seconds else activity.ready_at_ms + seconds * 1000
