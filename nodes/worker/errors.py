"""Exceptions of the worker library."""

from __future__ import annotations

from cluster.errors import HeadraceError


class DefinitionError(HeadraceError, TypeError):
    """A flow, step or RPC is defined in a way that cannot work."""

    reason = "invalid_definition"


class WorkerConfigurationError(HeadraceError, ValueError):
    """An option of a worker has a value that cannot work (R19, R72)."""

    reason = "invalid_worker_configuration"


class CredentialError(HeadraceError):
    """The token file cannot be read or is empty; nothing was sent."""

    reason = "credential_unavailable"


class StreamRejected(HeadraceError):
    """A node refused a connection or a slot. ``status`` is None when it did so with a frame."""

    def __init__(self, reason: str, message: str, *, status: int | None = None) -> None:
        super().__init__(f"{message} ({reason})")
        self.reason = reason
        self.message = message
        self.status = status


class WorkerError(HeadraceError):
    """The worker cannot start or go on."""

    reason = "worker_failed"


class PullRegistrationError(WorkerError):
    """No stream of a slot kind is registered and a node refuses them for good (R4, R16).

    ``queue`` is the label of the slot kind; it names neither a flow type nor a worker id.
    """

    reason = "pull_registration_failed"

    def __init__(self, queue: str, cause: Exception) -> None:
        super().__init__(f"no {queue} slot could be registered: {cause}")
        self.queue = queue
        self.cause = cause


class TaskLimitTooHigh(WorkerError):
    """The server allows a worker fewer tasks at once than this one wants to run (R25)."""

    reason = "task_limit_too_high"

    def __init__(self, task_limit: int, cap: int) -> None:
        super().__init__(
            f"max_concurrent_tasks is {task_limit}, but the server allows {cap} (maxConcurrentTasksCap)"
        )
        self.task_limit = task_limit
        self.cap = cap


class ProtocolVersionError(WorkerError):
    """Server and worker have no version of the stream protocol in common (R99)."""

    reason = "unsupported_protocol_version"


class WorkerStopped(WorkerError):
    """The worker was stopped before it was ready (R8)."""

    reason = "worker_stopped"


class StepError(Exception):
    """Raise it in a handler to say more about a failure than an ordinary exception can.

    ``type`` is what clients see, ``retry_after`` asks for the next attempt in so many seconds without
    changing any limit of the retry policy.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str | None = None,
        non_retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.type = type or self.__class__.__name__
        self.non_retryable = non_retryable
        self.retry_after = retry_after


class NonRetryableError(StepError):
    """The attempt failed, and another one would fail alike."""

    def __init__(self, message: str, *, type: str | None = None) -> None:
        super().__init__(message, type=type, non_retryable=True)
