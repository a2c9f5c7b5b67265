"""The lists of a history export, worked out from the events (sdk-wire 5.3).

Events are the truth, so every list follows from them; what else is kept of a run (its state, the
lease of its open workflow task, who asked for what) completes them. An item that was open when its
run closed is shown as cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cluster.workflows.deadlines import LEASED
from cluster.workflows.events import EventType
from cluster.workflows.records import Lease, Run, RunStatus

Event = Mapping[str, Any]

_COMMANDS: Final = {
    EventType.START_ACCEPTED: "start",
    EventType.SIGNAL_RECEIVED: "signal",
    EventType.UPDATE_ACCEPTED: "update",
    EventType.CANCEL_REQUESTED: "cancel",
    EventType.TERMINATE_REQUESTED: "terminate",
    EventType.REPAIR_REQUESTED: "repair",
    EventType.WORKFLOW_ARCHIVED: "archive",
}
_ACTIVITY_STATUS: Final = {
    EventType.ACTIVITY_SCHEDULED: "pending",
    EventType.ACTIVITY_STARTED: "running",
    EventType.ACTIVITY_RETRY_SCHEDULED: "pending",
    EventType.ACTIVITY_COMPLETED: "completed",
    EventType.ACTIVITY_FAILED: "failed",
    EventType.ACTIVITY_TIMED_OUT: "failed",
    EventType.ACTIVITY_CANCELLED: "cancelled",
}
_TIMER_STATUS: Final = {
    EventType.TIMER_SCHEDULED: "pending",
    EventType.TIMER_FIRED: "fired",
    EventType.TIMER_CANCELLED: "cancelled",
}
_OPEN: Final = ("pending", "running")
_FAILURES: Final = {
    EventType.ACTIVITY_RETRY_SCHEDULED: ("activity_execution", "activity_execution_id"),
    EventType.ACTIVITY_FAILED: ("activity_execution", "activity_execution_id"),
    EventType.ACTIVITY_TIMED_OUT: ("activity_execution", "activity_execution_id"),
    EventType.CHILD_RUN_FAILED: ("child_workflow_run", "child_workflow_run_id"),
    EventType.UPDATE_COMPLETED: ("workflow_update", "update_id"),
    EventType.WORKFLOW_FAILED: ("workflow_run", "workflow_run_id"),
    EventType.WORKFLOW_TIMED_OUT: ("workflow_run", "workflow_run_id"),
}
"""Events that can tell of a failure: what failed, and the member that names it."""
_FAILURE_FIELDS: Final = (
    "message",
    "exception_type",
    "exception_class",
    "failure_category",
    "non_retryable",
    "timeout_kind",
    "exception",
)
_ENDED_TASK_STATUS: Final = {RunStatus.CANCELLED: "cancelled", RunStatus.TERMINATED: "cancelled"}


def commands(
    run: Run, history: Iterable[Event], logged: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What clients asked for, in order: ``applied`` once an event tells of it, and who asked."""
    found: dict[str, dict[str, Any]] = {}
    for event in history:
        command_id, kind = event["workflow_command_id"], _COMMANDS.get(event["event_type"])
        if command_id and kind is not None and command_id not in found:
            found[command_id] = {
                "id": command_id,
                "type": kind,
                "status": "applied",
                "applied_at": event["recorded_at"],
                "history_event_id": event["id"],
            }
    for command_id, entry in logged.items():
        # What waits for the end of a leased workflow task has no event yet.
        item = found.setdefault(
            command_id, {"id": command_id, "type": entry["type"], "status": "accepted", "applied_at": None}
        )
        kept = {name: value for name, value in entry.items() if name != "type"}
        item |= {"source": "control_plane", **kept}
    for item in found.values():
        item.setdefault("source", "server")
        item.setdefault("context", None)
        item.setdefault("accepted_at", item["applied_at"])
        item["workflow_id"] = run.info.workflow_id
    return sorted(found.values(), key=lambda item: (item["accepted_at"], item["id"]))


def signals(history: Iterable[Event]) -> list[dict[str, Any]]:
    """The signals of the history, in order."""
    return [
        {
            "id": event["payload"]["signal_id"],
            "name": event["payload"]["signal_name"],
            "command_id": event["workflow_command_id"],
            "status": "received",
            "received_at": event["recorded_at"],
            **_arguments(event["payload"]),
        }
        for event in history
        if event["event_type"] == EventType.SIGNAL_RECEIVED
    ]


def updates(history: Iterable[Event]) -> list[dict[str, Any]]:
    """The updates of the history in the order of their acceptance, with what became of them."""
    found: dict[str, dict[str, Any]] = {}
    for event in history:
        payload, at = event["payload"], event["recorded_at"]
        match event["event_type"]:
            case EventType.UPDATE_ACCEPTED:
                found[payload["update_id"]] = {
                    "id": payload["update_id"],
                    "name": payload["update_name"],
                    "command_id": event["workflow_command_id"],
                    "status": "accepted",
                    "accepted_at": at,
                    "applied_at": None,
                    "closed_at": None,
                    **_arguments(payload),
                }
            case EventType.UPDATE_APPLIED:
                found[payload["update_id"]]["applied_at"] = at
            case EventType.UPDATE_COMPLETED:
                failed = "failure_id" in payload
                item = found[payload["update_id"]]
                item |= {"status": "failed" if failed else "completed", "closed_at": at}
                item |= {name: payload[name] for name in ("result", "failure_id") if name in payload}
    return list(found.values())


def tasks(run: Run, history: Iterable[Event], lease: Lease) -> list[dict[str, Any]]:
    """The workflow tasks of the run and the tasks of its activities. ``lease`` is the record of the
    open workflow task."""
    state, run_id = run.state, run.info.run_id
    listed: list[dict[str, Any]] = []
    for index in range(1, state.task_index + 1):
        item: dict[str, Any] = {
            "id": f"{run_id}-w{index}",
            "type": "workflow",
            "status": "completed",
            "task_queue": run.info.task_queue,
        }
        if index == state.task_index:
            item |= _newest_task(run, lease)
        listed.append(item)
    remote = [event for event in history if not event["payload"].get("local_activity")]
    status = {"pending": "ready", "running": "leased"}
    listed += [
        {
            "id": activity["activity_execution_id"],
            "type": "activity",
            "status": status.get(activity["status"], activity["status"]),
            "task_queue": activity.get("task_queue"),
            "attempt_count": activity["attempt_count"],
        }
        for activity in activities(run, remote)
    ]
    return listed


def _newest_task(run: Run, lease: Lease) -> dict[str, Any]:
    state = run.state
    if not state.task_open:
        return {"status": _ENDED_TASK_STATUS.get(state.status, "completed")}
    if state.task_waiting:
        return {"status": "failed" if state.task_failures else "pending", "attempt_count": state.task_attempt}
    if lease.state == LEASED:
        return {"status": "leased", "lease_owner": lease.owner, "attempt_count": lease.attempt}
    return {"status": "ready", "attempt_count": state.task_attempt - 1}


def activities(run: Run, history: Iterable[Event]) -> list[dict[str, Any]]:
    """The activities in the order they were scheduled, with the status their last event gives."""
    kept = ("activity_type", "task_queue", "execution_mode")
    found = _latest(run, history, _ACTIVITY_STATUS, "activity_execution_id", kept)
    for item in found:
        item["attempt_count"] = max(item.pop("attempts"), default=0)
    return found


def timers(run: Run, history: Iterable[Event]) -> list[dict[str, Any]]:
    """The timers in the order they were started."""
    found = _latest(run, history, _TIMER_STATUS, "timer_id", ("delay_seconds", "fire_at", "timer_kind"))
    for item in found:
        del item["attempts"]
    return found


def failures(run: Run, history: Iterable[Event]) -> list[dict[str, Any]]:
    """Everything that failed, attempts that were tried again included, in order."""
    found = []
    for event in history:
        source = _FAILURES.get(event["event_type"])
        payload = event["payload"]
        if source is None or not _tells_of_failure(payload):
            continue
        kind, identity = source
        found.append(
            {
                "id": payload.get("failure_id") or f"{event['id']}-f",
                "source_kind": kind,
                "source_id": payload.get(identity, run.info.run_id),
                "history_event_id": event["id"],
                "recorded_at": event["recorded_at"],
                "retried": event["event_type"] == EventType.ACTIVITY_RETRY_SCHEDULED
                or "retried_as_run_id" in payload,
                **{name: payload[name] for name in _FAILURE_FIELDS if payload.get(name) is not None},
            }
        )
    failing = run.state.last_task_failure
    if failing is not None:
        task = f"{run.info.run_id}-w{run.state.task_index}"
        found.append(
            {
                "id": f"{task}-f",
                "source_kind": "workflow_task",
                "source_id": task,
                "history_event_id": None,
                "recorded_at": None,
                "retried": True,
                "message": failing.get("message"),
                "exception_type": failing.get("type"),
                "failure_count": run.state.task_failures,
            }
        )
    return found


def links(run: Run, history: Iterable[Event]) -> dict[str, Any]:
    """The runs this one belongs with."""
    info = run.info
    parents = [] if info.parent is None else [_link(info.parent.workflow_id, info.parent.run_id)]
    children: dict[str, dict[str, Any]] = {}
    following = None
    for event in history:
        payload = event["payload"]
        if event["event_type"] == EventType.CHILD_RUN_STARTED:
            run_id = payload["child_workflow_run_id"]
            children[run_id] = _link(payload["child_workflow_instance_id"], run_id)
        following = payload.get("continued_to_run_id") or payload.get("retried_as_run_id") or following
    return {
        "parents": parents,
        "children": list(children.values()),
        "continued_from": None
        if info.continued_from is None
        else _link(info.workflow_id, info.continued_from),
        "continued_to": None if following is None else _link(info.workflow_id, following),
    }


def _link(workflow_id: str, run_id: str) -> dict[str, Any]:
    return {"workflow_instance_id": workflow_id, "workflow_run_id": run_id}


def _tells_of_failure(payload: Mapping[str, Any]) -> bool:
    """A retry after a lapsed lease and an update that completed tell of none."""
    return any(payload.get(name) is not None for name in ("message", "failure_id", "timeout_kind"))


def _arguments(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {name: payload[name] for name in ("arguments", "payload_codec") if name in payload}


def _latest(
    run: Run,
    history: Iterable[Event],
    statuses: Mapping[EventType, str],
    identity: str,
    kept: tuple[str, ...],
) -> list[dict[str, Any]]:
    """Items of one kind in the order they were opened, with the status their last event gives.

    ``attempts`` are the numbers of the attempts their events name.
    """
    found: dict[str, dict[str, Any]] = {}
    for event in history:
        payload, status = event["payload"], statuses.get(event["event_type"])
        if event["event_type"] == EventType.SELECTION_OPERATION_CANCELLED:
            _withdraw(found, payload)
        if status is None:
            continue
        item = found.setdefault(
            payload[identity],
            {identity: payload[identity], "sequence": payload.get("sequence"), "attempts": set()},
        )
        item |= {name: payload[name] for name in kept if name in payload}
        item["status"] = status
        if "activity_attempt_id" in payload and "attempt_number" in payload:
            item["attempts"].add(payload["attempt_number"])
    if run.state.status.closed:
        for item in found.values():
            if item["status"] in _OPEN:
                item["status"] = "cancelled"
    return list(found.values())


def _withdraw(found: Mapping[str, dict[str, Any]], cancelled: Mapping[str, Any]) -> None:
    """A member of a race was given up: what is open of it has no last event of its own."""
    base = cancelled["member_base_sequence"]
    covered = range(base, base + cancelled["member_size"])
    for item in found.values():
        if item["sequence"] in covered and item["status"] in _OPEN:
            item["status"] = "cancelled"
