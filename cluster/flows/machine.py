"""The state machine of flows: every decision the engine can ask for.

Pure: what is read and what happened go in, the :class:`Changes` to commit come out. A decision that
needs more than was read raises :class:`NotLoaded` and is made again.

==================================  ============================================
what happened                       decision
==================================  ============================================
a flow is started                   ``start``
a handler returned                  ``complete_step``
an attempt failed or was lost       ``fail_step``
a hand-out did not run              ``return_step``
timer ``s<k>``                      ``step_due``
timer ``r``: the flow's timeout     ``flow_due``
timer ``z``, and after a stop       ``settle_stop``
a client publishes to a channel     ``publish``
a client stops the flow             ``stop``
an RPC with locks begins            ``begin_rpc``
an RPC handler returned             ``apply_rpc``
an RPC failed, timer ``l<rpc>``     ``end_rpc``
==================================  ============================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Raw

from cluster.errors import Refused
from cluster.flows.answers import (
    FLOW_CLOSED,
    complete_step,
    fail_step,
    open_steps,
    return_step,
    step_due,
)
from cluster.flows.changes import Arm, AskToStop, Changes, Disarm, NotLoaded, View
from cluster.flows.decision import FLOW_TIMER, STOP_TIMER, Decision, lock_timer
from cluster.flows.limits import FlowLimits, at_most
from cluster.flows.records import (
    FlowInfo,
    FlowRun,
    FlowState,
    FlowStatus,
    StepOptions,
    Stop,
    TimeoutHandler,
    TimeoutPolicy,
)
from cluster.flows.wire import Publication, RpcOutput
from cluster.workflows.limits import LimitReached

__all__ = [
    "StopType",
    "apply_rpc",
    "begin_rpc",
    "complete_step",
    "end_rpc",
    "fail_step",
    "flow_due",
    "publish",
    "return_step",
    "settle_stop",
    "start",
    "step_due",
    "stop",
]


class StopType(StrEnum):
    """How a client ends a flow."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    FAIL = "fail"

    @property
    def status(self) -> FlowStatus:
        return {
            StopType.CANCEL: FlowStatus.CANCELED,
            StopType.TERMINATE: FlowStatus.TERMINATED,
            StopType.FAIL: FlowStatus.FAILED,
        }[self]


def start(
    info: FlowInfo,
    payload: bytes,
    options: StepOptions,
    attributes: Mapping[str, Raw],
    limits: FlowLimits,
) -> Changes:
    """The first decision of a run. Raises LimitReached."""
    run = FlowRun(info=info, state=FlowState())
    decision = Decision(View(run), info.started_at_ms, limits)
    decision.write(attributes)
    if info.timeout_handler is not None:
        at_most("payload_size", len(info.timeout_handler.input), limits.payload_size)
    if info.deadline_ms:
        decision.effects.append(Arm(FLOW_TIMER, info.deadline_ms))
    decision.open_step(info.start_step, payload, options)
    return decision.changes()


def publish(view: View, messages: Sequence[Publication], now_ms: int, limits: FlowLimits) -> Changes:
    """Messages from a client. Raises Refused (flow_closed, flow_closing, structural_limit_exceeded)."""
    _check_running(view)
    decision = Decision(view, now_ms, limits)
    decision.publish(messages)
    return decision.changes()


def stop(view: View, kind: StopType, reason: str, wait: bool, now_ms: int, limits: FlowLimits) -> Changes:
    """A client ends the run: at once, or when those steps that were handed out have answered.

    Raises Refused (flow_closed).
    """
    state = view.run.state
    if state.status.closed:
        raise Refused(FLOW_CLOSED, "The flow is closed.", status=409, flow_status=state.status.value)
    decision = Decision(view, now_ms, limits)
    wanted = Stop(status=kind.status, reason=reason, requested_at_ms=now_ms)
    if not wait or kind is StopType.TERMINATE:
        decision.set(stop=wanted)
        decision.finish_stop()
        return decision.changes(status=decision.state.status.value)
    if state.stop is None or kind is StopType.FAIL:
        decision.set(stop=wanted)
        decision.effects.append(Arm(STOP_TIMER, now_ms))
    return decision.changes(status=state.status.value)


def settle_stop(view: View, now_ms: int, limits: FlowLimits) -> Changes:
    """Ends what was not handed out when a stop began, and the run once nothing is left.

    Since the stop was stored nothing is handed out any more, so what is leased now was before.
    Raises NotLoaded.
    """
    if view.run.state.stop is None:
        return Changes(view.run.state)
    if view.handed_out is None:
        raise NotLoaded(handed_out=True)
    decision = Decision(view, now_ms, limits)
    decision.effects.append(Disarm(STOP_TIMER))
    view.need(view.run.state.open)
    for k in view.run.state.open:
        step = decision.step(k)
        if k in view.handed_out:
            decision.effects.append(AskToStop(k))
        elif step is not None:
            decision.cancel_step(step)
    return decision.changes()


def flow_due(view: View, now_ms: int, limits: FlowLimits) -> Changes:
    """The flow's deadline came."""
    info, state = view.run.info, view.run.state
    if state.status.closed or state.stop is not None or state.timed_out or not info.deadline_ms:
        return Changes(state)
    decision = Decision(view, now_ms, limits)
    if info.deadline_ms > now_ms:
        return Changes(state, effects=[Arm(FLOW_TIMER, info.deadline_ms)])
    text = "The flow did not end within its timeout."
    failure = {"message": text, "type": "FlowTimeout"}
    if info.timeout_policy is TimeoutPolicy.CANCEL:
        return stop(view, StopType.CANCEL, "timeout", True, now_ms, limits)
    if info.timeout_policy is TimeoutPolicy.HANDLER and info.timeout_handler is not None:
        try:
            return _begin_timeout_handler(view, info.timeout_handler, failure, now_ms, limits)
        except LimitReached:
            pass  # there is no room for one more step type
    decision.close(FlowStatus.FAILED, "timeout", failure=failure)
    return decision.changes()


def _begin_timeout_handler(
    view: View, handler: TimeoutHandler, failure: dict[str, Any], now_ms: int, limits: FlowLimits
) -> Changes:
    """Cancel what is open and open the handler's step. Raises LimitReached, NotLoaded."""
    decision = Decision(view, now_ms, limits)
    view.need(view.run.state.open)
    for k in view.run.state.open:
        step = decision.step(k)
        if step is not None:
            decision.cancel_step(step)
    decision.effects.append(Disarm(FLOW_TIMER))
    decision.set(timed_out=True)
    decision.open_step(handler.step_type, handler.input, handler.options, failure=failure)
    return decision.changes()


def begin_rpc(
    view: View, rpc_id: str, locks: Iterable[str], deadline_ms: int, now_ms: int, limits: FlowLimits
) -> Changes:
    """Take the locks of an RPC, or refuse (rpc_lock_conflict, flow_closed, flow_closing)."""
    _check_running(view)
    decision = Decision(view, now_ms, limits)
    if not decision.lock(f"r{rpc_id}", locks):
        raise Refused("rpc_lock_conflict", "An attribute the RPC needs is locked.", status=409)
    decision.effects.append(Arm(lock_timer(rpc_id), deadline_ms))
    return decision.changes()


def apply_rpc(
    view: View,
    rpc_id: str,
    locks: Sequence[str],
    output: RpcOutput,
    worker: str,
    now_ms: int,
    limits: FlowLimits,
) -> Changes:
    """What an RPC handler did. Raises Refused when it cannot be done any more."""
    _check_running(view)
    decision = Decision(view, now_ms, limits)
    decision.set(last_worker=worker)
    if locks:
        if not decision.release(f"r{rpc_id}"):
            raise Refused("rpc_lock_conflict", "The RPC took longer than its locks last.", status=409)
        decision.effects.append(Disarm(lock_timer(rpc_id)))
    decision.write(output.attributes)
    decision.publish(output.publish)
    open_steps(decision, output.next, parent=0)
    return decision.changes()


def end_rpc(view: View, rpc_id: str, now_ms: int, limits: FlowLimits) -> Changes:
    """Give back the locks of an RPC that did nothing."""
    if view.run.state.status.closed:
        return Changes(view.run.state)
    decision = Decision(view, now_ms, limits)
    decision.effects.append(Disarm(lock_timer(rpc_id)))
    decision.release(f"r{rpc_id}")
    return decision.changes()


def _check_running(view: View) -> None:
    state = view.run.state
    if state.status.closed:
        raise Refused(FLOW_CLOSED, "The flow is closed.", status=409, flow_status=state.status.value)
    if state.stop is not None:
        raise Refused("flow_closing", "The flow is being stopped.", status=409)
