"""Runs one task: finds the handler, calls it, and turns what it did into the bytes of an output."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from nodes.worker.context import Attempt, RpcContext, StepContext, TaskContext
from nodes.worker.decisions import NOTHING, Decision, Next, Wait, wait_all
from nodes.worker.decisions import Channel as ChannelCondition
from nodes.worker.decisions import Timer as TimerCondition
from nodes.worker.errors import DefinitionError, StepError
from nodes.worker.flow import BoundFlow, BoundStep, FlowShape
from nodes.worker.handlers import Handler
from nodes.worker.payloads import encode
from nodes.worker.steps import wire_options
from nodes.worker.tasks import TaskBody

log = logging.getLogger("headrace.worker")

WAIT_FOR: Final = "wait_for"
RPC: Final = "rpc"
STACK_LIMIT: Final = 16_000
"""Characters of a stack trace that are sent."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a handler ended: JSON of its output, or of its failure."""

    output: bytes | None = None
    failure: bytes | None = None


class TaskRunner:
    """Runs tasks of these flows, at most ``task_limit`` at once in threads."""

    def __init__(self, flows: Sequence[BoundFlow], worker_id: str, task_limit: int) -> None:
        self._flows: Mapping[str, BoundFlow] = {flow.shape.name: flow for flow in flows}
        self._worker_id = worker_id
        self._limiter = trio.CapacityLimiter(task_limit)

    def knows(self, body: TaskBody) -> bool:
        """Whether there is a handler; without one the task is declined (R40)."""
        flow = self._flows.get(body.flow_type)
        if flow is None:
            return False
        if body.kind == RPC:
            return body.rpc_name in flow.rpcs
        step = flow.steps.get(body.step_type)
        return step is not None and (body.method != WAIT_FOR or step.wait_for is not None)

    async def run(self, body: TaskBody, attempt: Attempt) -> Ended:
        """Run the handler to its end. Never raises Exception; ``attempt.scope`` may cancel it."""
        step = None if body.kind == RPC else self._flows[body.flow_type].steps[body.step_type]
        ended: Ended | None = None
        with attempt.scope:
            try:
                ended = Ended(output=await self._run(body, attempt))
            except Exception as error:
                ended = Ended(failure=_failure(error, step))
                name = body.step_execution_id or body.rpc_name
                log.warning("%s of flow %s failed: %r", name, body.flow_id, error)
        if ended is None:
            reason = attempt.cancel_reason or "cancelled"
            ended = Ended(failure=encode({"message": f"Cancelled: {reason}.", "type": "Cancelled"}))
        return ended

    async def _run(self, body: TaskBody, attempt: Attempt) -> bytes:
        flow = self._flows[body.flow_type]
        if body.kind == RPC:
            context = RpcContext(body, attempt, self._worker_id)
            result = await self._call(flow.rpcs[body.rpc_name], context, body)
            fields: dict[str, Any] = {"result": result, **_effects(context)}
            if context.next:
                fields["next"] = [_next(flow.shape, one) for one in context.next]
            return encode(fields)
        step, step_context = flow.steps[body.step_type], StepContext(body, attempt, self._worker_id)
        if body.method == WAIT_FOR and step.wait_for is not None:
            wait = await self._call(step.wait_for, step_context, body)
            return encode({"conditions": _wait(wait).wire(), **_effects(step_context)})
        decision = await self._call(step.execute, step_context, body)
        return encode({"decision": _decision(flow.shape, decision), **_effects(step_context)})

    async def _call(self, handler: Handler, context: TaskContext, body: TaskBody) -> Any:
        return await handler.call(context, body.input, self._limiter)


def _effects(context: TaskContext) -> dict[str, Any]:
    effects: dict[str, Any] = {}
    if context.attributes.written:
        effects["attributes"] = context.attributes.written
    if context.published:
        effects["publish"] = [{"channel": name, "value": value} for name, value in context.published]
    return effects


def _wait(returned: object) -> Wait:
    if isinstance(returned, Wait):
        return returned
    if isinstance(returned, TimerCondition | ChannelCondition):
        return wait_all(returned)
    raise TypeError(f"wait_for must return conditions, not {type(returned).__name__}")


def _decision(shape: FlowShape, decision: object) -> dict[str, Any]:
    if not isinstance(decision, Decision):
        raise TypeError(f"execute must return a decision, not {type(decision).__name__}")
    wire: dict[str, Any] = {}
    if decision.next:
        wire["next"] = [_next(shape, one) for one in decision.next]
    if decision.result is not NOTHING:
        wire["complete"] = decision.result
    if decision.failure is not None:
        wire["fail"] = {"message": decision.failure[0], "type": decision.failure[1]}
    if decision.ends_branch:
        wire["dead_end"] = True
    if decision.cancelled_types or decision.cancels_siblings:
        wire["cancel"] = {"step_types": decision.cancelled_types, "siblings": decision.cancels_siblings}
    return wire


def _next(shape: FlowShape, one: Next) -> dict[str, Any]:
    wire: dict[str, Any] = {"step_type": one.step_type, "input": one.input}
    step = shape.steps.get(one.step_type)
    if step is not None:
        wire["options"] = wire_options(step, shape.steps, one.options)
    elif one.options is not None:
        raise DefinitionError(f"flow {shape.name!r} has no step {one.step_type!r} to give options to")
    return wire


def _failure(error: Exception, step: BoundStep | None) -> bytes:
    failure: dict[str, Any] = {"message": str(error) or type(error).__name__, "type": type(error).__name__}
    if isinstance(error, StepError):
        failure |= {"message": error.message, "type": error.type}
        if error.non_retryable:
            failure["non_retryable"] = True
        if error.retry_after is not None:
            failure["retry_after_seconds"] = error.retry_after
    if step is not None and isinstance(error, step.non_retryable):
        failure["non_retryable"] = True
    failure["stack_trace"] = "".join(traceback.format_exception(error))[-STACK_LIMIT:]
    # A lone surrogate in a message is no reason to lose the failure.
    safe = {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in failure.items()}
    return encode(safe)
