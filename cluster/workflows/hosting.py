"""The end of a run that hosts a standalone activity (sdk-wire 5.5).

Such a run has one activity and no workflow code: it never has a workflow task, so no workflow worker
sees it, and it ends as its activity ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.records import Payload, RunStatus

HOST_TYPE: Final = "dw.standalone_activity"
"""Workflow type of the runs that host an activity."""
ONLY_STEP: Final = 1


def finish(decision: Decision, event: EventType, payload: Mapping[str, Any]) -> None:
    """Close a hosting run with the outcome of its activity; other runs are not touched."""
    if decision.info.standalone_activity is None:
        return
    if event is EventType.ACTIVITY_COMPLETED:
        _complete(decision, payload)
        return
    kept = ("message", "exception_type", "exception_class", "exception", "failure_category", "non_retryable")
    failure = {name: payload[name] for name in kept if name in payload}
    reason = "timed_out" if event is EventType.ACTIVITY_TIMED_OUT else "failed"
    decision.close(RunStatus.FAILED, reason, EventType.WORKFLOW_FAILED, failure)
    decision.set(failure=failure)


def _complete(decision: Decision, payload: Mapping[str, Any]) -> None:
    output: Payload | None = None
    written: dict[str, Any] = {"output": None}
    if payload["result"] is not None:
        output = Payload(codec=payload["payload_codec"], blob=payload["result"])
        written = {"output": {"codec": output.codec, "blob": output.blob}, "payload_codec": output.codec}
    decision.close(RunStatus.COMPLETED, "completed", EventType.WORKFLOW_COMPLETED, written)
    decision.set(output=output)
