"""The worker's side by hand, to look into what a worker gets: polls, completions, failures.

These need a worker's token. ``activity:complete`` and ``activity:fail`` take an activity task's ids as a
poll shows them.
"""

from __future__ import annotations

from typing import Annotated, Any

from nodes.cli.dw.arguments import argument, option, read_json, read_object
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.views import Result, document, facts

TaskId = Annotated[str, argument("TASK_ID", "the task")]
Worker = Annotated[str, option("--worker", metavar="WORKER_ID", text="the worker that polls")]
Owner = Annotated[str, option("--lease-owner", metavar="WORKER_ID", text="the worker that has the task")]
Attempt = Annotated[int, option("--attempt", metavar="N", text="the attempt the poll showed", min=1)]
AttemptId = Annotated[str, option("--attempt-id", metavar="ID", text="the activity attempt the poll showed")]
Queue = Annotated[str, option("--task-queue", metavar="QUEUE", text="the queue it is registered for")]
Wait = Annotated[
    int, option("--wait", metavar="SECONDS", text="how long the server may hold the poll (0)", min=0, max=60)
]
Message = Annotated[str, option("--message", metavar="TEXT", text="what went wrong")]
FailureType = Annotated[str | None, option("--type", metavar="NAME", text="the failure's type")]
Value = Annotated[str | None, option("--result", metavar="JSON", text="the result (null)")]
_POLL = "task poll_status"
_DONE = "task_id outcome recorded"
_SHOWN = facts("task_id outcome recorded reason run_status")


def _poll(dw: Dw, plane: str, worker: str, task_queue: str, wait: int) -> Result:
    body = {"worker_id": worker, "task_queue": task_queue, "timeout_seconds": wait}
    return dw.post("worker", plane, "poll", body=body, patience=wait)


def _result(text: str | None) -> Any:
    return None if text is None else read_json(text, "--result")


def _failure(message: str, kind: str | None, **more: Any) -> dict[str, Any]:
    given = {"message": message, "type": kind, **more}
    return {name: value for name, value in given.items() if value is not None}


@command(
    "workflow-task:poll",
    document(),
    json=_POLL,
    examples=("dw workflow-task:poll --worker payments-1 --task-queue payments",),
)
def poll_workflow_task(dw: Dw, worker: Worker, task_queue: Queue = "default", wait: Wait = 0) -> Result:
    """Take a workflow task, as a worker does."""
    return _poll(dw, "workflow-tasks", worker, task_queue, wait)


@command(
    "workflow-task:complete",
    _SHOWN,
    json=_DONE,
    examples=(
        "dw workflow-task:complete $TASK --lease-owner payments-1 --attempt 1 --commands "
        '\'[{"type": "complete_workflow", "result": null}]\'',
    ),
)
def complete_workflow_task(
    dw: Dw,
    task_id: TaskId,
    lease_owner: Owner,
    attempt: Attempt = 1,
    commands: Annotated[
        str, option("--commands", metavar="JSON", text="what the workflow does next ([])")
    ] = "[]",
) -> Result:
    """Complete a workflow task with commands."""
    wanted = read_json(commands, "--commands")
    if not isinstance(wanted, list):
        raise wrong_usage("--commands must be a JSON list")
    body = {"lease_owner": lease_owner, "workflow_task_attempt": attempt, "commands": wanted}
    return dw.post("worker", "workflow-tasks", task_id, "complete", body=body)


@command(
    "workflow-task:fail",
    _SHOWN,
    json=_DONE,
    examples=("dw workflow-task:fail $TASK --lease-owner payments-1 --attempt 1 --message 'cannot replay'",),
)
def fail_workflow_task(
    dw: Dw,
    task_id: TaskId,
    lease_owner: Owner,
    message: Message,
    attempt: Attempt = 1,
    failure_type: FailureType = None,
) -> Result:
    """Fail a workflow task; it is handed out again after a back-off."""
    failure = _failure(message, failure_type)
    body = {"lease_owner": lease_owner, "workflow_task_attempt": attempt, "failure": failure}
    return dw.post("worker", "workflow-tasks", task_id, "fail", body=body)


@command(
    "workflow-task:history",
    document(),
    json="history_events",
    examples=("dw workflow-task:history $TASK --lease-owner payments-1 --attempt 1",),
)
def workflow_task_history(
    dw: Dw,
    task_id: TaskId,
    lease_owner: Owner,
    attempt: Attempt = 1,
    page_token: Annotated[
        str | None,
        option("--page-token", metavar="TOKEN", text="where to begin; the start when none is given"),
    ] = None,
    page_size: Annotated[
        int | None, option("--page-size", metavar="N", text="most events", min=1, max=1000)
    ] = None,
) -> Result:
    """Show a page of the history that belongs to a leased workflow task."""
    # The route asks for the page after the last event that was seen: base64 of its sequence.
    body = {
        "lease_owner": lease_owner,
        "workflow_task_attempt": attempt,
        "next_history_page_token": page_token or "MA==",
        "history_page_size": page_size,
    }
    return dw.post("worker", "workflow-tasks", task_id, "history", body=body)


@command(
    "query-task:poll",
    document(),
    json=_POLL,
    examples=("dw query-task:poll --worker payments-1 --task-queue payments",),
)
def poll_query_task(dw: Dw, worker: Worker, task_queue: Queue = "default", wait: Wait = 0) -> Result:
    """Take a query task, as a worker does."""
    return _poll(dw, "query-tasks", worker, task_queue, wait)


@command(
    "query-task:complete",
    facts("query_task_id outcome"),
    json="query_task_id outcome",
    examples=("dw query-task:complete $QUERY --lease-owner payments-1 --attempt 1 --result '\"fine\"'",),
)
def complete_query_task(
    dw: Dw, query_task_id: TaskId, lease_owner: Owner, attempt: Attempt = 1, result: Value = None
) -> Result:
    """Answer a query."""
    body = {"lease_owner": lease_owner, "query_task_attempt": attempt, "result": _result(result)}
    return dw.post("worker", "query-tasks", query_task_id, "complete", body=body, nulls=True)


@command(
    "query-task:fail",
    facts("query_task_id outcome"),
    json="query_task_id outcome",
    examples=("dw query-task:fail $QUERY --lease-owner payments-1 --attempt 1 --message 'no such query'",),
)
def fail_query_task(
    dw: Dw,
    query_task_id: TaskId,
    lease_owner: Owner,
    message: Message,
    attempt: Attempt = 1,
    reason: Annotated[str | None, option("--reason", metavar="REASON", text="such as query_rejected")] = None,
    failure_type: FailureType = None,
) -> Result:
    """Refuse a query."""
    failure = _failure(message, failure_type, reason=reason)
    body = {"lease_owner": lease_owner, "query_task_attempt": attempt, "failure": failure}
    return dw.post("worker", "query-tasks", query_task_id, "fail", body=body)


@command(
    "activity:poll",
    document(),
    json=_POLL,
    examples=("dw activity:poll --worker payments-1 --task-queue payments",),
)
def poll_activity_task(dw: Dw, worker: Worker, task_queue: Queue = "default", wait: Wait = 0) -> Result:
    """Take an activity task, as a worker does."""
    return _poll(dw, "activity-tasks", worker, task_queue, wait)


@command(
    "activity:complete",
    facts("activity_attempt_id outcome recorded reason"),
    json="outcome recorded",
    examples=(
        "dw activity:complete $ACTIVITY --lease-owner payments-1 --attempt-id $ATTEMPT --result '\"ok\"'",
    ),
)
def complete_activity(
    dw: Dw, task_id: TaskId, lease_owner: Owner, attempt_id: AttemptId, result: Value = None
) -> Result:
    """Complete an activity task with a result."""
    body = {"lease_owner": lease_owner, "activity_attempt_id": attempt_id, "result": _result(result)}
    return dw.post("worker", "activity-tasks", task_id, "complete", body=body, nulls=True)


@command(
    "activity:fail",
    facts("activity_attempt_id outcome recorded reason"),
    json="outcome recorded",
    examples=(
        "dw activity:fail $ACTIVITY --lease-owner payments-1 --attempt-id $ATTEMPT --message declined "
        "--non-retryable",
    ),
)
def fail_activity(
    dw: Dw,
    task_id: TaskId,
    lease_owner: Owner,
    attempt_id: AttemptId,
    message: Message,
    failure_type: FailureType = None,
    non_retryable: Annotated[bool, option("--non-retryable", text="do not try it again")] = False,
    details: Annotated[str | None, option("--details", metavar="JSON", text="more about it")] = None,
) -> Result:
    """Fail an activity task; its retry policy says whether it is tried again."""
    more = {"non_retryable": non_retryable or None, "details": read_object(details, "--details")}
    failure = _failure(message, failure_type, **more)
    body = {"lease_owner": lease_owner, "activity_attempt_id": attempt_id, "failure": failure}
    return dw.post("worker", "activity-tasks", task_id, "fail", body=body)


@command(
    "bridge:webhook",
    document(),
    json="outcome",
    examples=('dw bridge:webhook github \'{"action": "start_workflow", "idempotency_key": "delivery-1"}\'',),
)
def bridge_webhook(
    dw: Dw,
    adapter: Annotated[str, argument("ADAPTER", "the bridge adapter")],
    event: Annotated[str, argument("JSON", "what it is to be told")],
) -> Result:
    """Hand an event to a bridge adapter, as a webhook would; the same one twice has one effect."""
    return dw.post("bridge-adapters", "webhook", adapter, body=read_object(event, "the event"))
