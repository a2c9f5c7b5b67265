"""When something that failed is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster.workflows.records import ActivityState, RetryPolicy, RunInfo

TASK_BACKOFF_MAX_SECONDS: Final = 60
"""A workflow task that keeps failing (a replay that cannot succeed until new code is deployed) is
tried again at this pace for as long as the run lives."""

MAX_LAPSES: Final = 3
"""So often an activity whose lease ran out without an answer is handed out again for free."""


def workflow_task_delay(failures: int) -> int:
    """Seconds to wait after ``failures`` failures of a workflow task in a row: 1, 2, 4 ... 60."""
    return min(TASK_BACKOFF_MAX_SECONDS, 1 << min(failures - 1, 6))


def attempts_used(activity: ActivityState) -> int:
    """Attempts that count against the retry policy: those that lapsed do not."""
    return activity.attempt - activity.lapses


def activity_delay(activity: ActivityState) -> int | None:
    """Seconds until the next attempt of an activity, or None when its attempts are used up."""
    return _delay(activity.retry, attempts_used(activity))


def run_delay(info: RunInfo, failure: Mapping[str, Any]) -> int | None:
    """Seconds until the next try of a run that ended with ``failure``, or None when it was the last."""
    if info.retry is None or failure.get("non_retryable"):
        return None
    exception = failure.get("exception") or {}
    types = {failure.get("exception_type"), failure.get("exception_class")}
    types |= {exception.get("type"), exception.get("class")}
    if types & set(info.retry.non_retryable_error_types):
        return None
    return _delay(info.retry, info.attempt)


def _delay(policy: RetryPolicy | None, used: int) -> int | None:
    if policy is None or used >= policy.max_attempts:
        return None
    if not policy.backoff_seconds:
        return 0
    return policy.backoff_seconds[min(used, len(policy.backoff_seconds)) - 1]


def is_retryable(activity: ActivityState, failure: Mapping[str, Any]) -> bool:
    """Whether the policy lets an attempt that ended with ``failure`` be tried again."""
    if failure.get("non_retryable") or failure.get("retryable") is False:
        return False
    listed = activity.retry.non_retryable_error_types if activity.retry else ()
    return failure.get("type") not in listed and failure.get("class") not in listed


def snapshot(activity: ActivityState) -> dict[str, Any] | None:
    """The retry rules as a worker sees them (server-behaviour 5.5), or None when none were given."""
    timeouts = {
        "start_to_close_timeout": activity.start_to_close_seconds,
        "schedule_to_start_timeout": activity.schedule_to_start_seconds,
        "schedule_to_close_timeout": activity.schedule_to_close_seconds,
        "heartbeat_timeout": activity.heartbeat_seconds,
    }
    policy = activity.retry
    if policy is None and not any(timeouts.values()):
        return None
    return {
        "snapshot_version": 1,
        "max_attempts": policy.max_attempts if policy else 1,
        "backoff_seconds": list(policy.backoff_seconds) if policy else [],
        **timeouts,
        "non_retryable_error_types": list(policy.non_retryable_error_types) if policy else [],
    }
