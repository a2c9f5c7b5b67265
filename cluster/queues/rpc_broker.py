"""Finds a slot for an RPC, here or on another node; an RPC never queues (R60 to R65, rule F6).

The worker that served the flow last is preferred for up to ``matching.stickyWait`` if it is
connected. Then any worker of the flow type will do: a free slot here, else the other nodes are asked,
two at a time. A node that has fitting workers but no free slot keeps the wish and says yes when one is
free. A yes reserves the slot for a moment; only a grant starts the handler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec
import structlog
import trio

from cluster.errors import Refused, StoreError
from cluster.flows.rpcs import RpcAnswer, RpcTask
from cluster.ids import partition_of_run
from cluster.queues.rpc_messages import (
    AnyMessage,
    Ask,
    Grant,
    No,
    Refusal,
    Release,
    Result,
    Yes,
    decode,
    encode,
)
from cluster.queues.rpc_run import RpcEnd, RpcRun
from cluster.queues.rpc_search import Reservation, RpcNeed, Search
from cluster.queues.slot_groups import Given
from cluster.queues.slots import SlotMatcher
from cluster.store.store import Store

log = structlog.get_logger(__name__)

ASKED_AT_ONCE: Final = 2
SILENCE_SECONDS: Final = 0.5
"""A node that has not answered by then counts as not knowing."""
RESERVE_SECONDS: Final = 0.5
ASK_AGAIN_SECONDS: Final = 1.0
"""After that a node is asked again: a worker may have come."""
RETRY_SECONDS: Final = 0.25


class NodeRpcBroker:
    """One per node. ``nodes`` are the sessions of all live nodes."""

    def __init__(
        self,
        store: Store,
        matcher: SlotMatcher,
        *,
        session: Callable[[], str],
        nodes: Callable[[], Sequence[str]],
        dispatch_seconds: float,
        sticky_seconds: float,
        random: Random,
    ) -> None:
        self._store = store
        self._matcher = matcher
        self._session = session
        self._nodes = nodes
        self._dispatch_seconds = dispatch_seconds
        self._sticky_seconds = sticky_seconds
        self._random = random
        self._searches: dict[str, Search] = {}
        self._reservations: dict[tuple[str, str], Reservation] = {}
        self._nursery: trio.Nursery | None = None
        self._listening = ""
        self.calls = self.unavailable = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen to other nodes until cancelled."""
        self._store.on_message(self._store.keys.rpc_channel(""), self._heard)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await self._listen()
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def renewed(self, _session: str) -> None:
        """The node goes by a new session now."""
        if self._nursery is not None:
            self._nursery.start_soon(self._listen_anew)

    async def _listen_anew(self) -> None:
        """Until then other nodes count this one as silent, and ask elsewhere."""
        while True:
            try:
                await self._listen()
            except StoreError as error:
                log.warning("rpc_broker_subscription_refused", reason=error.reason, error=str(error))
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def _listen(self) -> None:
        session = self._session()
        if session != self._listening:
            await self._store.subscribe(self._store.keys.rpc_channel(session))
            self._listening = session

    # -- calls ------------------------------------------------------------------------------

    async def call(self, rpc: RpcTask, seconds: float) -> RpcAnswer:
        """The answer of a handler, within ``seconds``.

        Raises Refused: rpc_unavailable 503 (nobody took it in time), unknown_rpc 404, rpc_failed 422
        (the handler's own error), rpc_timed_out and rpc_worker_lost 504 (it may have run).
        """
        began = trio.current_time()
        need = RpcNeed(rpc.namespace, rpc.flow_type, rpc.name)
        search = Search(need, rpc.rpc_id, rpc.body)
        call = f"{self._session()}/{self.calls}"
        self.calls += 1
        self._searches[call] = search
        deadline = began + seconds
        dispatch_by = began + min(seconds, self._dispatch_seconds)
        try:
            sticky_nodes = await self._prefer(rpc, need, began)
            while True:
                await self._find(call, search, dispatch_by, sticky_nodes)
                with trio.move_on_at(deadline):
                    while search.end is None:
                        await _wait(search)
                match search.end:
                    case RpcEnd.COMPLETED:
                        return RpcAnswer(search.worker_id, search.payload or b"null")
                    case RpcEnd.FAILED:
                        raise _failed(rpc, search.payload)
                    case RpcEnd.UNSUPPORTED:
                        need.excluded.add(search.worker_id)
                        need.prefer_until = 0.0
                    case RpcEnd.LOST:
                        raise Refused(
                            "rpc_worker_lost", "The worker was lost while it ran the RPC.", status=504
                        )
                    case RpcEnd.RETURNED:
                        pass
                    case None:
                        raise Refused("rpc_timed_out", "The RPC did not end in time.", status=504)
                search.end = None
        finally:
            self._searches.pop(call, None)
            self._matcher.forget_rpc(search)
            for node in {*search.answers, *search.outstanding}:
                self._send(node, Release(call=call, node=self._session()))

    async def _prefer(self, rpc: RpcTask, need: RpcNeed, now: float) -> list[str]:
        """Nodes where the worker that served the flow last is connected; it is preferred if any."""
        if not rpc.last_worker:
            return []
        here = any(
            worker.worker_id == rpc.last_worker and need.fits(worker, skills)
            for worker, skills in self._matcher.registered()
        )
        key = self._store.keys.present(partition_of_run(rpc.run_id) or 0, rpc.namespace, rpc.last_worker)
        nodes: list[str] = []
        try:
            nodes = [name.decode() for name in await self._store.call("SMEMBERS", key, idempotent=True)]
        except StoreError as error:
            log.debug("presence_not_read", reason=error.reason)
        if here or nodes:
            need.prefer, need.prefer_until = rpc.last_worker, now + self._sticky_seconds
        return [node for node in nodes if node != self._session()]

    async def _find(self, call: str, search: Search, until: float, sticky_nodes: list[str]) -> None:
        """Return once the RPC runs or has run. Raises Refused (rpc_unavailable, unknown_rpc)."""
        need = search.need
        search.answers.clear()
        search.outstanding.clear()
        if self._matcher.take_for_rpc(search):
            return
        self._matcher.wait_for_rpc(search)
        asked: dict[str, float] = {}
        while not search.running and search.end is None:
            now = trio.current_time()
            if now >= until:
                self.unavailable += 1
                raise Refused("rpc_unavailable", "No worker took the RPC in time.", status=503)
            sticky = now < need.prefer_until
            if not sticky and need.prefer:
                # The time for the preferred worker is over: start again with everybody.
                need.prefer = ""
                asked.clear()
                search.answers.clear()
                if self._matcher.take_for_rpc(search):
                    break
            nodes = sticky_nodes if sticky else [n for n in self._nodes() if n != self._session()]
            self._ask_some(call, search, nodes, asked, until - now)
            if not sticky and self._nobody_knows(search, nodes):
                raise Refused("unknown_rpc", f"No worker knows the RPC {need.name}.", status=404)
            wake_at = min(
                until,
                need.prefer_until if sticky else math.inf,
                now + ASK_AGAIN_SECONDS,
                *search.outstanding.values(),
            )
            with trio.move_on_at(wake_at):
                await _wait(search)
        self._matcher.forget_rpc(search)

    def _ask_some(
        self, call: str, search: Search, nodes: Sequence[str], asked: dict[str, float], seconds: float
    ) -> None:
        now = trio.current_time()
        silent = [node for node, by in search.outstanding.items() if by <= now]
        for node in silent:
            del search.outstanding[node]
        again = [
            node
            for node in nodes
            if node not in search.outstanding
            and search.answers.get(node) is not Refusal.BUSY
            and asked.get(node, -math.inf) + ASK_AGAIN_SECONDS <= now
        ]
        self._random.shuffle(again)
        need = search.need
        for node in again[: max(0, ASKED_AT_ONCE - len(search.outstanding))]:
            asked[node] = now
            search.outstanding[node] = now + SILENCE_SECONDS
            self._send(
                node,
                Ask(
                    call=call,
                    node=self._session(),
                    namespace=need.namespace,
                    flow_type=need.flow_type,
                    name=need.name,
                    prefer=need.prefer if now < need.prefer_until else "",
                    excluded=sorted(need.excluded),
                    wait_ms=int(seconds * 1000),
                ),
            )

    def _nobody_knows(self, search: Search, nodes: Sequence[str]) -> bool:
        """Whether every connected worker of the flow type is known not to have the RPC (A2)."""
        here = self._answer_for(search.need)
        answers = [search.answers.get(node) for node in nodes]
        if here is Refusal.BUSY or None in answers or Refusal.BUSY in answers:
            return False
        return here is Refusal.UNKNOWN or Refusal.UNKNOWN in answers

    def _answer_for(self, need: RpcNeed) -> Refusal:
        """What this node would say when it has no free slot."""
        served = False
        for worker, skills in self._matcher.registered():
            if need.fits(worker, skills):
                return Refusal.BUSY
            served = served or need.serves(worker, skills)
        return Refusal.UNKNOWN if served else Refusal.NOBODY

    # -- other nodes ------------------------------------------------------------------------

    def _heard(self, _channel: str, data: bytes) -> None:
        try:
            message = decode(data)
        except msgspec.DecodeError:
            log.warning("rpc_message_not_read")
            return
        match message:
            case Ask():
                self._asked(message)
            case Grant():
                self._granted(message)
            case Release():
                self._release(message.node, message.call)
            case Yes():
                self._said_yes(message)
            case No():
                search = self._searches.get(message.call)
                if search is not None:
                    search.outstanding.pop(message.node, None)
                    search.answers[message.node] = message.why
                    search.ring()
            case Result():
                search = self._searches.get(message.call)
                if search is not None and search.granted_to == message.node:
                    search.worker_id = message.worker_id
                    payload = bytes(message.payload)
                    search.ended(message.end, None if payload == b"null" else payload)

    def _said_yes(self, message: Yes) -> None:
        search = self._searches.get(message.call)
        if search is None or search.running or search.granted_to or search.end is not None:
            self._send(message.node, Release(call=message.call, node=self._session()))
            return
        search.outstanding.pop(message.node, None)
        search.answers.pop(message.node, None)
        search.granted_to, search.running = message.node, True
        self._send(
            message.node,
            Grant(
                call=message.call,
                node=self._session(),
                rpc_id=search.rpc_id,
                body=msgspec.Raw(search.body),
            ),
        )
        search.ring()

    def _asked(self, ask: Ask) -> None:
        now = trio.current_time()
        self._release(ask.node, ask.call)
        until = now + ask.wait_ms / 1000
        need = RpcNeed(ask.namespace, ask.flow_type, ask.name, set(ask.excluded), ask.prefer)
        need.prefer_until = until if ask.prefer else 0.0
        reservation = Reservation(need, ask.call, ask.node, until, self._reserved)
        self._reservations[ask.node, ask.call] = reservation
        if self._matcher.take_for_rpc(reservation):
            return
        why = self._answer_for(need)
        if why is Refusal.BUSY:
            self._matcher.wait_for_rpc(reservation)
            self._later(ask.wait_ms / 1000, self._give_up, reservation)
        else:
            del self._reservations[ask.node, ask.call]
        self._send(ask.node, No(call=ask.call, node=self._session(), why=why))

    def _reserved(self, reservation: Reservation) -> None:
        self._send(reservation.origin, Yes(call=reservation.call, node=self._session()))
        self._later(RESERVE_SECONDS, self._give_up, reservation)

    def _give_up(self, reservation: Reservation) -> None:
        if self._reservations.get((reservation.origin, reservation.call)) is reservation:
            self._release(reservation.origin, reservation.call)

    def _release(self, origin: str, call: str) -> None:
        reservation = self._reservations.pop((origin, call), None)
        if reservation is not None:
            self._matcher.forget_rpc(reservation)
            if reservation.slot is not None:
                self._matcher.free(reservation.slot)

    def _granted(self, grant: Grant) -> None:
        reservation = self._reservations.pop((grant.node, grant.call), None)
        if reservation is None or reservation.slot is None:
            self._tell_result(grant, "", RpcEnd.RETURNED, None)
            return
        slot = reservation.slot

        def ended(end: RpcEnd, payload: bytes | None) -> None:
            self._tell_result(grant, slot.worker.worker_id, end, payload)

        need = reservation.need
        run = RpcRun(grant.rpc_id, need.flow_type, need.name, bytes(grant.body), ended)
        given = slot.give_rpc(run)
        if given is not Given.TAKEN:
            ended(RpcEnd.RETURNED, None)
        if given is Given.UNFIT:
            self._matcher.free(slot)

    def _tell_result(self, grant: Grant, worker_id: str, end: RpcEnd, payload: bytes | None) -> None:
        raw = msgspec.Raw(payload or b"null")
        self._send(
            grant.node,
            Result(call=grant.call, node=self._session(), worker_id=worker_id, end=end, payload=raw),
        )

    # -- background -------------------------------------------------------------------------

    def _send(self, node: str, message: AnyMessage) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._publish, node, encode(message))

    async def _publish(self, node: str, data: bytes) -> None:
        try:
            await self._store.call("PUBLISH", self._store.keys.rpc_channel(node), data, idempotent=True)
        except StoreError as error:
            log.debug("rpc_message_not_sent", reason=error.reason)

    def _later(self, seconds: float, act: Callable[[Reservation], None], subject: Reservation) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            act(subject)

        if self._nursery is not None:
            self._nursery.start_soon(wait)


async def _wait(search: Search) -> None:
    await search.changed.wait()
    search.changed = trio.Event()


def _failed(rpc: RpcTask, payload: bytes | None) -> Refused:
    try:
        failure = msgspec.json.decode(payload or b"{}")
    except msgspec.DecodeError:
        failure = {}
    fields = failure if isinstance(failure, dict) else {}
    text = fields.get("message")
    message = text if isinstance(text, str) else f"The handler of {rpc.name} failed."
    return Refused("rpc_failed", message, status=422, failure=fields)
