"""Exceptions. Each carries a stable ``reason`` that clients may branch on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class HeadraceError(Exception):
    """Base of all errors that Headrace raises on purpose."""

    reason = "server_error"


class StartupError(HeadraceError):
    """The process cannot start. The message is one line that says what to do."""

    reason = "startup_failed"


class ClusterGone(StartupError):
    """The store no longer holds the cluster that this node joined: started again, it looks anew."""

    reason = "cluster_gone"


class SettingsError(StartupError):
    """A setting is unknown or has a bad value; the message names key, value and source."""

    reason = "invalid_settings"


class StoreError(HeadraceError):
    """Redis could not do what was asked."""

    reason = "store_error"


class StoreUnavailable(StoreError):
    """Redis is away or busy; the command was certainly not executed."""

    reason = "store_unavailable"


class Contended(StoreError):
    """Others changed the same record again and again, so nothing was done."""

    reason = "store_contended"


class OutcomeUnknown(StoreError):
    """The reply was lost: the command may or may not have been executed."""

    reason = "store_outcome_unknown"


class NotDurable(StoreError):
    """Executed, but not confirmed by as many replicas as the durability setting asks for."""

    reason = "store_not_durable"


class DurabilityLost(StoreError):
    """The server's settings would not keep what the durability setting promises; nothing was done."""

    reason = "store_durability_lost"


class StoreFull(StoreError):
    """Redis refused a write because its memory limit is reached; nothing was written."""

    reason = "store_full"


class StoreRefused(StoreError):
    """Redis answered a command with an error that is none of the above."""

    reason = "store_refused"


class ConditionFailed(StoreError):
    """A condition of a commit did not hold; nothing of it was applied.

    ``condition`` is the transaction's condition at ``index``, ``actual`` what was found instead
    (None: nothing).
    """

    reason = "store_condition_failed"

    def __init__(self, index: int, condition: Sequence[Any], actual: bytes | int | None) -> None:
        super().__init__(f"condition {index} failed: {condition[0]}")
        self.index = index
        self.condition = condition
        self.actual = actual


class Paused(StoreError):
    """Nothing is handed out for a moment: the store was restarted or replaced (E5).

    ``unknown`` says that the partition does not even know the server that answered.
    """

    reason = "store_recovering"

    def __init__(self, *, unknown: bool) -> None:
        super().__init__("the store was restarted or replaced; nodes first say what they run")
        self.unknown = unknown


class Fenced(StoreError):
    """The caller's session was buried or its partition lease is gone."""

    reason = "fenced"


class Refused(HeadraceError):
    """A request is refused for a reason the client should see.

    ``reason`` is the machine code, ``status`` the HTTP status that fits it, ``fields`` further
    JSON-ready members of the error body (``server-behaviour.md`` appendix A).
    """

    def __init__(self, reason: str, message: str, *, status: int = 409, **fields: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
        self.fields: Mapping[str, Any] = fields


class ValidationFailed(Refused):
    """Fields of a request are missing or wrong: ``errors`` maps dotted field names to texts."""

    def __init__(self, errors: Mapping[str, list[str]], message: str = "") -> None:
        text = message or next(iter(errors.values()))[0]
        super().__init__("validation_failed", text, status=422)
        self.errors = dict(errors)
