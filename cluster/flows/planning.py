"""Turns a decision about a flow into one conditional commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import orjson

from cluster.flows.bodies import step_body
from cluster.flows.changes import (
    Append,
    Arm,
    AskToStop,
    Changes,
    Disarm,
    DropTask,
    Forget,
    ReadyStep,
    ReturnTask,
    Take,
)
from cluster.flows.decision import step_timer
from cluster.flows.limits import HISTORY_KEPT
from cluster.flows.records import FlowInfo, FlowRun, Method, StepState
from cluster.flows.storage import encode_record, step_field, step_task_id
from cluster.ids import TaskKind
from cluster.queues.hand_outs import HandedOut
from cluster.queues.reservations import Reservation
from cluster.store.keys import Keys, QueueName, encode
from cluster.store.transaction import OpenSlot, ReadyTask, Transaction
from cluster.times import iso_ms

TIMERS: Final = "flow"
"""First word of the names of all timers of flows."""
DROPS_AT_ONCE: Final = 50
"""Tasks a closing commit drops itself; the rest goes to the partition's chunked work (F2)."""
LEASE_MARGIN_MS: Final = 5_000
RETURNED: Final = "returned"
"""Marker behind which attempts stand aside that came back again and again."""
NOTHING_FIXED: Final[Mapping[str, str | bytes]] = {}
_CHUNK: Final = 500
_STORING: Final = frozenset({ReadyStep, Append})
"""Effects that need room in the store."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a step that became ready is put (rule C): ``behind`` tells, for heads and an encoded type,
    whether older work of the same kind waits in another partition. ``reserve`` finds a free slot of this
    node for the first step of a flow, by its queue and step type.
    """

    sticky_ms: int = 5_000
    sync_ms: int = 200
    behind: Callable[[QueueName, str], bool] = lambda queue, type_part: False
    reserve: Callable[[QueueName, str], Reservation | None] = lambda queue, step_type: None


class Taker(Protocol):
    """The slot that gets free when the step before a decision ends, or is reserved for it."""

    def takes(self, queue: QueueName, step_type: str) -> OpenSlot | None:
        """The slot, if the step can go to it at once: it is free, and nothing that it could take waits."""


class OfferedTask(msgspec.Struct, frozen=True):
    """What a slot is told if it gets the task."""

    task_id: str
    attempt: int
    body: bytes


class Planned(msgspec.Struct, frozen=True):
    """``written``: about how many bytes of the run a commit writes. ``offered`` is the task that it may give
    to a slot, None when it gives none.
    """

    written: int
    offered: OfferedTask | None = None

    def handed_out(self, tx: Transaction) -> HandedOut | None:
        """The step that the slot has got by ``tx``, which was committed just now."""
        task = self.offered
        at_ms = None if task is None else tx.handed_over.get(task.task_id)
        if task is None or at_ms is None:
            return None
        return HandedOut(tx.partition, task.task_id, task.attempt, 0, at_ms, task.body)


def timer_name(run_id: str, name: str) -> str:
    """Member of the partition's timers for the timer ``name`` of a run."""
    return f"{TIMERS} {run_id} {name}"


def plan(
    tx: Transaction,
    keys: Keys,
    run: FlowRun,
    changes: Changes,
    placement: Placement,
    taker: Taker | None = None,
    fixed: Mapping[str, str | bytes] = NOTHING_FIXED,
) -> Planned:
    """Add what ``changes`` asks for to ``tx``. ``run`` is the run before the decision; the id of the request
    becomes its next version. The first step that becomes ready may go to ``taker``. ``fixed`` are fields
    that a new run has besides, and keeps.
    """
    info, state = run.info, changes.state
    key = keys.run(tx.partition, info.run_id)
    fields: dict[str, str | bytes] = {**fixed, "v": tx.request_id, "s": encode_record(state)}
    ended: list[str] = []
    for k, step in changes.steps.items():
        if step is None:
            ended.append(step_field(k))
        else:
            fields[step_field(k)] = encode_record(step)
    if changes.attributes is not None:
        fields["at"] = encode_record(changes.attributes)
    if changes.halts or changes.closes:
        fields["c"] = "stopping" if state.stop is not None else state.status.value
    if changes.closes:
        fields["st"] = state.status.value
    tx.hset(key, fields)
    if ended:
        tx.hdel(key, ended)
    if changes.history:
        _append_history(tx, keys, run, changes.history)
    offered = _apply_effects(tx, keys, info, changes, placement, taker)
    if changes.closes:
        tx.redis("ZADD", keys.closed_flows(tx.partition, info.namespace), state.closed_at_ms, info.run_id)
        tx.publish(keys.flow_end_channel(info.run_id), state.status.value)
    tx.frees = run.version != "" and _STORING.isdisjoint(map(type, changes.effects))
    return Planned(sum(map(len, fields.values())), offered)


def _append_history(tx: Transaction, keys: Keys, run: FlowRun, entries: list[dict[str, Any]]) -> None:
    key = keys.steps(tx.partition, run.info.run_id)
    first = run.state.history_length + 1
    rows = [
        orjson.dumps({"sequence": first + offset, **entry, "at": iso_ms(entry["at_ms"])})
        for offset, entry in enumerate(entries)
    ]
    tx.append(key, rows)
    if first + len(rows) > HISTORY_KEPT:
        tx.redis("LTRIM", key, -HISTORY_KEPT, -1)


def _apply_effects(
    tx: Transaction,
    keys: Keys,
    info: FlowInfo,
    changes: Changes,
    placement: Placement,
    taker: Taker | None,
) -> OfferedTask | None:
    dropped, offered = 0, None
    later: list[str] = []
    timers: list[str] = []
    for effect in changes.effects:
        match effect:
            case ReadyStep():
                step, queue = effect.step, step_queue(info)
                slot = None if taker is None else taker.takes(queue, step.step_type)
                taker = None
                task = ready_step(tx, keys, info, step, queue, changes.state.last_worker, placement, slot)
                if slot is not None:
                    offered = OfferedTask(task.task_id, task.attempt, step_body(info, step))
            case DropTask():
                if changes.closes and dropped >= DROPS_AT_ONCE:
                    later.append(step_task_id(info.run_id, effect.k))
                else:
                    dropped += 1
                    tx.drop(step_task_id(info.run_id, effect.k), tell=effect.told)
            case AskToStop(k):
                tx.ask_to_stop(step_task_id(info.run_id, k))
            case ReturnTask(k, attempt, delivery, excluded, due_ms):
                give_back(tx, step_task_id(info.run_id, k), attempt, delivery, encode(excluded), due_ms)
            case Arm(name, due_ms):
                tx.arm(timer_name(info.run_id, name), due_ms)
            case Disarm(name) if not changes.closes:
                tx.disarm(timer_name(info.run_id, name))
            case Disarm(name):
                timers.append(timer_name(info.run_id, name))
            case Append(channel, values):
                tx.append(keys.channel(tx.partition, info.run_id, channel), values)
            case Take(channel, count):
                tx.redis("LPOP", keys.channel(tx.partition, info.run_id, channel), count)
            case Forget(channel):
                tx.redis("UNLINK", keys.channel(tx.partition, info.run_id, channel))
    for start in range(0, len(timers), _CHUNK):
        tx.redis("ZREM", keys.timers(tx.partition), *timers[start : start + _CHUNK])
    for start in range(0, len(later), DROPS_AT_ONCE):
        chunk = orjson.dumps({"drop": later[start : start + DROPS_AT_ONCE]})
        tx.redis("RPUSH", keys.work(tx.partition), chunk)
    return offered


def step_queue(info: FlowInfo) -> QueueName:
    """The queue of a run's steps: that of its flow type."""
    return QueueName(TaskKind.STEP, info.namespace, info.flow_type)


def give_back(tx: Transaction, task_id: str, attempt: int, delivery: int, excluded: str, due_ms: int) -> None:
    """Make a leased task ready again at its old place, as the next delivery of the same attempt.

    ``excluded`` is an encoded worker id. With ``due_ms`` it stands aside until then.
    """
    if due_ms:
        tx.set_aside(task_id, attempt, delivery + 1, RETURNED, due_ms, excluding=excluded)
    else:
        tx.requeue(task_id, attempt, delivery + 1, excluded)


def ready_step(
    tx: Transaction,
    keys: Keys,
    info: FlowInfo,
    step: StepState,
    queue: QueueName,
    last_worker: str,
    placement: Placement,
    slot: OpenSlot | None = None,
) -> ReadyTask:
    """Put the attempt of ``step`` where it finds a worker soonest; ``last_worker`` served the flow last."""
    options = step.options.of(step.method)
    type_part = encode(step.step_type)
    task = ReadyTask(
        task_id=step_task_id(info.run_id, step.k),
        run_id=info.run_id,
        heads=queue.encode(),
        type_part=type_part,
        attempt=step.attempt,
        lease_ms=options.timeout_ms + LEASE_MARGIN_MS,
        timer=timer_name(info.run_id, step_timer(step.k)),
        timer_after_ms=min(options.timeout_ms, options.heartbeat_ms),
    )
    tx.offer(
        task,
        encode(last_worker),
        # Where there is older work for sure the slot is not offered.
        behind=(slot is None or slot.doubts != ()) and placement.behind(queue, type_part),
        sync_ms=placement.sync_ms,
        sticky_ms=placement.sticky_ms,
        slot=slot,
    )
    if step.method is Method.WAIT_FOR:
        tx.hset(keys.task(tx.partition, task.task_id), {"m": Method.WAIT_FOR.letter})
    return task


def expect_method(tx: Transaction, keys: Keys, task_id: str, method: Method) -> None:
    """The task is one of ``method``: both methods of a step share its task id."""
    key = keys.task(tx.partition, task_id)
    if method is Method.WAIT_FOR:
        tx.expect_equal(key, "m", method.letter)
    else:
        tx.expect_unset(key, "m")
