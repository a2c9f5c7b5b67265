"""Drives flows over HTTP: start, look, wait, call, publish, stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
import trio

from nodes.worker.client_errors import (
    FlowFailed,
    FlowStillRunning,
)
from nodes.worker.client_requests import Requests, read_object
from nodes.worker.credentials import Credential
from nodes.worker.decisions import step_name
from nodes.worker.flow import Flow, Rpc, shape_of
from nodes.worker.options import StepOptions
from nodes.worker.steps import wire_options

WAIT_SECONDS: Final = 30
"""One long poll."""

Result = TypeVar("Result")
IdReuse = Literal["allow_if_not_running", "allow_if_previous_failed", "disallow", "terminate_if_running"]
StopKind = Literal["cancel", "terminate", "fail"]


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """How a run ended. ``status`` is completed, failed, canceled, terminated or timed_out."""

    flow_id: str
    run_id: str
    status: str
    raw_result: msgspec.Raw
    failure: Mapping[str, Any] | None
    close_reason: str

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    def result(self, type: type[Result] | Any = Any) -> Any:
        """The result, converted to ``type``. Raises FlowFailed when there is none."""
        if not self.completed:
            raise FlowFailed(self.flow_id, self.status, self.failure, self.close_reason)
        return msgspec.json.decode(self.raw_result, type=type)


class _Summary(msgspec.Struct):
    flow_id: str
    run_id: str
    status: str
    is_terminal: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: dict[str, Any] | None = None
    close_reason: str | None = None


class _RpcAnswer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")


class Client:
    """Use as an async context manager. ``url`` is a node, a balancer, or several of them, which are
    tried in turn. ``token`` or ``token_file`` need the role of an operator; they are not the worker's.

    Requests are repeated for up to 30 seconds when that cannot do harm: reads, and changes that carry
    a request id or were certainly not executed. Everything raises ClientError, in its several kinds.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        token: str | None = None,
        token_file: str | None = None,
        namespace: str = "default",
    ) -> None:
        self._requests = Requests(url, Credential(token, token_file), namespace)
        self._ask = self._requests.ask

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._requests.aclose()

    # -- starting ---------------------------------------------------------------------------

    async def start(
        self,
        flow: type[Flow] | Flow | str,
        input: Any = None,
        *,
        flow_id: str | None = None,
        start_step: Any = None,
        step_options: StepOptions | None = None,
        attributes: Mapping[str, Any] | None = None,
        timeout_seconds: int | None = None,
        timeout_policy: Literal["fail", "cancel", "handler"] | None = None,
        id_reuse_policy: IdReuse = "allow_if_not_running",
        request_id: str | None = None,
        ignore_already_started: bool = False,
    ) -> FlowHandle:
        """Start a flow; by its name only ``start_step`` must say where it begins.

        Never starts two runs, however often the request has to be sent. With the ``request_id`` of an
        earlier start and ``ignore_already_started`` it finds the run of that one. After
        ``timeout_seconds`` the flow's ``on_timeout`` step follows if it has one, else the flow fails;
        ``timeout_policy`` says otherwise. Raises FlowAlreadyStarted.
        """
        flow_type, step_type, options = _beginning(flow, start_step, step_options)
        handler = _timeout_handler(flow) if timeout_seconds else None
        policy = timeout_policy or ("fail" if handler is None else "handler")
        body: dict[str, Any] = {
            "flow_type": flow_type,
            "flow_id": flow_id or f"{flow_type}-{uuid4().hex}"[-255:],
            "input": input,
            "start_step": step_type,
            "step_options": options,
            "attributes": attributes,
            "timeout_seconds": timeout_seconds,
            "timeout_policy": policy if timeout_seconds else None,
            "timeout_handler": handler if policy == "handler" else None,
            "id_reuse_policy": id_reuse_policy,
            "request_id": request_id or uuid4().hex,
            "ignore_already_started": ignore_already_started or request_id is None,
        }
        again = {"ignore_already_started": True}
        answer = await self._ask("POST", "", body=body, repeatable=True, again=again)
        started = msgspec.json.decode(answer, type=dict[str, Any])
        return FlowHandle(self, started["flow_id"], started["run_id"])

    def handle(self, flow_id: str, run_id: str | None = None) -> FlowHandle:
        """A handle of a flow that exists; without ``run_id`` always of its current run."""
        return FlowHandle(self, flow_id, run_id)

    # -- looking ----------------------------------------------------------------------------

    async def describe(self, flow_id: str, *, run_id: str | None = None) -> dict[str, Any]:
        """Everything about a run: status, result, attributes, open steps and why they wait."""
        return read_object(await self._ask("GET", _path(flow_id), query={"run_id": run_id}, repeatable=True))

    async def list(
        self,
        *,
        status: str | None = None,
        flow_type: str | None = None,
        page_size: int | None = None,
        next_page_token: str | None = None,
    ) -> dict[str, Any]:
        """A page of runs, newest first: ``flows`` and ``next_page_token``."""
        query = {
            "status": status,
            "flow_type": flow_type,
            "page_size": page_size,
            "next_page_token": next_page_token,
        }
        return read_object(await self._ask("GET", "", query=query, repeatable=True))

    async def steps(
        self,
        flow_id: str,
        *,
        run_id: str | None = None,
        page_size: int | None = None,
        next_page_token: str | None = None,
    ) -> dict[str, Any]:
        """A page of what became of step attempts, oldest first: ``steps`` and ``next_page_token``."""
        query = {"run_id": run_id, "page_size": page_size, "next_page_token": next_page_token}
        return read_object(await self._ask("GET", _path(flow_id, "steps"), query=query, repeatable=True))

    async def wait(
        self, flow_id: str, *, timeout_seconds: float | None = None, run_id: str | None = None
    ) -> FlowOutcome:
        """The outcome of a run, once it is closed. Raises FlowStillRunning after ``timeout_seconds``."""
        until = trio.current_time() + (math.inf if timeout_seconds is None else timeout_seconds)
        while True:
            left = max(0.0, until - trio.current_time())
            poll = math.ceil(min(left, WAIT_SECONDS))
            with trio.move_on_after(left + 1) as scope:
                answer = await self._ask(
                    "GET",
                    _path(flow_id, "wait"),
                    query={"timeout_seconds": poll, "run_id": run_id},
                    repeatable=True,
                    seconds=poll,
                )
            if not scope.cancelled_caught:
                found = msgspec.json.decode(answer, type=_Summary)
                if found.is_terminal:
                    return _outcome(found)
                # A flow that is started anew meanwhile is another one.
                run_id = run_id or found.run_id
            if trio.current_time() >= until:
                raise FlowStillRunning(f"flow {flow_id!r} did not close within {timeout_seconds} s")

    # -- acting -----------------------------------------------------------------------------

    async def rpc(
        self,
        flow_id: str,
        rpc: Rpc | str,
        input: Any = None,
        *,
        type: type[Result] | Any = Any,
        timeout_seconds: float = 10.0,
        lock_attributes: Sequence[str] | None = None,
        run_id: str | None = None,
        request_id: str | None = None,
    ) -> Any:
        """Call an RPC of a flow; its result, converted to ``type``.

        Never repeated once it may have reached a handler, unless it has a ``request_id``: the same id
        gets the same answer for ten minutes, and what the RPC changes is changed once. Raises
        RpcUnavailable, UnknownRpc, RpcFailed, RpcLockConflict, RpcOutcomeUnknown, FlowNotActive,
        FlowNotFound.
        """
        locks = lock_attributes
        if locks is None:
            locks = () if isinstance(rpc, str) else rpc.lock_attributes
        name = rpc if isinstance(rpc, str) else rpc.name
        body = {
            "input": input,
            "timeout_seconds": timeout_seconds,
            "lock_attributes": locks,
            "request_id": request_id,
        }
        answer = await self._ask(
            "POST",
            _path(flow_id, "rpc", name),
            body=body,
            query={"run_id": run_id},
            repeatable=request_id is not None,
            seconds=timeout_seconds,
        )
        return msgspec.json.decode(msgspec.json.decode(answer, type=_RpcAnswer).result, type=type)

    async def publish(
        self,
        flow_id: str,
        channel: str,
        value: Any = None,
        *,
        request_id: str | None = None,
        run_id: str | None = None,
    ) -> bool:
        """Add a message to a channel, once per request id; False when it was there already."""
        body = {"value": value, "request_id": request_id or uuid4().hex}
        answer = await self._ask(
            "POST",
            _path(flow_id, "channels", channel),
            body=body,
            query={"run_id": run_id},
            repeatable=True,
        )
        return bool(read_object(answer)["outcome"] == "published")

    async def stop(
        self,
        flow_id: str,
        kind: StopKind = "cancel",
        *,
        reason: str = "",
        wait: bool | None = None,
        run_id: str | None = None,
    ) -> dict[str, Any]:
        """Stop a run and describe it then.

        ``cancel`` lets running steps end first unless ``wait`` is False; the others do not unless it
        is True. Raises FlowNotActive when it is closed already.
        """
        body = {"type": kind, "reason": reason, "wait": wait}
        return read_object(
            await self._ask("POST", _path(flow_id, "stop"), body=body, query={"run_id": run_id})
        )


class FlowHandle:
    """A flow on a server. ``run_id`` None: its current run, whichever that is."""

    def __init__(self, client: Client, flow_id: str, run_id: str | None) -> None:
        self._client = client
        self.flow_id = flow_id
        self.run_id = run_id

    def __repr__(self) -> str:
        return f"FlowHandle({self.flow_id!r}, {self.run_id!r})"

    async def describe(self) -> dict[str, Any]:
        return await self._client.describe(self.flow_id, run_id=self.run_id)

    async def steps(self, **page: Any) -> dict[str, Any]:
        return await self._client.steps(self.flow_id, run_id=self.run_id, **page)

    async def wait(self, *, timeout_seconds: float | None = None) -> FlowOutcome:
        """The outcome, whatever it is."""
        return await self._client.wait(self.flow_id, timeout_seconds=timeout_seconds, run_id=self.run_id)

    async def result(self, type: type[Result] | Any = Any, *, timeout_seconds: float | None = None) -> Any:
        """The result, converted to ``type``. Raises FlowFailed, FlowStillRunning."""
        return (await self.wait(timeout_seconds=timeout_seconds)).result(type)

    async def rpc(self, rpc: Rpc | str, input: Any = None, **options: Any) -> Any:
        return await self._client.rpc(self.flow_id, rpc, input, run_id=self.run_id, **options)

    async def publish(self, channel: str, value: Any = None, *, request_id: str | None = None) -> bool:
        return await self._client.publish(
            self.flow_id, channel, value, request_id=request_id, run_id=self.run_id
        )

    async def stop(
        self, kind: StopKind = "cancel", *, reason: str = "", wait: bool | None = None
    ) -> dict[str, Any]:
        return await self._client.stop(self.flow_id, kind, reason=reason, wait=wait, run_id=self.run_id)


def _beginning(
    flow: type[Flow] | Flow | str, start_step: Any, options: StepOptions | None
) -> tuple[str, str, dict[str, Any] | None]:
    if isinstance(flow, str):
        if start_step is None:
            raise ValueError("a flow that is given by its name needs start_step")
        wire = None if isinstance(start_step, str) else wire_options(start_step, {}, options)
        return flow, step_name(start_step), wire
    shape = shape_of(flow)
    name = shape.start.name if start_step is None else step_name(start_step)
    if name not in shape.steps:
        raise ValueError(f"{name!r} is no step of flow {shape.name!r}")
    return shape.name, name, wire_options(shape.steps[name], shape.steps, options)


def _timeout_handler(flow: type[Flow] | Flow | str) -> dict[str, Any] | None:
    shape = None if isinstance(flow, str) else shape_of(flow)
    if shape is None or shape.on_timeout is None:
        return None
    return {"step_type": shape.on_timeout.name, "options": shape.options(shape.on_timeout)}


def _path(flow_id: str, *parts: str) -> str:
    return "".join(f"/{quote(part, safe='')}" for part in (flow_id, *parts))


def _outcome(found: _Summary) -> FlowOutcome:
    return FlowOutcome(
        found.flow_id, found.run_id, found.status, found.result, found.failure, found.close_reason or ""
    )
