"""Long polls: idempotent by ``poll_request_id``, answered with whole tasks.

The lease token of a poll is derived from its request id, so a poll that is sent again, to this or
another node, finds the lease it may already hold (H1). A record ``poll:<digest>`` says who
serves the poll until when; whoever comes second waits for the first instead of taking a second
task. An empty result is not stored: the record simply expires.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import orjson
import trio

from cluster.clock import Clock
from cluster.errors import StoreError
from cluster.ids import AttemptId, TaskKind, parse_task_id
from cluster.paging import page_token
from cluster.queues.claims import Claim
from cluster.queues.matcher import Matcher, QueueId, Waiter, poll_markers
from cluster.queues.model import ActivityTask, PollRequest, PollResult, PollStatus, WorkflowTask
from cluster.store.store import Store
from cluster.times import iso_seconds
from cluster.workflows.storage import RunCache, decode_info, decode_state

FOLLOW_SECONDS = 0.05
"""How often a repeated poll looks whether the first one, on another node, found something."""
RECORD_GRACE_MS = 5_000


class _Shared:
    """A poll in flight on this node, for repetitions that arrive here too."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: PollResult | None = None


class Polls:
    """Answers polls of one node."""

    def __init__(
        self,
        store: Store,
        matcher: Matcher,
        clock: Clock,
        runs: RunCache,
        *,
        session: Callable[[], str],
        is_live: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._matcher = matcher
        self._clock = clock
        self._runs = runs
        self._session = session
        self._is_live = is_live
        self._shared: dict[str, _Shared] = {}

    @property
    def parked(self) -> int:
        return self._matcher.statistics().parked

    def close(self) -> None:
        """End every parked poll as empty and take no more."""
        self._matcher.close()

    async def poll(self, request: PollRequest) -> PollResult:
        """Wait for a task. Raises StoreError when Redis could not be asked."""
        if request.poll_request_id is None:
            return await self._find(request, secrets.token_hex(16), repeated=False)
        token = poll_token(request)
        deadline = trio.current_time() + request.timeout
        shared = self._shared.get(token)
        if shared is not None:
            with trio.move_on_at(deadline):
                await shared.done.wait()
            return shared.result or PollResult(PollStatus.EMPTY)
        shared = self._shared[token] = _Shared()
        try:
            shared.result = await self._lead_or_follow(request, token, deadline)
            return shared.result
        finally:
            del self._shared[token]
            shared.done.set()

    async def _lead_or_follow(self, request: PollRequest, token: str, deadline: float) -> PollResult:
        key = self._store.keys.poll(token)
        ttl_ms = int(request.timeout * 1000) + RECORD_GRACE_MS
        record = f"{self._session()} {self._clock.now_ms() + int(request.timeout * 1000)}"
        first = await self._store.call("SET", key, record, "NX", "PX", ttl_ms, idempotent=True)
        if first is None:
            await self._follow(key, deadline)
        remaining = max(0.0, deadline - trio.current_time()) if first is None else request.timeout
        try:
            result = await self._find(request, token, repeated=first is None, timeout=remaining)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await self._forget(key)
            raise
        if result.task is not None:
            self._matcher.start_soon(self._forget, key)
        return result

    async def _follow(self, key: str, deadline: float) -> None:
        """Wait until the node that serves this poll is done with it, dead or late."""
        while trio.current_time() < deadline:
            record = await self._store.call("GET", key, idempotent=True)
            if record is None:
                return
            session, _, until = record.decode().rpartition(" ")
            if session == self._session() or not self._is_live(session) or int(until) <= self._clock.now_ms():
                return
            await trio.sleep(FOLLOW_SECONDS)

    async def _forget(self, key: str) -> None:
        try:
            await self._store.call("DEL", key, idempotent=True)
        except StoreError:
            # The record expires by itself a few seconds after the poll would have ended.
            return

    async def _find(
        self, request: PollRequest, token: str, *, repeated: bool, timeout: float | None = None
    ) -> PollResult:
        waiter = Waiter(
            queue=QueueId(request.kind, request.namespace, request.queue),
            owner=request.worker_id,
            token=token,
            types=request.types,
            markers=poll_markers(request.marker),
            page_size=request.page_size,
            repeated=repeated,
        )
        claim = await self._matcher.wait(waiter, request.timeout if timeout is None else timeout)
        if claim is None:
            return PollResult(PollStatus.EMPTY)
        if request.kind is TaskKind.WORKFLOW:
            return PollResult(PollStatus.LEASED, self._workflow_task(claim, request))
        return PollResult(PollStatus.LEASED, self._activity_task(claim, request))

    def _workflow_task(self, claim: Claim, request: PollRequest) -> WorkflowTask:
        version, info, state, length, events = claim.extra
        run_info, run_state = decode_info(info), decode_state(state)
        self._runs.learn_claim(claim, request.worker_id, run_info, run_state, int(version))
        return WorkflowTask(
            task_id=claim.task_id,
            info=run_info,
            state=run_state,
            attempt=claim.attempt,
            owner=request.worker_id,
            lease_expires_at_ms=claim.expires_at_ms,
            events=events[: request.page_size],
            next_page_token=page_token(min(len(events), request.page_size), length),
        )

    def _activity_task(self, claim: Claim, request: PollRequest) -> ActivityTask:
        task = parse_task_id(claim.task_id)
        if task is None:
            raise StoreError(f"malformed task id in the store: {claim.task_id!r}")
        self._runs.learn_activity_claim(claim, request.worker_id)
        body: dict[str, Any] = orjson.loads(claim.extra[0])
        deadlines = _deadlines(body.pop("timeouts", {}), claim.leased_at_ms)
        if deadlines:
            body["deadlines"] = deadlines
        return ActivityTask(
            task_id=claim.task_id,
            attempt_id=str(AttemptId(task, claim.attempt, claim.delivery)),
            attempt=claim.attempt,
            owner=request.worker_id,
            queue=request.queue,
            leased_at_ms=claim.leased_at_ms,
            lease_expires_at_ms=claim.expires_at_ms,
            body=orjson.dumps(body),
        )


def _deadlines(timeouts: dict[str, int], leased_at_ms: int) -> dict[str, str]:
    """Deadlines of an attempt (server-behaviour 5.7) from seconds (relative) and ms (absolute)."""
    due_ms = {
        "schedule_to_start": timeouts.get("schedule_to_start_at_ms"),
        "start_to_close": _after(leased_at_ms, timeouts.get("start_to_close_seconds")),
        "schedule_to_close": timeouts.get("schedule_to_close_at_ms"),
        "heartbeat": _after(leased_at_ms, timeouts.get("heartbeat_seconds")),
    }
    return {name: iso_seconds(ms) for name, ms in due_ms.items() if ms is not None}


def _after(start_ms: int, seconds: int | None) -> int | None:
    return None if seconds is None else start_ms + seconds * 1000


def poll_token(request: PollRequest) -> str:
    """The lease token of an idempotent poll: same poll, same token, on every node."""
    parts = (
        request.kind,
        request.namespace,
        request.queue,
        request.marker,
        request.worker_id,
        request.poll_request_id or "",
    )
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part.encode())
    return digest.hexdigest()
