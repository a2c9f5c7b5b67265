"""Runs tasks: finds the handler, calls it, and turns what it did into the bytes of an output."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import trio

from nodes.worker.context import Attempt, RpcContext, StepContext, TaskContext
from nodes.worker.decisions import NOTHING, Decision, Next, Wait, wait_all
from nodes.worker.decisions import Channel as ChannelCondition
from nodes.worker.decisions import Timer as TimerCondition
from nodes.worker.errors import DefinitionError, StepError
from nodes.worker.flow import BoundFlow, BoundStep
from nodes.worker.handlers import Handler
from nodes.worker.payloads import encode
from nodes.worker.steps import wire_options
from nodes.worker.tasks import TaskBody

log = logging.getLogger("headrace.worker")

WAIT_FOR: Final = "wait_for"
RPC: Final = "rpc"
STACK_LIMIT: Final = 16_000
"""Characters of a stack trace that are sent."""


class Ended(msgspec.Struct, frozen=True):
    """How a handler ended: JSON of its output, or of its failure."""

    output: bytes | None = None
    failure: bytes | None = None


class Job(msgspec.Struct, frozen=True):
    """A task with the handler that is to run it."""

    body: TaskBody
    flow: BoundFlow
    step: BoundStep | None
    """None: it is an RPC."""
    handler: Handler
    worker_id: str
    limiter: trio.CapacityLimiter

    async def run(self, attempt: Attempt) -> Ended:
        """Run the handler to its end. Raises no Exception; whoever cancels the attempt says so with
        :func:`cancelled`.
        """
        body = self.body
        try:
            if self.step is None:
                return Ended(await self._run_rpc(attempt))
            context = StepContext(body, attempt, self.worker_id)
            returned = await self.handler.call(context, body.input, self.limiter)
            if self.handler is self.step.execute:
                fields = {"decision": _decision(self.flow, returned)}
            else:
                fields = {"conditions": _wait(returned).wire()}
            _add_effects(fields, context)
            return Ended(encode(fields))
        except Exception as error:
            name = body.step_execution_id or body.rpc_name
            log.warning("%s of flow %s failed: %r", name, body.flow_id, error)
            return failed(error, self.step)

    async def _run_rpc(self, attempt: Attempt) -> bytes:
        context = RpcContext(self.body, attempt, self.worker_id)
        fields = {"result": await self.handler.call(context, self.body.input, self.limiter)}
        _add_effects(fields, context)
        if context.next:
            fields["next"] = [_next(self.flow, one) for one in context.next]
        return encode(fields)


class TaskRunner:
    """Finds what runs tasks of these flows, at most ``task_limit`` at once in threads."""

    def __init__(self, flows: Sequence[BoundFlow], worker_id: str, task_limit: int) -> None:
        self._flows: Mapping[str, BoundFlow] = {flow.shape.name: flow for flow in flows}
        self._worker_id = worker_id
        self._limiter = trio.CapacityLimiter(task_limit)

    def job(self, body: TaskBody) -> Job | None:
        """What runs the task; without a handler it is declined (R40)."""
        flow = self._flows.get(body.flow_type)
        if flow is None:
            return None
        step: BoundStep | None = None
        if body.kind == RPC:
            handler = flow.rpcs.get(body.rpc_name)
        else:
            step = flow.steps.get(body.step_type)
            if step is None:
                return None
            handler = step.wait_for if body.method == WAIT_FOR else step.execute
        return None if handler is None else Job(body, flow, step, handler, self._worker_id, self._limiter)


def cancelled(reason: str) -> Ended:
    """The end of a handler that was cancelled and has no output."""
    text = f"Cancelled: {reason or 'cancelled'}."
    return Ended(failure=encode({"message": text, "type": "Cancelled"}))


def _add_effects(fields: dict[str, Any], context: TaskContext) -> None:
    if context.attributes.written:
        fields["attributes"] = context.attributes.written
    if context.published:
        fields["publish"] = [{"channel": name, "value": value} for name, value in context.published]


def _wait(returned: object) -> Wait:
    if isinstance(returned, Wait):
        return returned
    if isinstance(returned, TimerCondition | ChannelCondition):
        return wait_all(returned)
    raise TypeError(f"wait_for must return conditions, not {type(returned).__name__}")


def _decision(flow: BoundFlow, decision: object) -> dict[str, Any]:
    if not isinstance(decision, Decision):
        raise TypeError(f"execute must return a decision, not {type(decision).__name__}")
    wire: dict[str, Any] = {}
    if decision.next:
        wire["next"] = [_next(flow, one) for one in decision.next]
    if decision.result is not NOTHING:
        wire["complete"] = decision.result
    if decision.failure is not None:
        wire["fail"] = {"message": decision.failure[0], "type": decision.failure[1]}
    if decision.ends_branch:
        wire["dead_end"] = True
    if decision.cancelled_types or decision.cancels_siblings:
        wire["cancel"] = {"step_types": decision.cancelled_types, "siblings": decision.cancels_siblings}
    return wire


def _next(flow: BoundFlow, one: Next) -> dict[str, Any]:
    wire: dict[str, Any] = {"step_type": one.step_type, "input": one.input}
    step = flow.shape.steps.get(one.step_type)
    if one.options is None:
        options = flow.unusual_options.get(one.step_type)
        if options is not None:
            wire["options"] = options
    elif step is None:
        raise DefinitionError(f"flow {flow.shape.name!r} has no step {one.step_type!r} to give options to")
    else:
        wire["options"] = wire_options(step, flow.shape.steps, one.options)
    return wire


def failed(error: Exception, step: BoundStep | None = None) -> Ended:
    """The end of a handler that raised."""
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
    return Ended(failure=encode(safe))
