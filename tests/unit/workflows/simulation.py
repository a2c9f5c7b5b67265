"""A store in memory for one run: applies decisions and checks what must hold after each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec.structs import replace

from cluster.ids import TaskId, parse_task_id
from cluster.records import Record
from cluster.workflows import deadlines, groups, guards, machine
from cluster.workflows.changes import (
    Arm,
    Changes,
    ChildOver,
    CloseChild,
    Disarm,
    DropTask,
    NewRun,
    ReadyActivityTask,
    ReadyWorkflowTask,
    Requeue,
)
from cluster.workflows.client_commands import ClientCommand, CommandKind
from cluster.workflows.commands import check_fields, normalise
from cluster.workflows.events import encode_event, encode_pending
from cluster.workflows.limits import is_too_long
from cluster.workflows.records import (
    ActivityState,
    ChildState,
    KeptHistory,
    Lease,
    Payload,
    PendingEvent,
    Run,
    RunInfo,
    RunState,
    TimerState,
    UpdateState,
)

R = TypeVar("R", bound=Record)
Item = TypeVar("Item", ActivityState, TimerState, ChildState, UpdateState)

RUN_ID = "01KB8M3V6T5Q0Z9W2N4X7C1D0G"
START_US = 1_764_504_000_123_000
BLOB = "wwHioz3/VYAiNwRU"
RESULT = Payload(codec="avro", blob=BLOB)
LEASE_MS = 60_000
PARTITIONS = 32
ACTIVITY_LEASE_MS = 300_000


def run_info(**fields: Any) -> RunInfo:
    values: dict[str, Any] = {
        "namespace": "orders",
        "workflow_id": "order-1",
        "run_id": RUN_ID,
        "workflow_type": "fulfil",
        "task_queue": "main",
        "started_at_us": START_US,
    }
    return RunInfo(**{**values, **fields})


def activity(**fields: Any) -> dict[str, Any]:
    """A raw schedule_activity command."""
    return {"type": "schedule_activity", "activity_type": "charge", **fields}


def timer(delay_seconds: int = 5, **fields: Any) -> dict[str, Any]:
    """A raw start_timer command."""
    return {"type": "start_timer", "delay_seconds": delay_seconds, **fields}


def member(command: Mapping[str, Any], base: int, size: int, index: int, *inner: tuple[int, int, int]) -> Any:
    """``command`` as a member of a parallel group, with the levels inside it, if any."""
    path = [
        {
            "parallel_group_id": f"parallel-calls:{b}:{s}",
            "parallel_group_kind": "mixed",
            "parallel_group_base_sequence": b,
            "parallel_group_size": s,
            "parallel_group_index": i,
        }
        for b, s, i in ((base, size, index), *inner)
    ]
    return {**command, **path[-1], "parallel_group_path": path}


def contender(
    command: Mapping[str, Any], base: int, size: int, index: int, *, kind: str = "timer", key: str = ""
) -> Any:
    """``command`` as a member of a race, one step long."""
    level = {
        "parallel_group_id": f"select-calls:{base}:{size}",
        "parallel_group_kind": "mixed",
        "parallel_group_mode": "select",
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
        "selection_member_key": key or f"m{index}",
        "selection_member_index": index,
        "selection_member_base_sequence": base + index,
        "selection_member_size": 1,
        "selection_member_kind": kind,
    }
    return {**command, **level, "parallel_group_path": [level]}


COMPLETE = {"type": "complete_workflow", "result": {"codec": "avro", "blob": BLOB}}
FAIL = {"type": "fail_workflow", "message": "no stock", "exception_type": "OutOfStock"}
WAITING = {"type": "WorkflowTaskWaitingForHistory", "message": "Workflow task waiting for scheduled history."}


class Simulation:
    """One run, its tasks, timers and history. Times move only by :meth:`advance`."""

    def __init__(self, limits: machine.Limits | None = None, **info: Any) -> None:
        self.now_us = START_US
        self.limits = limits or machine.Limits()
        self.history: list[dict[str, Any]] = []
        self.tasks: dict[str, Lease] = {}
        self.timers: dict[str, int] = {}
        self.unseen_wake = False
        self.waiting: list[tuple[int, PendingEvent]] = []
        self.children: dict[str, NewRun] = {}
        self.cancelled: set[int] = set()
        self.closing: list[CloseChild] = []
        self.reports: list[ChildOver] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.run = Run(info=run_info(**info), state=RunState(), version=0)
        self.last = self.apply(machine.start(self.run.info, self.now_us))

    # -- views ------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        return self.run.state

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def types(self) -> list[str]:
        """The event types of the history, in order."""
        return [event["event_type"] for event in self.history]

    def payload(self, event_type: str) -> dict[str, Any]:
        """The payload of the newest event of a type."""
        found: dict[str, Any] = [e["payload"] for e in self.history if e["event_type"] == event_type][-1]
        return found

    def task_id(self) -> str:
        return f"{RUN_ID}-w{self.state.task_index}"

    def lease(self, task_id: str) -> Lease:
        return self.tasks.get(task_id, Lease(task_id=task_id, state=""))

    def task_lease(self) -> Lease:
        return self.lease(self.task_id())

    def activity_lease(self, step: int) -> Lease:
        return self.lease(f"{RUN_ID}-a{step}")

    # -- what the store does ----------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)

    def claim(self, task_id: str | None = None, owner: str = "worker-1") -> Lease:
        """Hands a ready task out."""
        task_id = task_id or self.task_id()
        task = self.tasks[task_id]
        assert task.state == "r"
        parsed = _parsed(task_id)
        lease_ms = LEASE_MS
        if parsed.kind == "a":
            item = self.run.activities[parsed.index]
            lease_ms = machine.activity_lease_ms(item, ACTIVITY_LEASE_MS)
            after, cap = machine.hand_out_deadline(item)
            self.timers.pop(f"a{parsed.index}", None)
            if after:
                due = self.now_ms + after + 1
                self.timers[f"a{parsed.index}"] = min(due, cap) if cap else due
        else:
            self.unseen_wake = False
        self.tasks[task_id] = replace(
            task, state="l", owner=owner, leased_at_ms=self.now_ms, expires_at_ms=self.now_ms + lease_ms
        )
        return self.tasks[task_id]

    def claim_activity(self, step: int, owner: str = "worker-1") -> Lease:
        return self.claim(f"{RUN_ID}-a{step}", owner)

    def heartbeat(self, step: int, progress: dict[str, Any] | None = None) -> None:
        """Renews an activity's lease and its timer, as the engine does."""
        task_id = f"{RUN_ID}-a{step}"
        item = self.run.activities[step]
        lease = guards.renewed(self.tasks[task_id], self.now_ms)
        lease_ms = machine.activity_lease_ms(item, ACTIVITY_LEASE_MS)
        self.tasks[task_id] = replace(lease, expires_at_ms=self.now_ms + lease_ms, progress=progress)
        due = machine.next_due_ms(item, self.tasks[task_id])
        if due is not None:
            self.timers[f"a{step}"] = due

    def fire(self, name: str) -> Changes:
        """Does what the engine does when timer ``name`` is due."""
        kind, step = name[0], int(name[1:] or 0)
        match kind:
            case "t":
                return self.apply(machine.timer_due(self.run, step, self.task_lease(), self.now_us))
            case "a":
                lease = self.activity_lease(step)
                return self.apply(
                    machine.activity_deadline(self.run, step, lease, self.task_lease(), self.now_us)
                )
            case "q":
                return self.apply(machine.wait_due(self.run, step, self.task_lease(), self.now_us))
            case "w":
                return self.apply(machine.workflow_task_due(self.run, self.now_us))
            case _:
                return self.apply(machine.run_deadline(self.run, self.task_lease(), self.now_us, self.limits))

    # -- what workers do --------------------------------------------------------------------

    def complete(self, *commands: Mapping[str, Any], kept: KeptHistory | None = None) -> Changes:
        """Claims the workflow task unless it is leased, and answers with raw ``commands``."""
        if self.task_lease().state == "r":
            self.claim()
        check_fields(list(commands))
        return self.apply(
            machine.complete_workflow_task(
                self.run, self.task_lease(), normalise(commands), self.now_us, self.limits, PARTITIONS, kept
            ),
            ends=self.task_id(),
        )

    def fail_task(self, failure: Mapping[str, Any]) -> Changes:
        if self.task_lease().state == "r":
            self.claim()
        return self.apply(
            machine.fail_workflow_task(self.run, self.task_lease(), failure, self.now_us), ends=self.task_id()
        )

    def lapse_task(self) -> Changes:
        changes = machine.workflow_task_lapsed(self.run, self.task_lease(), self.now_us)
        return self.apply(changes, ends=self.task_id())

    def finish_activity(self, step: int, result: Payload | None = RESULT) -> Changes:
        lease = self.activity_lease(step)
        return self.apply(
            machine.complete_activity(self.run, step, lease, self.task_lease(), result, self.now_us)
        )

    def fail_activity(self, step: int, **failure: Any) -> Changes:
        failure = {"message": "boom", "type": "RuntimeError", **failure}
        lease = self.activity_lease(step)
        return self.apply(
            machine.fail_activity(self.run, step, lease, self.task_lease(), failure, self.now_us)
        )

    def lapse_activity(self, step: int) -> Changes:
        lease = self.activity_lease(step)
        return self.apply(machine.activity_lapsed(self.run, step, lease, self.task_lease(), self.now_us))

    # -- what clients and children do -------------------------------------------------------

    def tell(self, command: ClientCommand) -> dict[str, Any]:
        """Applies a client's command; returns the answer."""
        kept = self.answers.get(command.receipt)
        found = machine.client_command(self.run, command, kept, self.task_lease(), self.now_us, self.limits)
        if isinstance(found, dict):
            return found
        self.apply(found)
        return dict(found.outcome)

    def signal(self, name: str = "go", request_id: str | None = None) -> dict[str, Any]:
        return self.tell(ClientCommand(CommandKind.SIGNAL, name=name, input=RESULT, request_id=request_id))

    def update(self, name: str = "add", request_id: str | None = None) -> dict[str, Any]:
        return self.tell(ClientCommand(CommandKind.UPDATE, name=name, input=RESULT, request_id=request_id))

    def cancel(self, request_id: str | None = None) -> dict[str, Any]:
        return self.tell(ClientCommand(CommandKind.CANCEL, reason="enough", request_id=request_id))

    def terminate(self) -> dict[str, Any]:
        return self.tell(ClientCommand(CommandKind.TERMINATE, reason="enough"))

    def end_child(self, step: int, status: str = "completed", **payload: Any) -> Changes | None:
        """The child of a step is over for good."""
        over = ChildOver(status, f"{RUN_ID[:-1]}Z", payload or {"output": {"codec": "avro", "blob": BLOB}})
        changes = machine.child_over(self.run, step, over, self.task_lease(), self.now_us)
        return None if changes is None else self.apply(changes)

    # -- apply and check --------------------------------------------------------------------

    def apply(self, changes: Changes, ends: str = "") -> Changes:
        before = self.run
        frozen = self.task_lease().state == "l" and ends != self.task_id() and not changes.closes
        if frozen:
            assert changes.events == [], "the history of a leased task is frozen"
        if before.state.status.closed:
            assert changes.state == before.state
            assert not changes.events
        first = before.state.buffered + 1
        self.waiting += [(first + n, event) for n, event in enumerate(changes.buffered)]
        for event in changes.events:
            self._append(event)
        self._release(changes)
        for event in changes.tail:
            self._append(event)
        for effect in changes.effects:
            self._do(effect)
        for new in changes.starts:
            self.children[new.info.run_id] = new
        if changes.report is not None:
            self.reports.append(changes.report)
        self.answers |= orjson.loads(orjson.dumps(changes.receipts))
        self.run = Run(
            info=changes.info or before.info,
            state=_stored(changes.state),
            version=before.version + 1,
            activities=_merged(before.activities, changes.activities),
            timers=_merged(before.timers, changes.timers),
            children=_merged(before.children, changes.children),
            updates=_merged(before.updates, changes.updates),
        )
        for event in changes.events:
            group = groups.key(groups.fields(event.payload))
            assert not event.wakes or group not in self.state.groups, "a group woke the run early"
        self.last = changes
        self.check()
        return changes

    def _append(self, event: PendingEvent, number: int | None = None) -> None:
        ordinal = len(self.history) + 1
        if number is None:
            stored = orjson.loads(encode_event(RUN_ID, ordinal, event))
        else:
            stored = {"sequence": ordinal, **orjson.loads(encode_pending(RUN_ID, number, event))}
        self.history.append(stored)
        self.unseen_wake = self.unseen_wake or event.wakes

    def _release(self, changes: Changes) -> None:
        """What the store does with events that waited."""
        if not changes.releases and not changes.signals_to:
            return
        stay = [
            (number, event)
            for number, event in self.waiting
            if not changes.signals_to or event.event_type != "SignalReceived"
        ]
        assert len(stay) == changes.releases
        for number, event in stay:
            self._append(event, number)
        self.waiting.clear()

    def _do(self, effect: object) -> None:
        match effect:
            case ReadyWorkflowTask(index, attempt):
                self._enqueue(f"{RUN_ID}-w{index}", attempt)
            case ReadyActivityTask(item):
                self._enqueue(f"{RUN_ID}-a{item.step}", item.attempt)
            case Requeue(task_id, attempt):
                assert self.tasks[task_id].state == "l"
                self.tasks[task_id] = Lease(task_id=task_id, state="r", attempt=attempt)
            case DropTask(task_id):
                self.tasks.pop(task_id, None)
                parsed = _parsed(task_id)
                if parsed.kind == "a":
                    self.timers.pop(f"a{parsed.index}", None)
            case Arm(name, due_ms):
                self.timers[name] = due_ms
            case Disarm(name):
                self.timers.pop(name, None)
            case CloseChild():
                self.closing.append(effect)
            case _:
                raise AssertionError(effect)

    def _enqueue(self, task_id: str, attempt: int) -> None:
        assert task_id not in self.tasks, "a task is put on its queue while it has a record"
        self.tasks[task_id] = Lease(task_id=task_id, state="r", attempt=attempt)

    def check(self) -> None:
        """Everything that must hold between two decisions."""
        state = self.state
        assert [event["sequence"] for event in self.history] == list(range(1, state.history_length + 1))
        assert len({event["id"] for event in self.history}) == len(self.history)
        assert tuple(sorted(self.run.activities)) == tuple(sorted(state.activities))
        assert tuple(sorted(self.run.timers)) == tuple(sorted(state.timers))
        workflow_tasks = [task for task in self.tasks if _parsed(task).kind == "w"]
        ready_or_leased = state.task_open and not state.task_waiting
        assert workflow_tasks == ([self.task_id()] if ready_or_leased else [])
        assert ("w" in self.timers) == (state.task_open and state.task_waiting)
        assert tuple(sorted(self.run.children)) == tuple(sorted(state.children))
        assert tuple(sorted(self.run.updates)) == tuple(sorted(u.number for u in state.updates))
        assert state.pending == len(self.waiting)
        assert not state.pending or self.task_lease().state == "l"
        assert not state.updates or state.task_open, "an update has no task to come"
        expected = {"w", "r"} | {f"t{step}" for step in state.timers} | {f"a{s}" for s in state.activities}
        waits = {f"q{wait.step}" for wait in state.waits if wait.due_ms is not None}
        expected |= waits
        assert self.timers.keys() <= expected, "a timer outlived what it was for"
        assert waits <= self.timers.keys()
        for step in state.timers:
            assert f"t{step}" in self.timers
        for step, item in self.run.activities.items():
            self._check_activity(step, item)
        if state.status.closed:
            assert not self.tasks
            assert not self.timers
            assert not state.activities
            assert not state.timers
            assert not state.groups
            for left in (state.races, state.children, state.waits, state.updates):
                assert not left
        else:
            assert not self.unseen_wake or state.task_open, "a wake was lost"
            timed = deadlines.run_due_ms(self.run.info) is not None
            assert ("r" in self.timers) == (timed or is_too_long(self.limits, state.history_length))
        self._check_steps()

    def _check_activity(self, step: int, item: ActivityState) -> None:
        record = self.activity_lease(step)
        assert (record.state == "") == item.waiting
        if not item.waiting:
            assert record.attempt == item.attempt
        due = machine.next_due_ms(item, record)
        if due is None:
            assert f"a{step}" not in self.timers
        else:
            assert self.timers[f"a{step}"] <= due, "a deadline comes later than its limit"

    def _check_steps(self) -> None:
        opening = (
            "ActivityScheduled",
            "TimerScheduled",
            "SideEffectRecorded",
            "VersionMarkerRecorded",
            "ConditionWaitOpened",
            "ChildWorkflowScheduled",
            "MemoUpserted",
            "SearchAttributesUpserted",
        )
        ending = (
            "ActivityCompleted",
            "ActivityFailed",
            "ActivityTimedOut",
            "ActivityCancelled",
            "TimerFired",
            "ConditionWaitSatisfied",
            "ConditionWaitTimedOut",
            "ChildRunCompleted",
            "ChildRunFailed",
            "ChildRunCancelled",
            "ChildRunTerminated",
        )
        events = self.history + [
            {"event_type": event.event_type, "payload": event.payload} for _, event in self.waiting
        ]
        events = [event for event in events if event["payload"].get("timer_kind") is None]
        opened = [e["payload"]["sequence"] for e in events if e["event_type"] in opening]
        assert opened == list(range(1, self.state.next_step)), "steps have a gap or repeat"
        ended = [e["payload"]["sequence"] for e in events if e["event_type"] in ending]
        assert len(set(ended)) == len(ended), "an item ended twice"
        lasting = (*opening[:2], *opening[4:6])
        items = {e["payload"]["sequence"] for e in events if e["event_type"] in lasting}
        state = self.state
        still_open = {*state.activities, *state.timers, *state.children, *(w.step for w in state.waits)}
        still_open |= self.cancelled
        assert not (still_open - self.cancelled) & set(ended)
        if not self.state.status.closed:
            assert items == still_open | set(ended), "an item got lost"


def _parsed(task_id: str) -> TaskId:
    parsed = parse_task_id(task_id)
    assert parsed is not None
    return parsed


def _stored(record: R) -> R:
    """What comes back when a record is stored and read again."""
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=type(record))
    assert again == record
    return again


def _merged(old: dict[int, Item], changes: dict[int, Item | None]) -> dict[int, Item]:
    merged = {**old, **changes}
    return {step: _stored(item) for step, item in merged.items() if item is not None}
