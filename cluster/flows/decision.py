"""Collects what one decision does to a run of a flow.

Rules that no decision can break live here:

* *Order.* Attributes are written before anything becomes ready, so what follows sees them; conditions
  are met before locks are granted, both oldest first.
* *Locks.* A method call takes all its attribute locks at once, and never before those who have
  waited longer for one of them.
* *Ends.* A flow without an open execution is complete. Closing drops all other effects and leaves
  nothing open. While a stop is under way nothing becomes ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import orjson
from msgspec import Raw
from msgspec.structs import force_setattr, replace

from cluster.flows.changes import (
    Append,
    Arm,
    Changes,
    Disarm,
    DropTask,
    Effect,
    Forget,
    NotLoaded,
    ReadyStep,
    Take,
    View,
    stored_size,
)
from cluster.flows.conditions import findings, has_timer, holding, next_due_ms
from cluster.flows.limits import FlowLimits, at_most
from cluster.flows.records import (
    NO_MEMBERS,
    Condition,
    FlowStatus,
    Method,
    Mode,
    Phase,
    StepOptions,
    StepState,
    Wait,
)
from cluster.flows.wire import Publication

FLOW_TIMER = "r"
STOP_TIMER = "z"
NO_STEPS_LEFT = "no_steps_left"


class StepEvent(StrEnum):
    """Entries of the step history."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    TIMED_OUT = "timed_out"
    CANCELED = "canceled"


def step_timer(k: int) -> str:
    return f"s{k}"


def lock_timer(rpc_id: str) -> str:
    return f"l{rpc_id}"


class Decision:
    """One decision about a run at ``now_ms``."""

    def __init__(self, view: View, now_ms: int, limits: FlowLimits) -> None:
        self.view = view
        self.info = view.run.info
        # A copy of its own, which changes in place until the decision is over.
        self.state = replace(view.run.state)
        self.now_ms = now_ms
        self.limits = limits
        self.steps: dict[int, StepState | None] = {}
        self.attributes = view.run.attributes
        self.effects: list[Effect] = []
        self.history: list[dict[str, Any]] = []
        self._taken: dict[str, int] = {}
        self._added: dict[str, list[bytes]] = {}
        self._to_look_at: set[int] = set()
        self._published = False
        self._locks_moved = False

    # -- state ------------------------------------------------------------------------------

    def set(self, **fields: Any) -> None:
        """Change fields of the run's state."""
        for name, value in fields.items():
            force_setattr(self.state, name, value)

    def step(self, k: int) -> StepState | None:
        """The open execution ``k`` as this decision has it. Raises NotLoaded."""
        return self.steps[k] if k in self.steps else self.view.step(k)

    def record(self, event: StepEvent, step: StepState, **details: Any) -> None:
        """Append an entry to the step history."""
        self.history.append(
            {
                "event": event,
                "k": step.k,
                "step_execution_id": step.execution_id,
                "step_type": step.step_type,
                "method": step.method,
                "attempt": step.attempt,
                "at_ms": self.now_ms,
                **details,
            }
        )

    def write(self, attributes: Mapping[str, Raw]) -> None:
        """Set attributes. Raises LimitReached."""
        if not attributes:
            return
        written = {name: self._payload(value) for name, value in attributes.items()}
        self.attributes = {**self.attributes, **written}
        at_most("attribute_count", len(self.attributes), self.limits.attribute_count)
        size = sum(len(name) + len(value) for name, value in self.attributes.items())
        at_most("attribute_size", size, self.limits.attribute_size)

    def _payload(self, raw: Raw | bytes) -> bytes:
        value = bytes(raw)
        at_most("payload_size", len(value), self.limits.payload_size)
        return value

    # -- executions -------------------------------------------------------------------------

    def open_step(
        self,
        step_type: str,
        payload: Raw | bytes,
        options: StepOptions,
        *,
        parent: int = 0,
        failure: dict[str, Any] | None = None,
    ) -> StepState:
        """Begin a step execution. Raises LimitReached."""
        at_most("open_step_count", len(self.state.open) + 1, self.limits.open_step_count)
        numbers = {**self.state.numbers, step_type: self.state.numbers.get(step_type, 0) + 1}
        at_most("step_type_count", len(numbers), self.limits.step_type_count)
        k = self.state.next_k
        step = StepState(
            k=k,
            step_type=step_type,
            number=numbers[step_type],
            parent=parent,
            options=options,
            input=self._payload(payload),
            method=Method.EXECUTE if options.wait_for is None else Method.WAIT_FOR,
            phase=Phase.LOCKED,
            scheduled_at_ms=self.now_ms,
            failure=failure,
        )
        self.set(next_k=k + 1, numbers=numbers, open=(*self.state.open, k))
        self._await_locks(step)
        return step

    def begin(self, step: StepState) -> None:
        """Begin a method call: it becomes ready when its locks are free, which is seen to at the end."""
        self._await_locks(
            replace(
                step,
                phase=Phase.LOCKED,
                attempt=1,
                first_attempt_at_ms=0,
                last_failure=None,
                checkpoint=b"",
                wait=None,
            )
        )

    def _await_locks(self, step: StepState) -> None:
        self.steps[step.k] = step
        self.set(locked=(*self.state.locked, step.k))
        self._locks_moved = True

    def make_ready(self, step: StepState, attributes: bytes | None = None) -> None:
        """Put the attempt of ``step`` on its queue. ``attributes`` is the snapshot it gets; None: it keeps
        the one that its record holds.
        """
        attributes = step.attributes if attributes is None else attributes
        step = replace(step, phase=Phase.READY, ready_at_ms=self.now_ms, attributes=attributes)
        self.steps[step.k] = step
        self.effects.append(ReadyStep(step))

    def wait(self, step: StepState, mode: Mode, conditions: Iterable[Condition]) -> None:
        """Open the conditions of ``step``; they are looked at before the decision ends."""
        wait = Wait(mode=mode, conditions=tuple(conditions))
        self.steps[step.k] = replace(
            step, phase=Phase.WAITING, method=Method.EXECUTE, wait=wait, last_failure=None, checkpoint=b""
        )
        self.set(waiting=(*self.state.waiting, step.k))
        self.look_at(step.k)

    def look_at(self, k: int) -> None:
        """See before the decision ends whether the conditions of ``k`` hold."""
        self._to_look_at.add(k)

    def end_step(self, step: StepState) -> None:
        """Take an execution off the open ones."""
        k = step.k
        self.steps[k] = None
        state = self.state
        self.set(
            open=_without(state.open, k),
            waiting=_without(state.waiting, k),
            locked=_without(state.locked, k),
        )
        self.release(f"s{k}")

    def cancel_step(self, step: StepState) -> None:
        """End an execution whose result nobody wants any more."""
        ready = step.phase is Phase.READY
        self.effects.append(DropTask(step.k, told=True) if ready else Disarm(step_timer(step.k)))
        self.record(StepEvent.CANCELED, step)
        self.end_step(step)

    # -- locks ------------------------------------------------------------------------------

    def lock(self, holder: str, names: Iterable[str]) -> bool:
        """Take all of ``names`` for ``holder``, or none of them."""
        names = tuple(names)
        if not names:
            return True
        if any(name in self.state.locks for name in names):
            return False
        self.set(locks={**self.state.locks, **dict.fromkeys(names, holder)})
        return True

    def release(self, holder: str) -> bool:
        """Give back what ``holder`` has locked; whether it had locked anything."""
        if not self.state.locks:
            return False
        left = {name: by for name, by in self.state.locks.items() if by != holder}
        if len(left) == len(self.state.locks):
            return False
        self.set(locks=left)
        self._locks_moved = True
        return True

    def _grant_locks(self) -> None:
        wanted: set[str] = set()
        left: list[int] = []
        self._need(self.state.locked)
        for k in self.state.locked:
            step = self.step(k)
            if step is None:
                left.append(k)
                continue
            names = step.options.locks
            if wanted.isdisjoint(names) and self.lock(f"s{k}", names):
                self.make_ready(step, json_object(self.attributes))
            else:
                wanted.update(names)
                left.append(k)
        self.set(locked=tuple(left))

    def _need(self, ks: Iterable[int]) -> None:
        """Check that these executions are known, all at once. Raises NotLoaded."""
        unread = [k for k in ks if k not in self.steps]
        if unread:
            self.view.need(unread)

    # -- channels and conditions ------------------------------------------------------------

    def publish(self, messages: Iterable[Publication]) -> None:
        """Add messages to channels. Raises LimitReached."""
        for message in messages:
            name = message.channel
            count = self.state.channels.get(name, 0) + 1
            at_most("channel_backlog", count, self.limits.channel_backlog)
            self.set(channels={**self.state.channels, name: count})
            at_most("channel_count", len(self.state.channels), self.limits.channel_count)
            self._added.setdefault(name, []).append(self._payload(message.value))
            self._published = True

    def _take(self, channel: str, count: int) -> list[bytes]:
        """The first ``count`` messages of a channel, which has as many. Raises NotLoaded."""
        taken = self._taken.get(channel, 0)
        stored = self.view.run.state.channels.get(channel, 0) - taken
        old = min(count, stored)
        known = self.view.messages.get(channel, ())
        if len(known) < taken + old:
            raise NotLoaded(messages={channel: taken + old})
        added = self._added.get(channel, [])
        values = [*known[taken : taken + old], *added[: count - old]]
        del added[: count - old]
        if old:
            self._taken[channel] = taken + old
        left = self.state.channels[channel] - count
        channels = {**self.state.channels, channel: left}
        if not left:
            del channels[channel]
        self.set(channels=channels)
        return values

    def _meet_conditions(self) -> None:
        if not (self._published or self._to_look_at):
            return
        self._need(self.state.waiting if self._published else self._to_look_at)
        for k in self.state.waiting:
            if not (self._published or k in self._to_look_at):
                continue
            step = self.step(k)
            if step is None or step.wait is None:
                continue
            wait = step.wait
            held = holding(wait, self.state.channels, self.now_ms)
            if held is None:
                due_ms = next_due_ms(wait, self.now_ms)
                if k in self._to_look_at and due_ms is not None:
                    self.effects.append(Arm(step_timer(k), due_ms))
                continue
            if has_timer(wait) and k not in self._to_look_at:
                self.effects.append(Disarm(step_timer(k)))
            found = {c.id: self._take(c.channel, c.count) if c.channel else [] for c in held}
            self.set(waiting=_without(self.state.waiting, k))
            self.begin(replace(step, conditions=findings(wait, found)))

    # -- ends -------------------------------------------------------------------------------

    def close(
        self,
        status: FlowStatus,
        reason: str,
        *,
        result: bytes = b"",
        failure: dict[str, Any] | None = None,
    ) -> None:
        """End the run; everything open is dropped. Raises LimitReached for a large result."""
        self._payload(result)
        stored = self.view.run.state
        answered = {e.k for e in self.effects if isinstance(e, DropTask) and not e.told}
        self.effects = []
        if self.info.deadline_ms:
            self.effects.append(Disarm(FLOW_TIMER))
        if stored.stop is not None:
            self.effects.append(Disarm(STOP_TIMER))
        for k in stored.open:
            self.effects += [DropTask(k, told=k not in answered), Disarm(step_timer(k))]
        holders = {holder for holder in stored.locks.values() if holder.startswith("r")}
        self.effects += [Disarm(lock_timer(holder[1:])) for holder in sorted(holders)]
        self.effects += [Forget(channel) for channel in stored.channels]
        self._taken.clear()
        self._added.clear()
        self.steps = dict.fromkeys(stored.open)
        self.set(
            status=status,
            close_reason=reason,
            result=result,
            failure=failure,
            closed_at_ms=self.now_ms,
            stop=None,
            open=(),
            waiting=(),
            locked=(),
            locks={},
            channels={},
        )

    def _settle(self) -> None:
        if self.state.status.closed:
            return
        stop = self.state.stop
        if stop is None:
            self._meet_conditions()
            if self._locks_moved:
                self._grant_locks()
            if not self.state.open:
                self.close(FlowStatus.COMPLETED, NO_STEPS_LEFT, result=b"null")
        elif not self.state.open:
            self.finish_stop()

    def finish_stop(self) -> None:
        """Close a run whose stop has waited for everything."""
        stop = self.state.stop
        if stop is None:
            return
        failure = None
        if stop.status is FlowStatus.FAILED:
            failure = {"message": stop.reason, "type": "FlowStopped"}
        self.close(stop.status, stop.reason, failure=failure)

    def changes(self, **outcome: Any) -> Changes:
        """The finished decision. Raises NotLoaded."""
        self._settle()
        for channel, count in self._taken.items():
            self.effects.append(Take(channel, count))
        for channel, values in self._added.items():
            if values:
                self.effects.append(Append(channel, tuple(values)))
        at_most("decision_size", stored_size(self.effects), self.limits.decision_size)
        stored = self.view.run.state
        self.set(
            last_progress_at_ms=self.now_ms,
            history_length=stored.history_length + len(self.history),
        )
        return Changes(
            state=self.state,
            steps=self.steps,
            attributes=None if self.attributes is self.view.run.attributes else self.attributes,
            effects=self.effects,
            history=self.history,
            outcome=outcome,
            halts=_halted(self.state.status, self.state.stop) and not _halted(stored.status, stored.stop),
            closes=self.state.status.closed and not stored.status.closed,
        )


def json_object(members: Mapping[str, bytes]) -> bytes:
    """A JSON object of members that are JSON already."""
    if not members:
        return NO_MEMBERS
    return orjson.dumps({name: orjson.Fragment(value) for name, value in members.items()})


def _halted(status: FlowStatus, stop: object) -> bool:
    return status.closed or stop is not None


def _without(numbers: tuple[int, ...], k: int) -> tuple[int, ...]:
    return tuple([other for other in numbers if other != k]) if k in numbers else numbers
