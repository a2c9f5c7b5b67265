"""How step methods are retried and timed, as applications write it and as it goes over the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from nodes.worker.errors import DefinitionError

SHORTEST_HEARTBEAT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt is made again; all times in seconds.

    ``maximum_attempts`` counts the first one, 0 is no limit. ``total_duration`` runs from the first
    hand-out and only decides whether another attempt is made.
    """

    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: float = 100.0
    maximum_attempts: int = 0
    total_duration: float = 14_400.0

    def __post_init__(self) -> None:
        _positive(self, "initial_interval", "maximum_interval", "total_duration")
        if self.backoff_coefficient < 1:
            raise DefinitionError("RetryPolicy.backoff_coefficient must be at least 1")
        if self.maximum_attempts < 0:
            raise DefinitionError("RetryPolicy.maximum_attempts must not be negative")

    def wire(self) -> dict[str, Any]:
        return {
            "initial_interval_seconds": self.initial_interval,
            "backoff_coefficient": self.backoff_coefficient,
            "maximum_interval_seconds": self.maximum_interval,
            "maximum_attempts": self.maximum_attempts,
            "total_duration_seconds": self.total_duration,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOptions:
    """One method of a step: seconds an attempt may take, seconds between signs of life, retries."""

    timeout: float = 7_200.0
    heartbeat_timeout: float = 60.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        _positive(self, "timeout")
        if self.heartbeat_timeout < SHORTEST_HEARTBEAT_SECONDS:
            raise DefinitionError(
                f"MethodOptions.heartbeat_timeout must be at least {SHORTEST_HEARTBEAT_SECONDS:g} seconds"
            )

    def wire(self) -> dict[str, Any]:
        return {
            "timeout_seconds": self.timeout,
            "heartbeat_timeout_seconds": self.heartbeat_timeout,
            "retry": self.retry.wire(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """Everything about a step that the server has to know.

    ``recovery`` names the step that follows when ``execute`` has failed for good; it gets the same
    input and the failure. ``proceed_on_wait_for_failure``: ``execute`` follows a failed ``wait_for``
    and sees the failure. ``lock_attributes``: no other step or RPC that locks one of these
    attributes runs meanwhile. ``non_retryable``: exceptions that end the retries.
    """

    execute: MethodOptions = field(default_factory=MethodOptions)
    wait_for: MethodOptions = field(default_factory=MethodOptions)
    proceed_on_wait_for_failure: bool = False
    recovery: Any = None
    """A step class, a step, or the name of one."""
    lock_attributes: tuple[str, ...] = ()
    non_retryable: tuple[type[BaseException], ...] = ()


def _positive(options: object, *names: str) -> None:
    for name in names:
        if not getattr(options, name) > 0:
            raise DefinitionError(f"{type(options).__name__}.{name} must be more than 0")
