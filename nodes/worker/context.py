"""What a handler knows of its task, and how it acts on the flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from nodes.worker.decisions import NOTHING, Decision, Next
from nodes.worker.payloads import encode
from nodes.worker.tasks import TaskBody


class Attributes(Mapping[str, Any]):
    """The flow's attributes as they were when the method was first handed out.

    Assigning sets an attribute together with the handler's output; ``None`` is a value, and nothing
    can be removed.
    """

    def __init__(self, stored: Mapping[str, msgspec.Raw]) -> None:
        self._stored = stored
        self.written: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self.written:
            return self.written[name]
        return msgspec.json.decode(self._stored[name])

    def __setitem__(self, name: str, value: Any) -> None:
        self.written[name] = value

    def __iter__(self) -> Iterator[str]:
        yield from self._stored
        yield from (name for name in self.written if name not in self._stored)

    def __len__(self) -> int:
        return len(self._stored.keys() | self.written.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.written or name in self._stored


@dataclass(frozen=True, slots=True)
class ConditionResult:
    """What became of one condition: ``values`` are the messages a channel condition has taken."""

    satisfied: bool = False
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The failure that led to this step."""

    message: str
    type: str


class Attempt:
    """The hold that the worker has on a running handler. ``beat`` sends a heartbeat with a checkpoint."""

    __slots__ = ("beat", "cancel_reason", "scope")

    def __init__(self, beat: Callable[[Attempt, bytes | None], None] | None = None) -> None:
        self.beat = beat
        self.cancel_reason = ""
        self.scope: trio.CancelScope | None = None

    def cancel(self, reason: str) -> None:
        """Ask the handler to end; the first reason counts."""
        self.cancel_reason = self.cancel_reason or reason or "cancelled"
        if self.scope is not None:
            self.scope.cancel()

    def heartbeat(self, checkpoint: bytes | None) -> None:
        """Tell the node that the handler is alive. Raises ValueError for a checkpoint it would not take."""
        if self.beat is not None:
            self.beat(self, checkpoint)


class TaskContext:
    """What steps and RPCs have in common. Everything it does takes effect with the handler's output."""

    def __init__(self, body: TaskBody, attempt: Attempt, worker_id: str) -> None:
        self._body = body
        self._attempt = attempt
        self.worker_id = worker_id
        self.namespace = body.namespace
        self.flow_type = body.flow_type
        self.flow_id = body.flow_id
        self.run_id = body.run_id
        self.attempt_id = body.attempt_id
        self.traceparent = body.traceparent
        """The trace in which the flow was started, as W3C writes it; "" for none."""
        self.attributes = Attributes(body.attributes)
        self.published: list[tuple[str, Any]] = []

    def publish(self, channel: str, value: Any = None) -> None:
        """Add a message to a channel of this flow."""
        self.published.append((channel, value))

    @property
    def cancelled(self) -> bool:
        """Whether the output is not wanted any more. Async handlers are cancelled then; plain ones
        should look here now and then.
        """
        return bool(self._attempt.cancel_reason)

    @property
    def cancel_reason(self) -> str:
        """Why, once ``cancelled``."""
        return self._attempt.cancel_reason


class StepContext(TaskContext):
    """A step execution, for ``wait_for`` and ``execute``."""

    def __init__(self, body: TaskBody, attempt: Attempt, worker_id: str) -> None:
        super().__init__(body, attempt, worker_id)
        self.step_type = body.step_type
        self.step_execution_id = body.step_execution_id
        self.attempt = body.attempt
        self.first_attempt_at = body.first_attempt_at
        self.failure: StepFailure | None = None
        if body.failure is not None:
            found = body.failure
            self.failure = StepFailure(str(found.get("message", "")), str(found.get("type", "")))
        self.conditions = _results(body.conditions) if body.conditions else {}

    @property
    def idempotency_key(self) -> str:
        """The same for all attempts of this step execution, different from all others (R59)."""
        return f"{self.flow_id}/{self.step_execution_id}"

    def satisfied(self, condition: str) -> bool:
        """Whether the condition with this id held when the wait ended."""
        return self.conditions.get(condition, ConditionResult()).satisfied

    def received(self, channel: str) -> tuple[Any, ...]:
        """The messages that the condition with this id (the channel's name by default) has taken."""
        return self.conditions.get(channel, ConditionResult()).values

    def checkpoint(self, type: Any = Any, default: Any = None) -> Any:
        """The checkpoint of the previous attempt's last heartbeat, or ``default``."""
        if isinstance(self._body.checkpoint, msgspec.UnsetType):
            return default
        return msgspec.json.decode(self._body.checkpoint, type=type)

    def heartbeat(self, checkpoint: Any = NOTHING) -> None:
        """Say that the attempt is alive, and what the next one should start from if this one fails.

        A heartbeat without a checkpoint clears the one before. Does not block. In a plain handler it
        raises ``trio.Cancelled`` once the attempt is cancelled; let it pass.
        """
        encoded = None if checkpoint is NOTHING else encode(checkpoint)
        if trio.lowlevel.in_trio_task():
            self._attempt.heartbeat(encoded)
        else:
            trio.from_thread.check_cancelled()
            trio.from_thread.run_sync(self._attempt.heartbeat, encoded)


def _results(conditions: Mapping[str, dict[str, Any]]) -> dict[str, ConditionResult]:
    return {
        name: ConditionResult(bool(found.get("satisfied")), tuple(found.get("values", ())))
        for name, found in conditions.items()
    }


class RpcContext(TaskContext):
    """An RPC. Handlers return the result."""

    def __init__(self, body: TaskBody, attempt: Attempt, worker_id: str) -> None:
        super().__init__(body, attempt, worker_id)
        self.rpc_name = body.rpc_name
        self.next: list[Next] = []

    def start(self, decision: Decision) -> None:
        """Begin steps beside those that are open: ``ctx.start(goto(Refund, amount))``."""
        self.next.extend(decision.next)
