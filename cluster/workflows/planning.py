"""Turns a decision into one conditional commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from cluster.ids import TaskKind
from cluster.records import Record
from cluster.schedules.names import freed_timer
from cluster.store.keys import Keys, QueueName, encode
from cluster.store.transaction import BeginRun, ReadyTask, Transaction
from cluster.workflows.changes import (
    Arm,
    Changes,
    CloseChild,
    Disarm,
    DropTask,
    ReadyActivityTask,
    ReadyWorkflowTask,
    Requeue,
)
from cluster.workflows.deadlines import activity_lease_ms, hand_out_deadline, schedule_to_close_ms
from cluster.workflows.events import encode_event, encode_pending
from cluster.workflows.kept_histories import stored
from cluster.workflows.records import (
    ActivityState,
    Payload,
    PendingEvent,
    Run,
    RunInfo,
    RunState,
)
from cluster.workflows.retry import snapshot as retry_snapshot
from cluster.workflows.storage import encode_record, item_field

DROPS_AT_ONCE: Final = 50
"""Tasks a closing commit drops itself; the rest goes to the partition's chunked work (F2)."""
WORK_CHUNK: Final = 50
"""Tasks or children in one item of that work."""


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
    """Add what ``changes`` asks of an existing run to ``tx``; returns the size of its state in bytes."""
    info = run.info
    key = keys.run(tx.partition, info.run_id)
    fields, ended = _fields(run, changes)
    tx.hset(key, fields)
    if ended:
        tx.hdel(key, ended)
    for new in changes.starts:
        plan_begin(tx, keys, new.info, new.changes, leases)
    _extend_history(tx, keys, run, changes)
    _apply_effects(tx, keys, info, changes, leases)
    _keep_receipts(tx, keys, info.run_id, changes)
    if changes.closes and changes.state.closed_at_us is not None:
        closed = keys.closed(tx.partition, info.namespace)
        tx.redis("ZADD", closed, changes.state.closed_at_us // 1000, info.run_id)
        goes_on = any(not new.first for new in changes.starts)
        if info.schedule_id is not None and not goes_on:
            tx.arm(freed_timer(info.namespace, info.schedule_id), changes.state.closed_at_us // 1000)
    _count_failures(tx, keys, run, changes)
    grows = changes.grows or changes.starts
    tx.frees = not grows and not any(isinstance(e, ReadyActivityTask) for e in changes.effects)
    return _size(fields)


def _keep_receipts(tx: Transaction, keys: Keys, run_id: str, changes: Changes) -> None:
    """Keep answers to clients and who asked for what; tell those who wait for an update's end."""
    if not changes.receipts:
        return
    kept = {name: orjson.dumps(receipt) for name, receipt in changes.receipts.items()}
    tx.hset(keys.commands(tx.partition, run_id), kept)
    for name in changes.receipts:
        if name.startswith("u:"):
            tx.publish(keys.changed_channel(), f"update {name[2:]}")


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


def plan_begin(tx: Transaction, keys: Keys, info: RunInfo, changes: Changes, leases: LeaseTimes) -> int:
    """Add the creation of a run to ``tx``; returns the size of its state in bytes."""
    run = Run(info=info, state=RunState(), version=0)
    fields, _ = _fields(run, changes)
    fields |= {
        "i": encode_record(info),
        "wid": info.workflow_id,
        "type": info.workflow_type,
        "bk": info.business_key or "",
    }
    if info.continued_from is not None:
        fields["cf"] = info.continued_from
    tx.begin(
        BeginRun(
            run_id=info.run_id,
            workflow_part=encode(info.workflow_id),
            namespace=info.namespace,
            namespace_part=encode(info.namespace),
            number=info.run_number,
            started_ms=info.started_at_us // 1000,
            fields=fields,
            events=[encode_event(info.run_id, n, event) for n, event in enumerate(changes.events, 1)],
        )
    )
    _keep_receipts(tx, keys, info.run_id, changes)
    _apply_effects(tx, keys, info, changes, leases)
    return _size(fields)


def _fields(run: Run, changes: Changes) -> tuple[dict[str, str | bytes | int], list[str]]:
    """Fields of the run's hash to write, and to delete."""
    state = changes.state
    fields: dict[str, str | bytes | int] = {
        "v": run.version + 1,
        "s": encode_record(state),
        "wt": f"w{state.task_index}" if state.task_open and not state.task_waiting else "",
    }
    if changes.info is not None:
        fields["i"] = encode_record(changes.info)
    if changes.closes:
        fields["c"] = str(state.status)
    ended: list[str] = []
    if state.kept != run.state.kept:
        if state.kept is None:
            ended.append("sk")
        else:
            fields["sk"] = stored(state.kept)
    items: tuple[tuple[str, Mapping[int, Record | None]], ...] = (
        ("a", changes.activities),
        ("t", changes.timers),
        ("c", changes.children),
        ("u", changes.updates),
    )
    for kind, changed in items:
        for number, item in changed.items():
            if item is None:
                ended.append(item_field(kind, number))
            else:
                fields[item_field(kind, number)] = encode_record(item)
    return fields, ended


def _size(fields: Mapping[str, str | bytes | int]) -> int:
    return sum(len(value) for value in fields.values() if isinstance(value, bytes))


def _extend_history(tx: Transaction, keys: Keys, run: Run, changes: Changes) -> None:
    run_id, waited = run.info.run_id, run.state
    history = keys.history(tx.partition, run_id)
    if changes.buffered:
        first = waited.buffered + 1
        pending = [encode_pending(run_id, first + n, event) for n, event in enumerate(changes.buffered)]
        tx.append(keys.pending(tx.partition, run_id), pending)
    ordinal = waited.history_length + 1
    ordinal = _append(tx, history, run_id, ordinal, changes.events)
    if changes.releases or changes.signals_to:
        heir = next((new for new in changes.starts if new.info.run_id == changes.signals_to), None)
        theirs = len(heir.changes.events) + 1 if heir else 0
        tx.release(run_id, ordinal, changes.signals_to or "", theirs)
    _append(tx, history, run_id, ordinal + changes.releases, changes.tail)


def _append(tx: Transaction, history: str, run_id: str, ordinal: int, events: Sequence[PendingEvent]) -> int:
    """Appends events from number ``ordinal`` on; returns the number after the last."""
    if events:
        encoded = [encode_event(run_id, ordinal + n, event) for n, event in enumerate(events)]
        tx.append(history, encoded)
    return ordinal + len(events)


def _apply_effects(tx: Transaction, keys: Keys, info: RunInfo, changes: Changes, leases: LeaseTimes) -> None:
    dropped = 0
    drops: list[str] = []
    closes: list[dict[str, str]] = []
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
                drops.append(task_id)
            case Arm(name, due_ms):
                tx.arm(timer_name(info.run_id, name), due_ms)
            case Disarm(name):
                tx.disarm(timer_name(info.run_id, name))
            case CloseChild():
                closes.append({"ns": info.namespace, **asdict(effect)})
    for verb, items in (("drop", drops), ("close", closes)):
        for start in range(0, len(items), WORK_CHUNK):
            chunk = orjson.dumps({verb: items[start : start + WORK_CHUNK]})
            tx.redis("RPUSH", keys.work(tx.partition), chunk)
    if drops or closes:
        tx.publish(keys.due_channel(), f"{tx.partition} 0")


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
        "traceparent": info.traceparent or None,
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
