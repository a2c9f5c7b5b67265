"""Asks queries and takes their answers.

A query lives in the slot of its task queue (F5) for as long as its caller waits; it writes no
history. The asking node is told of the answer over its own channel, and reads the record when it is
told, when messages may have been lost, and once more when the caller's time is up.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec
import orjson
import structlog
import trio

from cluster.errors import Refused, StoreError
from cluster.queries.model import Answer, AnswerState, QueryTaskId, Question
from cluster.store.keys import encode
from cluster.store.store import Store
from cluster.times import iso_ms

log = structlog.get_logger(__name__)

LONGEST_WAIT_SECONDS: Final = 55.0
"""Clients give up after 60 s (sdk-wire 5.4), so an answer must be sent before."""
SETTLED_MS: Final = 60_000
"""How long a settled query is remembered, so that a late worker hears what became of it."""
SHORTEST_TTL_SECONDS: Final = 60
GIVE_UP_SECONDS: Final = 2.0
"""Longest time that a caller who is gone may hold up its own clean-up."""

_GUARD_TEXTS: Final = {
    "query_task_not_found": "The query task is not known.",
    "query_task_not_leased": "The query task is not leased.",
    "lease_owner_mismatch": "The query task is leased to another worker.",
    "query_task_attempt_mismatch": "The query task is leased under another attempt.",
    "lease_expired": "The lease of the query task has run out.",
}


class QueryBroker:
    """The asking side of one node. ``watch`` must have run before ``ask`` is called."""

    def __init__(self, store: Store, *, timeout: float, ttl_seconds: int, max_pending: int) -> None:
        self._store = store
        self._timeout = min(timeout, LONGEST_WAIT_SECONDS)
        self._ttl_ms = max(SHORTEST_TTL_SECONDS, ttl_seconds) * 1000
        self._max_pending = max_pending
        self._channel = store.keys.answer_channel(secrets.token_hex(8))
        self._waiting: dict[str, trio.Event] = {}

    async def watch(self) -> None:
        """Hear answers from now on."""
        self._store.on_message(self._channel, self._on_answer)
        self._store.on_reconnect(self._on_reconnect)
        await self._store.subscribe(self._channel)

    @property
    def waiting(self) -> int:
        """Callers that wait on this node."""
        return len(self._waiting)

    async def pending(self, namespace: str, queue: str) -> int:
        """Queries of a task queue that wait for a worker, about (late ones count until pruned)."""
        key = self._store.keys.pending_queries(namespace, queue)
        count: int = await self._store.call("ZCARD", key, idempotent=True)
        return count

    async def ask(self, question: Question) -> Answer:
        """Wait for a worker's answer.

        Raises Refused: 429 query_task_queue_full, 503 query_task_queue_unavailable.
        """
        task_id = QueryTaskId.draw(question.task_queue).key
        self._waiting[task_id] = trio.Event()
        settled = False
        try:
            await self._enqueue(question, task_id)
            deadline = trio.current_time() + self._timeout
            answer: Answer | None = None
            while answer is None:
                with trio.move_on_at(deadline):
                    await self._waiting[task_id].wait()
                self._waiting[task_id] = trio.Event()
                answer = await self._settle(question, task_id, last=trio.current_time() >= deadline)
            settled = True
            return answer
        except StoreError as error:
            log.warning("query_not_served", reason=error.reason)
            raise unavailable(question.namespace, question.task_queue) from error
        finally:
            del self._waiting[task_id]
            if not settled:
                await self._give_up(question, task_id)

    async def answer(self, namespace: str, task_id: str, owner: str, attempt: int, answer: Answer) -> None:
        """Take a worker's answer. Raises Refused: 404 or 409 with the reasons of section 7."""
        task = QueryTaskId.parse(task_id)
        if task is None:
            raise _guard_refusal(task_id, "query_task_not_found", b"")
        keys = self._store.keys
        verdict = await self._store.run(
            "query_answer",
            [keys.pending_queries(namespace, task.queue)],
            [
                keys.queries(namespace, task.queue),
                task.key,
                owner,
                attempt,
                answer.state.value,
                orjson.dumps(answer.fields),
            ],
        )
        if not verdict[0]:
            raise _guard_refusal(task_id, verdict[1].decode(), verdict[2])

    # -- steps ------------------------------------------------------------------------------

    async def _enqueue(self, question: Question, task_id: str) -> None:
        keys = self._store.keys
        namespace, queue = question.namespace, question.task_queue
        accepted, *_ = await self._store.run(
            "query_ask",
            [keys.pending_queries(namespace, queue)],
            [
                keys.queries(namespace, queue),
                task_id,
                f"{encode(question.marker)}:{encode(question.body.workflow_type)}",
                int(self._timeout * 1000),
                self._max_pending,
                self._ttl_ms,
                msgspec.json.encode(question.body),
                self._channel,
                keys.query_channel(namespace, queue),
            ],
            idempotent=True,
        )
        if not accepted:
            raise Refused(
                "query_task_queue_full",
                "The task queue has as many waiting queries as it may have; try again later.",
                status=429,
                max_pending_per_queue=self._max_pending,
            )

    async def _settle(self, question: Question, task_id: str, *, last: bool) -> Answer | None:
        keys = self._store.keys
        namespace, queue = question.namespace, question.task_queue
        state, raw = await self._store.run(
            "query_settle",
            [keys.pending_queries(namespace, queue)],
            [keys.queries(namespace, queue), task_id, int(last), SETTLED_MS],
            idempotent=True,
        )
        if state in (b"p", b"l"):
            return None
        fields: dict[str, Any] = orjson.loads(raw) if raw else {}
        return Answer(AnswerState(state.decode()), fields)

    async def _give_up(self, question: Question, task_id: str) -> None:
        """Nobody waits for the answer any more; should this fail, the deadline does it."""
        with trio.move_on_after(GIVE_UP_SECONDS, shield=True):
            try:
                await self._settle(question, task_id, last=True)
            except StoreError as error:
                log.debug("query_left_to_deadline", reason=error.reason)

    # -- messages ---------------------------------------------------------------------------

    def _on_answer(self, _channel: str, message: bytes) -> None:
        event = self._waiting.get(message.decode())
        if event is not None:
            event.set()

    def _on_reconnect(self) -> None:
        for event in self._waiting.values():
            event.set()


def unavailable(namespace: str, queue: str) -> Refused:
    """503: the store could not be asked, so nobody knows what the queue holds."""
    return Refused(
        "query_task_queue_unavailable",
        "Query task queue is temporarily unavailable.",
        status=503,
        namespace=namespace,
        task_queue=queue,
    )


def _guard_refusal(task_id: str, reason: str, detail: bytes) -> Refused:
    """What a worker hears whose answer does not fit the query task's record."""
    fields: dict[str, Any] = {}
    match reason:
        case "lease_owner_mismatch":
            fields["lease_owner"] = detail.decode()
        case "query_task_attempt_mismatch":
            fields["current_attempt"] = int(detail)
        case "lease_expired":
            fields["lease_expires_at"] = iso_ms(int(detail))
    status = 404 if reason == "query_task_not_found" else 409
    return Refused(
        reason,
        _GUARD_TEXTS[reason],
        status=status,
        query_task_id=task_id,
        outcome="rejected",
        **fields,
    )
