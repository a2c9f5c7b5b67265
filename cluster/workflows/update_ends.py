"""What is said of an update that is over: to the history, and to whoever waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def update_ended(
    update_id: str, name: str, result: Mapping[str, Any] | None, failure: Mapping[str, Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """UpdateCompleted, and the receipt that is kept beside the run; it failed if there is a ``failure``."""
    named = {"update_id": update_id, "update_name": name}
    if failure is None:
        answer = result or {}
        return {**named, **(result or {"result": None})}, {**named, "update_status": "completed", **answer}
    failed = {"failure_id": f"{update_id}-f", "non_retryable": True, **failure}
    return {**named, **failed}, {**named, "update_status": "failed", "failure": failed}


def cut_off(reason: str) -> dict[str, Any]:
    """The failure of an update that was not over when its run closed."""
    return {
        "message": f"The run closed ({reason}) before the update was over.",
        "exception_type": "RunClosed",
        "failure_category": "run_closed",
    }
