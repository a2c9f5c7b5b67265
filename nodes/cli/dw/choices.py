"""Words that options choose from, as the server knows them.

They stand here again, and not where the server has them, because ``dw`` must not load the server to print a
list; a test compares both.
"""

from __future__ import annotations

from enum import StrEnum


class WorkerStatus(StrEnum):
    """States of a registered worker."""

    ACTIVE = "active"
    DRAINING = "draining"
    STALE = "stale"


class AttributeType(StrEnum):
    """Types of search attributes."""

    KEYWORD = "keyword"
    TEXT = "text"
    INT = "int"
    DOUBLE = "double"
    BOOL = "bool"
    DATETIME = "datetime"
    KEYWORD_LIST = "keyword_list"


class ActivityStatus(StrEnum):
    """States of an activity without a workflow."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"


class StopType(StrEnum):
    """How a flow is stopped."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    FAIL = "fail"


class IdReuse(StrEnum):
    """When a flow id that was used before may be used again."""

    IF_NOT_RUNNING = "allow_if_not_running"
    IF_PREVIOUS_FAILED = "allow_if_previous_failed"
    NEVER = "disallow"
    TERMINATE_RUNNING = "terminate_if_running"
