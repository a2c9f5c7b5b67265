"""Parked polls for queries.

A queue with parked polls is subscribed; each query that gets in line there wakes one claim for
all of them. Nothing is asked while nothing happens: a claim is sent when a poll parks, when a query
gets in line, and when messages may have been lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgpack
import msgspec
import structlog
import trio

from cluster.errors import StoreError, StoreUnavailable
from cluster.queries.model import QueryClaim, QueryPoll, QueryTaskId, QuestionBody
from cluster.queues.model import PollRequest
from cluster.queues.polls import poll_token
from cluster.queues.waiters import poll_markers
from cluster.store.keys import decode, encode
from cluster.store.store import Store

log = structlog.get_logger(__name__)

CLAIM_LIMIT: Final = 32
"""Most polls served by one script (H6)."""
RETRY_SECONDS: Final = 0.25
"""Pause after a claim that the store could not answer."""
RETURN_SECONDS: Final = 2.0
KEEP_LINE_SECONDS: Final = 30.0
"""How long a queue stays subscribed after its last poll."""
QUERY: Final = "q"
"""Stands for the kind in a poll's token, so that no other poll of the worker has the same."""


@dataclass(slots=True, eq=False)
class _Waiter:
    poll: QueryPoll
    token: str
    done: trio.Event = field(default_factory=trio.Event)
    claim: QueryClaim | None = None
    trouble: StoreError | None = None


@dataclass(slots=True)
class _Line:
    """The polls parked on one task queue, in order of arrival."""

    waiters: dict[str, _Waiter] = field(default_factory=dict)
    subscribed: bool = False
    subscribing: trio.Lock = field(default_factory=trio.Lock)
    serving: bool = False
    again: bool = False
    idle_since: float = 0.0


class QueryPolls:
    """One per node. ``run`` must be running before ``poll`` is called.

    ``may_act`` says whether this node may hand out (E3).
    """

    def __init__(self, store: Store, *, lease_ms: int, may_act: Callable[[], bool]) -> None:
        self._store = store
        self._lease_ms = lease_ms
        self._may_act = may_act
        self._lines: dict[tuple[str, str], _Line] = {}
        self._nursery: trio.Nursery | None = None
        self._closed = False
        self._prefix = f"{store.keys.prefix}:query:"

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the claims in flight until cancelled."""
        self._store.on_message(self._prefix, self._on_query)
        self._store.on_reconnect(self._on_reconnect)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(KEEP_LINE_SECONDS)
                    await self._forget_idle()
            finally:
                self._nursery = None

    def close(self) -> None:
        """End every parked poll as empty and take no more."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line.waiters.values():
                waiter.done.set()

    @property
    def parked(self) -> int:
        return sum(len(line.waiters) for line in self._lines.values())

    async def poll(self, poll: QueryPoll) -> QueryClaim | None:
        """Wait for a query; None when there was none in time.

        Raises StoreError when the time is up and the store could not be asked last.
        """
        if self._closed or self._nursery is None:
            return None
        name = (poll.namespace, poll.queue)
        waiter = _Waiter(poll, _token(poll))
        line = self._lines.setdefault(name, _Line())
        earlier = line.waiters.pop(waiter.token, None)
        if earlier is not None:
            earlier.done.set()  # the worker sent the poll again: it no longer reads that answer
        line.waiters[waiter.token] = waiter
        try:
            if poll.timeout <= 0:
                self._nursery.start_soon(self._probe, name, line, waiter)
                await waiter.done.wait()
            else:
                with trio.move_on_after(poll.timeout):
                    await self._subscribe(name, line)
                    self._kick(name, line)
                    await waiter.done.wait()
        except trio.Cancelled:
            self._give_back_soon(name, line, waiter)
            raise
        except StoreError as error:
            waiter.trouble = error
        finally:
            if line.waiters.get(waiter.token) is waiter:
                del line.waiters[waiter.token]
            line.idle_since = trio.current_time()
        if waiter.claim is None and waiter.trouble is not None:
            raise waiter.trouble
        return waiter.claim

    async def give_back(self, namespace: str, queue: str, claim: QueryClaim) -> None:
        """Return a query that reached no worker to its place in line."""
        await self._give_back((namespace, queue), claim)

    def hand_back(self, poll: QueryPoll, claim: QueryClaim) -> None:
        """A query that was handed out reached no worker: let others have it, in the background."""
        if self._nursery is not None:
            self._nursery.start_soon(self._give_back, (poll.namespace, poll.queue), claim)

    async def _subscribe(self, name: tuple[str, str], line: _Line) -> None:
        async with line.subscribing:
            if not line.subscribed:
                await self._store.subscribe(self._store.keys.query_channel(*name))
                line.subscribed = True

    async def _forget_idle(self) -> None:
        deadline = trio.current_time() - KEEP_LINE_SECONDS
        for name, line in list(self._lines.items()):
            if not line.waiters and not line.serving and line.idle_since <= deadline:
                del self._lines[name]
                if line.subscribed:
                    await self._store.unsubscribe(self._store.keys.query_channel(*name))

    # -- wakes ------------------------------------------------------------------------------

    def _on_query(self, channel: str, _message: bytes) -> None:
        namespace, _, queue = channel.removeprefix(self._prefix).partition(":")
        name = (decode(namespace), decode(queue))
        line = self._lines.get(name)
        if line is not None:
            self._kick(name, line)

    def _on_reconnect(self) -> None:
        for name, line in self._lines.items():
            self._kick(name, line)

    def _kick(self, name: tuple[str, str], line: _Line) -> None:
        line.again = True
        if not line.serving and self._nursery is not None:
            line.serving = True
            self._nursery.start_soon(self._serve, name, line)

    async def _serve(self, name: tuple[str, str], line: _Line) -> None:
        try:
            while line.again:
                line.again = False
                waiters = [waiter for waiter in line.waiters.values() if not waiter.done.is_set()]
                for start in range(0, len(waiters), CLAIM_LIMIT):
                    await self._serve_some(name, line, waiters[start : start + CLAIM_LIMIT])
        finally:
            line.serving = False

    async def _serve_some(self, name: tuple[str, str], line: _Line, waiters: list[_Waiter]) -> None:
        try:
            await self._claim(name, line, waiters)
        except StoreError as error:
            for waiter in waiters:
                waiter.trouble = error
            line.again = bool(line.waiters)
            await trio.sleep(RETRY_SECONDS)

    async def _probe(self, name: tuple[str, str], line: _Line, waiter: _Waiter) -> None:
        try:
            await self._claim(name, line, [waiter])
        except StoreError as error:
            waiter.trouble = error
        finally:
            waiter.done.set()

    # -- claims -----------------------------------------------------------------------------

    async def _claim(self, name: tuple[str, str], line: _Line, waiters: list[_Waiter]) -> None:
        if not self._may_act():
            raise StoreUnavailable("this node has lost touch with its store and hands nothing out")
        keys = self._store.keys
        rows = [
            [
                waiter.poll.worker_id,
                waiter.token,
                [encode(marker) for marker in poll_markers(waiter.poll.marker)],
                [encode(workflow_type) for workflow_type in waiter.poll.types],
            ]
            for waiter in waiters
        ]
        # A claim that was executed unheard is found again by its token, so it may be repeated.
        reply = await self._store.run(
            "query_claim",
            [keys.pending_queries(*name)],
            [keys.queries(*name), self._lease_ms, msgpack.packb(rows, use_bin_type=False)],
            idempotent=True,
        )
        for waiter in waiters:
            waiter.trouble = None
        for start in range(0, len(reply), 5):
            index, task_id, attempt, expires, raw = reply[start : start + 5]
            waiter = waiters[index]
            try:
                body = msgspec.json.decode(raw, type=QuestionBody)
            except msgspec.DecodeError:
                log.error("query_not_read", query_task=task_id.decode())
                continue
            waiter.claim = QueryClaim(
                query_task_id=str(QueryTaskId(task_id.decode(), name[1])),
                attempt=int(attempt),
                lease_expires_at_ms=int(expires),
                body=body,
                token=waiter.token,
            )
            if line.waiters.get(waiter.token) is not waiter or waiter.done.is_set():
                self._give_back_soon(name, line, waiter)
            waiter.done.set()

    def _give_back_soon(self, name: tuple[str, str], line: _Line, waiter: _Waiter) -> None:
        claim, newer = waiter.claim, line.waiters.get(waiter.token)
        if claim is None or self._nursery is None or newer not in (None, waiter):
            return  # a newer poll under the same token is given this query
        waiter.claim = None
        self._nursery.start_soon(self._give_back, name, claim)

    async def _give_back(self, name: tuple[str, str], claim: QueryClaim) -> None:
        keys = self._store.keys
        task = QueryTaskId.parse(claim.query_task_id)
        with trio.move_on_after(RETURN_SECONDS):
            try:
                await self._store.run(
                    "query_return",
                    [keys.pending_queries(*name)],
                    [keys.queries(*name), task.key if task else "", claim.token, claim.attempt],
                    idempotent=True,
                )
            except StoreError as error:
                log.debug("query_left_to_deadline", reason=error.reason)


def _token(poll: QueryPoll) -> str:
    if poll.poll_request_id is None:
        return secrets.token_hex(16)
    request = PollRequest(
        kind=QUERY,  # type: ignore[arg-type]
        namespace=poll.namespace,
        queue=poll.queue,
        worker_id=poll.worker_id,
        marker=poll.marker,
        poll_request_id=poll.poll_request_id,
    )
    return poll_token(request)
