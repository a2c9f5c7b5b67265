"""Long polls: idempotent by ``poll_request_id``, answered with whole tasks.

The lease token of a poll is derived from its request id, so a poll that is sent again, to this or
another node, finds the lease it may already hold (H1). A key ``poll:<token>`` remembers for a while
that the poll was sent; :mod:`cluster.queues.noting` says who writes it. Who sends it again has given up
the first answer: on the same node both wait for one result, on another node the newer poll takes over
and the older one ends empty. Should the older one be answered at that very moment, its node gives the
task back a little later, unless the newer poll has found that lease by then.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson
import structlog
import trio
from cachetools import TTLCache

from cluster.admission.gate import LOOK_AGAIN_SECONDS, Gate, Permit
from cluster.errors import StoreError
from cluster.ids import AttemptId, TaskKind, parse_task_id
from cluster.paging import page_token
from cluster.queues.claims import Claim
from cluster.queues.matcher import Matcher
from cluster.queues.model import ActivityTask, PollRequest, PollResult, PollStatus, Throttle, WorkflowTask
from cluster.queues.session_gate import SessionGate
from cluster.queues.waiters import QueueId, Waiter, poll_markers
from cluster.store.keys import decode
from cluster.store.store import Store
from cluster.times import iso_seconds
from cluster.worker_sessions import with_sessions
from cluster.workflows.kept_histories import replay_mode
from cluster.workflows.storage import RunCache, claimed_lease, decode_info, decode_state

log = structlog.get_logger(__name__)

SEEN_MS = 20_000
"""How long after its end a poll is still known to have been sent before."""
OVERTAKEN_SECONDS = 5.0
"""How long after an answer word of a newer poll may still be on its way."""
ANSWERS_KEPT = 8_192
LOOKS = 64
"""Tasks that one poll may meet without getting them, because they belong to others' sessions."""
GRACE_SECONDS = 0.5
"""How long a newer poll has to find what the older one was answered."""

LAST_LOOK_SECONDS = 2.0
"""How long a poll without a task may take to find out whether limits held tasks back."""


class _Shared:
    """A poll in flight on this node, for repetitions that arrive here too."""

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        self.done = trio.Event()
        self.result: PollResult | None = None


class Polls:
    """Answers polls of one node."""

    def __init__(
        self,
        store: Store,
        matcher: Matcher,
        runs: RunCache,
        gate: Gate,
        sessions: SessionGate,
        *,
        session: Callable[[], str],
        registration: Callable[[str, str], Awaitable[str | None]],
    ) -> None:
        """``registration`` names the registration that (namespace, worker id) has now."""
        self._store = store
        self._registration = registration
        self._sessions = sessions
        self._gate = gate
        self._matcher = matcher
        self._runs = runs
        self._session = session
        self._shared: dict[str, _Shared] = {}
        self._answered: TTLCache[str, tuple[Claim, str]] = TTLCache(ANSWERS_KEPT, OVERTAKEN_SECONDS)

    @property
    def parked(self) -> int:
        """Polls waiting on this node."""
        return self._matcher.statistics().parked

    async def watch(self) -> None:
        """Hear from now on which polls were taken over by other nodes."""
        self._store.on_message(self._store.keys.changed_channel(), self._on_changed)
        await self._store.subscribe(self._store.keys.changed_channel())

    def close(self) -> None:
        """End every parked poll as empty and take no more."""
        self._matcher.close()

    def undelivered(self, task: WorkflowTask | ActivityTask) -> None:
        """The worker had gone before the answer with this task was sent: give the task back soon.

        The same poll sent again gets the same task if it comes first, else another one.
        """
        if task.claim is not None:
            self._matcher.start_soon(self._matcher.give_back, task.claim, task.owner)

    async def poll(self, request: PollRequest) -> PollResult:
        """Wait for a task. Raises StoreError when Redis could not be asked."""
        if request.poll_request_id is None:
            alone = _Shared(await self._waiter(request, secrets.token_hex(16)))
            return await self._find(request, alone, request.timeout)
        token = poll_token(request)
        deadline = trio.current_time() + request.timeout
        while (shared := self._shared.get(token)) is not None:
            with trio.move_on_at(deadline) as waited:
                await shared.done.wait()
            if shared.result is not None or waited.cancelled_caught:
                return shared.result or PollResult(PollStatus.EMPTY)
        shared = self._shared[token] = _Shared(_waiter(request, token))
        shared.waiter.note_ms = int(request.timeout * 1000) + SEEN_MS
        try:
            shared.waiter.markers = await self._markers(request)
            remaining = deadline - trio.current_time() if request.timeout > 0 else 0
            shared.result = await self._find(request, shared, remaining)
            return shared.result
        finally:
            if shared.result is not None and shared.waiter.claim is not None:
                self._answered[token] = replace(shared.waiter.claim, extra=[]), shared.waiter.owner
            del self._shared[token]
            shared.done.set()

    def _on_changed(self, _channel: str, message: bytes) -> None:
        family, _, rest = message.decode().partition(" ")
        if family == "worker":
            namespace, worker_id = map(decode, rest.split(" "))
            if self._matcher.parked_polls(namespace, worker_id):
                self._matcher.start_soon(self._end_abandoned, namespace, worker_id)
            return
        if family == "holds":
            namespace, worker_id = map(decode, rest.split(" "))
            if self._matcher.waits(namespace, worker_id):
                self._matcher.start_soon(self._look_further, namespace, worker_id)
        if family != "poll":
            return
        token, _, session = rest.partition(" ")
        if session == self._session():
            return
        answer: tuple[Claim, str] | None = self._answered.pop(token, None)
        shared = self._shared.get(token)
        if shared is not None:
            waiter = shared.waiter
            waiter.done.set()
            answer = None if waiter.claim is None else (waiter.claim, waiter.owner)
        if answer is not None:
            self._matcher.start_soon(self._give_back_later, *answer)

    async def _end_abandoned(self, namespace: str, worker_id: str) -> None:
        """A worker left or began anew: nobody waits for the answers to its earlier polls."""
        try:
            current = await self._registration(namespace, worker_id)
        except StoreError as error:
            log.warning("departure_not_checked", worker_id=worker_id, reason=error.reason)
            return
        for waiter in self._matcher.parked_polls(namespace, worker_id):
            if waiter.registration != current:
                waiter.done.set()

    async def _give_back_later(self, claim: Claim, owner: str) -> None:
        """The newer poll found this lease, and then it is out of reach, or it looked too early."""
        await trio.sleep(GRACE_SECONDS)
        await self._matcher.give_back(claim, owner)

    async def _find(self, request: PollRequest, shared: _Shared, seconds: float) -> PollResult:
        deadline = trio.current_time() + seconds
        for _ in range(LOOKS):
            left = max(deadline - trio.current_time(), 0) if seconds > 0 else seconds
            if seconds > 0 and left == 0:
                break
            claim = await self._claim(request, shared.waiter, left)
            if isinstance(claim, PollResult):
                return claim
            if request.kind is TaskKind.WORKFLOW:
                return PollResult(PollStatus.LEASED, self._workflow_task(claim, request))
            body = orjson.loads(claim.extra[0])
            task = self._activity_task(claim, request, body)
            if "worker_session" not in body or await self._admitted(request, claim, task, body):
                return PollResult(PollStatus.LEASED, task)
            shared.waiter = await self._waiter(request, shared.waiter.token)
        return PollResult(PollStatus.EMPTY)

    async def _claim(self, request: PollRequest, waiter: Waiter, seconds: float) -> Claim | PollResult:
        try:
            claim = await self._matcher.wait(waiter, seconds)
        except StoreError:
            if not self._gate.limited(request.namespace, request.kind, request.queue):
                raise
            # What limits a queue must be asked for; not knowing is not the same as "empty" (D10).
            return PollResult(PollStatus.UNAVAILABLE)
        return await self._without_task(request) if claim is None else claim

    async def _admitted(
        self, request: PollRequest, claim: Claim, task: ActivityTask, body: dict[str, Any]
    ) -> bool:
        """Whether the worker may have a task of a session; a task that could not be asked for goes back."""
        handed_out = False
        wire = body["worker_session"]
        try:
            handed_out = await self._sessions.admit(
                request.namespace, claim, task, wire, request.most_sessions
            )
        except BaseException:
            self._matcher.start_soon(self._matcher.give_back, claim, request.worker_id)
            raise
        finally:
            if not handed_out:
                self._runs.forget_lease(claim.task_id)
        return handed_out

    async def _waiter(self, request: PollRequest, token: str) -> Waiter:
        waiter = _waiter(request, token)
        waiter.markers = await self._markers(request)
        return waiter

    async def _markers(self, request: PollRequest) -> tuple[str, ...]:
        """Markers a poll looks behind: its build's, and those of the sessions that its worker holds."""
        markers = poll_markers(request.marker)
        if request.kind is TaskKind.WORKFLOW:
            return markers
        return with_sessions(
            markers, await self._sessions.sessions.held(request.namespace, request.worker_id)
        )

    async def _look_further(self, namespace: str, worker_id: str) -> None:
        """Polls that wait already shall look for tasks of the sessions that their worker now holds."""
        try:
            held = await self._sessions.sessions.held(namespace, worker_id)
            await self._matcher.look_behind(namespace, worker_id, held)
        except StoreError as error:
            log.warning("session_not_announced", worker_id=worker_id, reason=error.reason)

    async def _without_task(self, request: PollRequest) -> PollResult:
        """Limits come first: a queue that is used up says so even when nothing is ready (D11)."""
        name = request.namespace, request.kind, request.queue
        if self._matcher.closed or not self._gate.limited(*name):
            return PollResult(PollStatus.EMPTY)
        try:
            with trio.fail_after(LAST_LOOK_SECONDS):
                permit = await self._gate.ask(*name, 0)
        except (StoreError, trio.TooSlowError):
            return PollResult(PollStatus.UNAVAILABLE)
        throttle = throttle_of(permit)
        return PollResult(PollStatus.THROTTLED if throttle else PollStatus.EMPTY, throttle=throttle)

    def _workflow_task(self, claim: Claim, request: PollRequest) -> WorkflowTask:
        version, info, state, length, events = claim.extra
        run_info, run_state = decode_info(info), decode_state(state)
        lease = claimed_lease(claim, request.worker_id, request.registration)
        self._runs.learn_claim(claim, lease, run_info, run_state, int(version))
        return WorkflowTask(
            task_id=claim.task_id,
            info=run_info,
            state=run_state,
            attempt=claim.attempt,
            owner=request.worker_id,
            lease_expires_at_ms=claim.expires_at_ms,
            events=events[: request.page_size],
            next_page_token=page_token(min(len(events), request.page_size), length),
            replay_mode=replay_mode(run_state, request.registration, request.page_size, claim.leased_at_ms),
            claim=replace(claim, extra=[]),
        )

    def _activity_task(self, claim: Claim, request: PollRequest, known: dict[str, Any]) -> ActivityTask:
        task = parse_task_id(claim.task_id)
        if task is None:
            raise StoreError(f"malformed task id in the store: {claim.task_id!r}")
        self._runs.learn_activity_claim(claim, request.worker_id)
        body = dict(known)
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
            claim=replace(claim, extra=[]),
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


def throttle_of(permit: Permit) -> Throttle | None:
    """What holds a queue back, as :meth:`Gate.ask` for nothing found it; None when nothing does."""
    if permit.free:
        return None
    if permit.standing is None or permit.limits is None:
        return Throttle(None, retry_after=LOOK_AGAIN_SECONDS)
    name = permit.standing.refused
    if name is None:
        return None
    return Throttle(name, permit.limits[name], permit.standing.count(name), permit.retry_after)


def _waiter(request: PollRequest, token: str) -> Waiter:
    return Waiter(
        queue=QueueId(request.kind, request.namespace, request.queue),
        owner=request.worker_id,
        token=token,
        registration=request.registration,
        types=request.types,
        markers=poll_markers(request.marker),
        page_size=request.page_size,
    )


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
