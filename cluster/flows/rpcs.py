"""RPCs: what a handler gets, and what becomes of what it did.

Finding a worker is not done here. ``begin_rpc`` makes the task, whoever runs it gives the output to
``apply_rpc`` or the task to ``end_rpc``; nothing of an RPC is stored but its locks, which a timer
takes back if this node dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import orjson
import trio

from cluster.errors import Refused
from cluster.flows import machine
from cluster.flows.changes import Changes, View
from cluster.flows.deciding import Job
from cluster.flows.decision import json_object
from cluster.flows.records import FlowRun
from cluster.flows.repeats import FINAL_STATUS, Repeats, RpcRequest, answer_of, refusal_of
from cluster.flows.wire import RpcOutput, read_output
from cluster.store.transaction import Transaction

UNLOCK_SECONDS: Final = 2.0
"""How long an RPC that failed tries to give its locks back before it leaves that to their timer."""
LOCK_GRACE_MS: Final = 5_000
"""Locks of an RPC outlive its deadline by this much, for the commit of what it did."""


@dataclass(frozen=True, slots=True)
class RpcTask:
    """An RPC on its way to a worker. ``body`` is its task as JSON, but for what only the hand-out
    knows. ``last_worker`` served the flow last ("" when nobody did).
    """

    rpc_id: str
    namespace: str
    flow_type: str
    flow_id: str
    run_id: str
    name: str
    last_worker: str
    body: bytes
    locks: tuple[str, ...] = ()
    request: RpcRequest | None = None
    """The claimed request id, if the caller gave one."""


@dataclass(frozen=True, slots=True)
class RpcAnswer:
    """What a handler returned, as JSON, and on which worker."""

    worker_id: str
    output: bytes


class RpcBroker(Protocol):
    """Finds a worker for an RPC and has it run there."""

    async def call(self, rpc: RpcTask, seconds: float) -> RpcAnswer:
        """The answer of a handler, within ``seconds``.

        Raises Refused: rpc_unavailable 503 (nobody took it in time), unknown_rpc 404, rpc_failed 422
        (the handler's own error), rpc_timed_out 504 (it may have run).
        """


class Rpcs(Repeats):
    """Begins and ends RPCs."""

    async def call_rpc(
        self,
        broker: RpcBroker | None,
        namespace: str,
        flow_id: str,
        name: str,
        payload: bytes,
        *,
        run_id: str | None = None,
        locks: Sequence[str] = (),
        seconds: float = 10.0,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Run an RPC from end to end: ``{"result": ...}``. Raises what its parts raise.

        The same ``request_id`` gets the same answer for ONCE_SECONDS, and what the RPC does is done once.
        """
        if request_id is None:
            return await self._call(broker, namespace, flow_id, name, payload, run_id, locks, seconds, None)
        until = trio.current_time() + seconds
        target = (await self.read(namespace, flow_id, run_id)).info.run_id
        claimed = await self.claim_request(target, name, request_id, self._new_rpc_id(), seconds)
        if isinstance(claimed, dict):
            return claimed
        left = max(until - trio.current_time(), 0.0)
        try:
            return await self._call(broker, namespace, flow_id, name, payload, target, locks, left, claimed)
        except BaseException as error:
            with trio.CancelScope(shield=True), trio.move_on_after(UNLOCK_SECONDS):
                if isinstance(error, Refused) and error.status == FINAL_STATUS:
                    await self.keep_answer(claimed, refusal_of(error))
                else:
                    await self.give_back_request(claimed)
            raise

    async def _call(
        self,
        broker: RpcBroker | None,
        namespace: str,
        flow_id: str,
        name: str,
        payload: bytes,
        run_id: str | None,
        locks: Sequence[str],
        seconds: float,
        request: RpcRequest | None,
    ) -> dict[str, Any]:
        rpc = await self.begin_rpc(
            namespace,
            flow_id,
            name,
            payload,
            run_id,
            locks=locks,
            timeout_ms=int(seconds * 1000),
            request=request,
        )
        try:
            if broker is None:
                raise Refused("rpc_unavailable", "No worker can be reached for RPCs.", status=503)
            answer = await broker.call(rpc, seconds)
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(UNLOCK_SECONDS):
                await self.end_rpc(rpc)
            raise
        return await self.apply_rpc(rpc, answer.worker_id, answer.output)

    async def begin_rpc(
        self,
        namespace: str,
        flow_id: str,
        name: str,
        payload: bytes,
        run_id: str | None = None,
        *,
        locks: Sequence[str] = (),
        timeout_ms: int = 10_000,
        request: RpcRequest | None = None,
    ) -> RpcTask:
        """An RPC to the flow as it is now; with ``locks`` nobody else holds those attributes meanwhile.

        A closed flow can be asked too, but not changed. Raises Refused (flow_not_found 404;
        rpc_lock_conflict, flow_closed, flow_closing 409; structural_limit_exceeded 422).
        """
        run = await self.read(namespace, flow_id, run_id)
        rpc_id = self._new_rpc_id() if request is None else request.rpc_id
        wanted = tuple(dict.fromkeys(locks))
        if wanted:
            run = await self._lock(run.info.run_id, rpc_id, wanted, timeout_ms)
        body = {
            "kind": "rpc",
            "namespace": namespace,
            "flow_type": run.info.flow_type,
            "flow_id": flow_id,
            "run_id": run.info.run_id,
            "rpc_name": name,
            "input": orjson.Fragment(payload),
            "attributes": orjson.Fragment(json_object(run.attributes)),
            "method_timeout_ms": timeout_ms,
            "heartbeat_timeout_ms": 0,
        }
        return RpcTask(
            rpc_id=rpc_id,
            namespace=namespace,
            flow_type=run.info.flow_type,
            flow_id=flow_id,
            run_id=run.info.run_id,
            name=name,
            last_worker=run.state.last_worker,
            body=orjson.dumps(body),
            locks=wanted,
            request=request,
        )

    def _new_rpc_id(self) -> str:
        return f"{self._random.getrandbits(80):020x}"

    async def _lock(self, run_id: str, rpc_id: str, locks: tuple[str, ...], timeout_ms: int) -> FlowRun:
        seen: list[View] = []

        def decide(view: View, now_ms: int) -> Changes:
            seen.append(view)
            deadline_ms = now_ms + timeout_ms + LOCK_GRACE_MS
            return machine.begin_rpc(view, rpc_id, locks, deadline_ms, now_ms, self._limits)

        await self.decide(Job(run_id, decide))
        return seen[-1].run

    async def apply_rpc(
        self, rpc: RpcTask, worker_id: str, output: bytes | dict[str, Any] | None
    ) -> dict[str, Any]:
        """Do what the handler decided; its result as ``{"result": ...}``.

        Raises Refused: invalid_output 422; flow_closed, flow_closing, rpc_lock_conflict 409 and
        rpc_timed_out 504, when it came too late, so the handler ran for nothing.
        """
        request = rpc.request
        try:
            found = read_output(RpcOutput, output)
        except Refused:
            await self.end_rpc(rpc)
            raise
        result = {"result": orjson.Fragment(bytes(found.result))}
        if rpc.locks or found.attributes or found.publish or found.next:

            def expect(tx: Transaction, _view: View) -> None:
                if request is not None:
                    request.keep(tx, answer_of(result))

            def decide(view: View, now_ms: int) -> Changes:
                return machine.apply_rpc(view, rpc.rpc_id, rpc.locks, found, worker_id, now_ms, self._limits)

            try:
                moot = "" if request is None else request.key
                done = await self.decide(Job(rpc.run_id, decide, expect, moot=moot))
            except Refused:
                await self.end_rpc(rpc)
                raise
            if done.changes is None:
                await self.end_rpc(rpc)
                raise Refused("rpc_timed_out", "The RPC took longer than its request id lasts.", status=504)
        elif request is not None:
            await self.keep_answer(request, answer_of(result))
        return result

    async def end_rpc(self, rpc: RpcTask) -> None:
        """The RPC came to nothing: its locks are free again."""
        if not rpc.locks:
            return

        def decide(view: View, now_ms: int) -> Changes:
            return machine.end_rpc(view, rpc.rpc_id, now_ms, self._limits)

        await self.decide(Job(rpc.run_id, decide))
