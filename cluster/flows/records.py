"""What is kept of a flow between two decisions.

A run of a flow is one hash in its partition, like the run of a workflow. ``FlowInfo`` (field ``i``)
never changes; ``FlowState`` (field ``s``) is rewritten by every decision; each open step execution
has a field of its own (``x:<k>``), and the attributes have one (``at``) that is rewritten when they
change. ``k`` numbers the step executions of a run from 1. Payloads are JSON bytes that nobody here
looks into. Times are milliseconds since the epoch.

What is stored with every step has short names in the store (``rename``): of a step with a small payload the
names would be more than half. Values that are the very objects that are the defaults are not written at all.

Life of a step execution::

             +--------+  locks free    +-------+  wait_for done  +---------+
    opened ->| locked |--------------> | ready |---------------->| waiting |
             +--------+                +-------+                 +---------+
                  ^   no locks wanted   |  ^  |  execute done        | conditions hold
                  |   (goes by)  failed |  |  +----> over            v
                  |                     v  | retry              (locked or) ready,
                  |                 +---------+                  method execute
                  |                 | backoff |
                  +-----------------+---------+ (a retry keeps its locks and its snapshot)

In ``ready`` the step has a task: queued or handed out, which only the task's record tells.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from cluster.records import Document, Record

HOUR_MS = 3_600_000


class FlowStatus(StrEnum):
    """Status of a run of a flow. ``CANCELED`` and ``FAILED`` may be preceded by a stop under way."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    TERMINATED = "terminated"

    closed: bool

    def __init__(self, value: str) -> None:
        self.closed = value != "running"


class Method(StrEnum):
    """The two methods of a step; each call is a task of its own."""

    WAIT_FOR = "wait_for"
    EXECUTE = "execute"

    @property
    def letter(self) -> str:
        """How attempt ids name the method."""
        return self.value[0]


class Phase(StrEnum):
    """Where a step execution stands; see the chart above."""

    LOCKED = "locked"
    READY = "ready"
    BACKOFF = "backoff"
    WAITING = "waiting"


class Mode(StrEnum):
    """Whether one or every condition has to hold."""

    ANY = "any"
    ALL = "all"


class TimeoutPolicy(StrEnum):
    """What the timeout of a flow does."""

    FAIL = "fail"
    CANCEL = "cancel"
    HANDLER = "handler"
    """Whatever is open is cancelled, and a step follows that decides how the flow ends; once."""


_METHOD_OPTIONS: Final = {
    "timeout_ms": "t",
    "heartbeat_ms": "h",
    "initial_ms": "i",
    "coefficient": "c",
    "longest_ms": "l",
    "max_attempts": "m",
    "total_ms": "d",
}


class MethodOptions(Record, frozen=True, kw_only=True, rename=_METHOD_OPTIONS):
    """Timeouts and retry policy of one method; ``max_attempts`` counts the first, 0: unlimited.

    ``total_ms`` runs from the first hand-out and only decides whether another attempt is made.
    """

    timeout_ms: int = 2 * HOUR_MS
    heartbeat_ms: int = 60_000
    initial_ms: int = 1_000
    coefficient: float = 2.0
    longest_ms: int = 100_000
    max_attempts: int = 0
    total_ms: int = 4 * HOUR_MS


USUAL_METHOD: Final = MethodOptions()

_STEP_OPTIONS: Final = {
    "wait_for": "w",
    "execute": "e",
    "proceed": "p",
    "recovery": "r",
    "recovery_options": "ro",
    "locks": "l",
}


class StepOptions(Record, frozen=True, kw_only=True, rename=_STEP_OPTIONS):
    """How a step execution is run. Without ``wait_for`` it goes to execute at once."""

    wait_for: MethodOptions | None = None
    execute: MethodOptions = USUAL_METHOD
    proceed: bool = False
    """A wait_for whose attempts are used up leads to execute instead of failing the flow."""
    recovery: str = ""
    """Step type that follows an execute whose attempts are used up; "": the flow fails."""
    recovery_options: StepOptions | None = None
    locks: tuple[str, ...] = ()
    """Attributes that no other step or RPC may hold during a method call."""

    def of(self, method: Method) -> MethodOptions:
        if method is Method.WAIT_FOR:
            return self.wait_for or MethodOptions()
        return self.execute


USUAL_OPTIONS: Final = StepOptions()
NO_MEMBERS: Final = b"{}"
"""A JSON object without members."""


class Condition(Record, frozen=True, kw_only=True):
    """One thing to wait for: a time, or ``count`` messages of a channel."""

    id: str
    due_ms: int = 0
    channel: str = ""
    count: int = 1


class Wait(Record, frozen=True, kw_only=True):
    """The open conditions of a step execution."""

    mode: Mode
    conditions: tuple[Condition, ...]


_STEP_STATE: Final = {
    "step_type": "t",
    "number": "n",
    "parent": "p",
    "options": "o",
    "input": "i",
    "method": "m",
    "phase": "ph",
    "attempt": "a",
    "scheduled_at_ms": "sa",
    "ready_at_ms": "ra",
    "first_attempt_at_ms": "fa",
    "attributes": "at",
    "wait": "w",
    "conditions": "c",
    "failure": "f",
    "last_failure": "lf",
    "checkpoint": "cp",
}


class StepState(Document, frozen=True, kw_only=True, rename=_STEP_STATE):
    """An open step execution."""

    k: int
    step_type: str
    number: int
    """Executions of this step type in the run count from 1."""
    parent: int = 0
    """``k`` of the execution whose decision opened this one; 0: the start or an RPC."""
    options: StepOptions = USUAL_OPTIONS
    input: bytes = b"null"
    method: Method
    phase: Phase
    attempt: int = 1
    scheduled_at_ms: int
    ready_at_ms: int = 0
    """When the attempt became, or becomes, ready."""
    first_attempt_at_ms: int = 0
    """When this method was handed out first, as far as that may have run; 0: not known yet."""
    attributes: bytes = NO_MEMBERS
    """The flow's attributes when this method call became ready, kept over its retries."""
    wait: Wait | None = None
    conditions: bytes = b""
    """What wait_for's conditions found, for execute."""
    failure: dict[str, Any] | None = None
    """The error that led here: proceeding after wait_for, or recovery."""
    last_failure: dict[str, Any] | None = None
    checkpoint: bytes = b""

    @property
    def execution_id(self) -> str:
        return f"{self.step_type}-{self.number}"


class TimeoutHandler(Record, frozen=True, kw_only=True):
    """The step that follows the timeout of a flow."""

    step_type: str
    input: bytes = b"null"
    options: StepOptions = StepOptions()


_FLOW_INFO: Final = {
    "namespace": "ns",
    "flow_id": "f",
    "run_id": "r",
    "run_number": "n",
    "flow_type": "t",
    "start_step": "s",
    "request_id": "rq",
    "started_at_ms": "at",
    "deadline_ms": "dl",
    "timeout_policy": "tp",
    "timeout_handler": "th",
    "traceparent": "tr",
}


class FlowInfo(Document, frozen=True, kw_only=True, rename=_FLOW_INFO):
    """Facts fixed at the start of a run."""

    namespace: str
    flow_id: str
    run_id: str
    run_number: int = 1
    flow_type: str
    start_step: str
    request_id: str
    started_at_ms: int
    deadline_ms: int = 0
    timeout_policy: TimeoutPolicy = TimeoutPolicy.FAIL
    timeout_handler: TimeoutHandler | None = None
    traceparent: str = ""
    """The trace in which the run was started; its tasks carry it to their workers."""


class Stop(Record, frozen=True, kw_only=True):
    """A stop under way: nothing is handed out any more, what was handed out may still answer."""

    status: FlowStatus
    reason: str = ""
    requested_at_ms: int


_FLOW_STATE: Final = {
    "status": "s",
    "stop": "sp",
    "result": "r",
    "failure": "f",
    "close_reason": "cr",
    "closed_at_ms": "ca",
    "next_k": "k",
    "numbers": "n",
    "open": "o",
    "waiting": "w",
    "locked": "l",
    "locks": "lk",
    "channels": "c",
    "timed_out": "to",
    "last_worker": "lw",
    "last_progress_at_ms": "lp",
    "history_length": "h",
}


class FlowState(Document, frozen=True, kw_only=True, rename=_FLOW_STATE):
    """The changing part of a run."""

    status: FlowStatus = FlowStatus.RUNNING
    stop: Stop | None = None
    result: bytes = b""
    failure: dict[str, Any] | None = None
    close_reason: str = ""
    closed_at_ms: int = 0
    next_k: int = 1
    numbers: dict[str, int] = {}
    """Executions so far by step type."""
    open: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    """Executions with open conditions, oldest first."""
    locked: tuple[int, ...] = ()
    """Executions that wait for attribute locks, oldest first."""
    locks: dict[str, str] = {}
    """Attribute -> who holds its lock: ``s<k>`` or ``r<rpc>``."""
    channels: dict[str, int] = {}
    """Messages that wait in each channel."""
    timed_out: bool = False
    """The timeout handler was begun; it never is again."""
    last_worker: str = ""
    last_progress_at_ms: int = 0
    history_length: int = 0


class Task(Record, frozen=True, kw_only=True):
    """The record of a step's task, as read from the store."""

    state: str = ""
    """"r" ready, "l" leased, "" no record."""
    attempt: int = 0
    delivery: int = 0
    owner: str = ""
    leased_at_ms: int = 0
    heartbeat_at_ms: int = 0
    checkpoint: bytes = b""
    session: str = ""
    """The node whose stream it was handed out over."""


class FlowRun(Record, frozen=True, kw_only=True):
    """What a decision looks at. ``steps`` may hold only some of the open executions."""

    info: FlowInfo
    state: FlowState
    version: str = ""
    """A new token with every commit. A number would not tell a commit that this node still expects
    from one of somebody else that took its place. "": the run is not stored yet."""
    attributes: dict[str, bytes] = {}
    steps: dict[int, StepState] = {}
