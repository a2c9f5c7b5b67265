"""Everything one can do in the console: each action is one route of the API and a form for it.

Whether a person may do it is what the API's routing table says about that route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nodes.api import documents
from nodes.console.access import ApiRefusal


class Kind(StrEnum):
    """How a field is written and read."""

    TEXT = "text"
    NUMBER = "number"
    JSON = "json"
    CHOICE = "choice"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form. It becomes a member of the request's body unless ``in_path``."""

    name: str
    label: str
    kind: Kind = Kind.TEXT
    required: bool = False
    in_path: bool = False
    choices: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. ``path`` are parameters of the route that the page fills in, ``fixed`` members
    of the body that the page does. ``question`` is asked first. ``done`` is what is said afterwards;
    an action with ``shows`` shows the API's answer instead.
    """

    name: str
    label: str
    method: str
    template: str
    path: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    fixed: tuple[str, ...] = ()
    question: str = ""
    done: str = ""
    shows: bool = False
    grave: bool = False


_RUN: Final = "/api/workflows/{workflow_id}/runs/{run_id}"
_RUN_PATH: Final = ("workflow_id", "run_id")
_INPUT: Final = Field(
    "input", "Input", Kind.JSON, hint="JSON: a list of arguments, or an object of named ones"
)
_REASON: Final = Field("reason", "Reason")
_NOTE: Final = Field("note", "Note")
_OVERLAP: Final = Field(
    "overlap_policy",
    "If the previous run is still open",
    Kind.CHOICE,
    choices=("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"),
)
_SCHEDULE: Final = "/api/schedules/{schedule_id}"
_FLOW: Final = "/api/flows/{flow_id}"
_BUILDS: Final = "/api/task-queues/{task_queue}/build-ids"
_LIMITS: Final = "/api/admission/limits/{task_queue}"
_ALL: Final = (
    Action(
        "start-workflow",
        "Start a workflow",
        "POST",
        "/api/workflows",
        fields=(
            Field("workflow_type", "Workflow type", required=True),
            Field("task_queue", "Task queue", hint="empty: default"),
            Field("workflow_id", "Workflow id", hint="empty: the server makes one"),
            _INPUT,
        ),
        shows=True,
    ),
    Action(
        "signal",
        "Signal",
        "POST",
        f"{_RUN}/signal/{{signal_name}}",
        _RUN_PATH,
        (Field("signal_name", "Signal", required=True, in_path=True), _INPUT),
        done="The signal was accepted.",
    ),
    Action(
        "query",
        "Query",
        "POST",
        f"{_RUN}/query/{{query_name}}",
        _RUN_PATH,
        (Field("query_name", "Query", required=True, in_path=True), _INPUT),
        shows=True,
    ),
    Action(
        "update",
        "Update",
        "POST",
        f"{_RUN}/update/{{update_name}}",
        _RUN_PATH,
        (
            Field("update_name", "Update", required=True, in_path=True),
            _INPUT,
            Field("wait_for", "Wait until it is", Kind.CHOICE, choices=("completed", "accepted")),
        ),
        shows=True,
    ),
    Action(
        "cancel",
        "Cancel",
        "POST",
        f"{_RUN}/cancel",
        _RUN_PATH,
        (_REASON,),
        question="Ask this run to cancel? Its code may still clean up.",
        done="Cancellation was requested.",
    ),
    Action(
        "terminate",
        "Terminate",
        "POST",
        f"{_RUN}/terminate",
        _RUN_PATH,
        (_REASON,),
        question="End this run at once? Its code gets no chance to clean up.",
        done="The run was terminated.",
        grave=True,
    ),
    Action(
        "repair",
        "Repair",
        "POST",
        "/api/workflows/{workflow_id}/repair",
        ("workflow_id",),
        question="Look at this run again, and bring back what is missing?",
        shows=True,
    ),
    Action(
        "archive",
        "Archive",
        "POST",
        "/api/workflows/{workflow_id}/archive",
        ("workflow_id",),
        (_REASON,),
        question="Keep the newest closed run of this workflow for good?",
        done="The run is archived.",
    ),
    Action(
        "start-flow",
        "Start a flow",
        "POST",
        "/api/flows",
        fields=(
            Field("flow_type", "Flow type", required=True),
            Field("start_step", "First step", required=True),
            Field("flow_id", "Flow id", hint="empty: the server makes one"),
            Field("input", "Input", Kind.JSON, hint="any JSON value"),
        ),
        shows=True,
    ),
    Action(
        "stop-flow",
        "Stop",
        "POST",
        f"{_FLOW}/stop",
        ("flow_id",),
        (Field("type", "How", Kind.CHOICE, choices=("cancel", "fail", "terminate")), _REASON),
        question="Stop this flow? A cancel lets steps that run come to their end.",
        done="The flow is being stopped.",
        grave=True,
    ),
    Action(
        "publish",
        "Publish",
        "POST",
        f"{_FLOW}/channels/{{channel}}",
        ("flow_id",),
        (
            Field("channel", "Channel", required=True, in_path=True),
            Field("value", "Message", Kind.JSON, hint="any JSON value"),
        ),
        done="The message was published.",
    ),
    Action(
        "rpc",
        "Call",
        "POST",
        f"{_FLOW}/rpc/{{rpc_name}}",
        ("flow_id",),
        (
            Field("rpc_name", "RPC", required=True, in_path=True),
            Field("input", "Input", Kind.JSON, hint="any JSON value"),
        ),
        shows=True,
    ),
    Action(
        "drain",
        "Drain",
        "POST",
        f"{_BUILDS}/drain",
        ("task_queue",),
        fixed=("build_id",),
        question="Give the workers of this build no new tasks? They finish what they hold.",
        done="The build drains.",
    ),
    Action(
        "resume",
        "Resume",
        "POST",
        f"{_BUILDS}/resume",
        ("task_queue",),
        fixed=("build_id",),
        done="The build gets tasks again.",
    ),
    Action(
        "set-limits",
        "Set limits",
        "PUT",
        _LIMITS,
        ("task_queue",),
        (
            Field("workflow_tasks", "Workflow tasks", Kind.JSON, hint='{"max_active_leases_per_queue": 8}'),
            Field("activity_tasks", "Activity tasks", Kind.JSON, hint='{"max_dispatches_per_minute": 300}'),
        ),
        question="Replace the limits that were set for this queue while the server ran?",
        done="The limits hold on every node.",
    ),
    Action(
        "remove-limits",
        "Remove limits",
        "DELETE",
        _LIMITS,
        ("task_queue",),
        question="Take back the limits that were set for this queue while the server ran?",
        done="What the server was started with holds again.",
    ),
    Action(
        "deregister-worker",
        "Forget",
        "DELETE",
        "/api/workers/{worker_id}",
        ("worker_id",),
        question="Forget this worker? Tasks it holds are handed out again.",
        done="The worker is forgotten.",
        grave=True,
    ),
    Action("pause", "Pause", "POST", f"{_SCHEDULE}/pause", ("schedule_id",), (_NOTE,), done="Paused."),
    Action("unpause", "Resume", "POST", f"{_SCHEDULE}/resume", ("schedule_id",), (_NOTE,), done="Resumed."),
    Action(
        "trigger",
        "Trigger now",
        "POST",
        f"{_SCHEDULE}/trigger",
        ("schedule_id",),
        (_OVERLAP,),
        question="Fire this schedule now?",
        shows=True,
    ),
    Action(
        "backfill",
        "Backfill",
        "POST",
        f"{_SCHEDULE}/backfill",
        ("schedule_id",),
        (
            Field("start_time", "From", Kind.TIME, required=True, hint="UTC"),
            Field("end_time", "To", Kind.TIME, required=True, hint="UTC"),
            _OVERLAP,
        ),
        question="Start a run for every occurrence in this time? What was started already is left out.",
        shows=True,
    ),
    Action(
        "delete-schedule",
        "Delete",
        "DELETE",
        _SCHEDULE,
        ("schedule_id",),
        question="Delete this schedule? Runs it has started go on.",
        done="The schedule was deleted.",
        grave=True,
    ),
    Action(
        "create-namespace",
        "Create a namespace",
        "POST",
        "/api/namespaces",
        fields=(
            Field("name", "Name", required=True),
            Field("description", "Description"),
            Field("retention_days", "Days that closed runs are kept", Kind.NUMBER),
        ),
        done="The namespace was created.",
    ),
    Action(
        "update-namespace",
        "Change",
        "PUT",
        "/api/namespaces/{namespace}",
        ("namespace",),
        (
            Field("description", "Description"),
            Field("retention_days", "Days that closed runs are kept", Kind.NUMBER),
        ),
        done="The namespace was changed.",
    ),
)
ACTIONS: Final[Mapping[str, Action]] = {action.name: action for action in _ALL}


def path_of(action: Action, form: Mapping[str, str]) -> dict[str, str]:
    """The parameters of the action's route. Raises ApiRefusal (422) when one is missing."""
    names = (*action.path, *(field.name for field in action.fields if field.in_path))
    missing = [name for name in names if not form.get(name, "").strip()]
    if missing:
        raise _invalid({name: [f"The {name} field is required."] for name in missing})
    return {name: form[name].strip() for name in names}


def document_of(action: Action, form: Mapping[str, str]) -> dict[str, Any] | None:
    """The body of the action's request, None when it has none. Raises ApiRefusal (422) for bad JSON."""
    if action.method == "DELETE":
        return None
    document: dict[str, Any] = {name: form.get(name) or None for name in action.fixed}
    for field in action.fields:
        text = form.get(field.name, "").strip()
        if text and not field.in_path:
            document[field.name] = _value(field, text)
    return document


def _value(field: Field, text: str) -> Any:
    match field.kind:
        case Kind.JSON:
            try:
                return documents.read(text.encode())
            except documents.DocumentError as error:
                raise _invalid({field.name: [f"{field.label} is no JSON: {error}."]}) from None
        case _:
            return text


def _invalid(errors: Mapping[str, list[str]]) -> ApiRefusal:
    message = next(iter(errors.values()))[0]
    return ApiRefusal(422, {"reason": "validation_failed", "message": message, "errors": dict(errors)})
