"""What passes between parked polls, the queues and the routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from cluster.admission.limits import LimitName
from cluster.ids import TaskKind
from cluster.queues.claims import Claim
from cluster.worker_sessions import MOST_PER_WORKER
from cluster.workflows.kept_histories import ReplayMode
from cluster.workflows.records import RunInfo, RunState


class PollStatus(StrEnum):
    """How a poll ended (server-behaviour D2)."""

    LEASED = "leased"
    EMPTY = "empty"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class PollRequest:
    """One logical long poll.

    ``types`` empty means any type. ``marker`` is the registered build id ("" for unversioned):
    such a worker also gets tasks without a marker. ``timeout`` is in seconds; 0 probes once.
    """

    kind: TaskKind
    namespace: str
    queue: str
    worker_id: str
    marker: str = ""
    types: frozenset[str] = field(default_factory=frozenset)
    poll_request_id: str | None = None
    timeout: float = 30.0
    page_size: int = 500
    most_sessions: int = MOST_PER_WORKER
    """Worker sessions that the worker may hold at once."""
    registration: str = ""
    """Names the registration that the worker polls by; a newer one of its id ends the poll."""


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """A leased workflow task with the first page of its frozen history.

    ``events`` are JSON objects in worker form (id, sequence, event_type, payload, recorded_at,
    workflow_task_id, workflow_command_id). ``next_page_token`` is None on the last page.
    """

    task_id: str
    info: RunInfo
    state: RunState
    attempt: int
    owner: str
    lease_expires_at_ms: int
    events: list[bytes]
    next_page_token: str | None
    replay_mode: ReplayMode | None = None
    claim: Claim | None = field(default=None, compare=False)
    """What gives it back while its answer was not sent."""


@dataclass(frozen=True, slots=True)
class ActivityTask:
    """A leased activity task; ``body`` is the JSON object made when it was scheduled."""

    task_id: str
    attempt_id: str
    attempt: int
    owner: str
    queue: str
    leased_at_ms: int
    lease_expires_at_ms: int
    body: bytes
    claim: Claim | None = field(default=None, compare=False)
    """What gives it back while its answer was not sent."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """The limit that held tasks back: its number, how much of it is used, and seconds until more is free.

    ``retry_after`` is None when only the end of a lease makes room. A limit of None: leases begin to
    be counted at this moment.
    """

    limit: LimitName | None
    maximum: int | None = None
    count: int = 0
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class PollResult:
    status: PollStatus
    task: WorkflowTask | ActivityTask | None = None
    throttle: Throttle | None = None

    @property
    def retry_after(self) -> float | None:
        """Seconds after which a throttled poll would find more room, when time alone brings it."""
        return None if self.throttle is None else self.throttle.retry_after
