"""Routes of worker sessions (sdk-wire 2.10): take, renew, give up."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen

from cluster.errors import Refused, StoreError
from cluster.session_options import (
    LEASE_SECONDS,
    LONGEST_SECONDS,
    MOST_ACTIVITIES,
    TTL_SECONDS,
    SessionOptions,
)
from cluster.times import iso_ms
from cluster.worker_sessions import Standing, WorkerSession
from cluster.workers import Registration
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, OptionalText, ShortText
from nodes.api.routes import Reply

_Seconds = Annotated[Annotated[int, Ge(1), Le(LONGEST_SECONDS)] | None, Integer]
_Activities = Annotated[Annotated[int, Ge(1), Le(MOST_ACTIVITIES)] | None, Integer]
_Requirements = Annotated[list[ShortText] | None, MaxLen(64)]

_REFUSALS = {
    Standing.TAKEN: ("worker_session_held", "Another worker holds the session.", 409),
    Standing.LOST: (
        "worker_session_lost",
        "The worker that held the session fell silent, and the session may not be taken over.",
        409,
    ),
    Standing.MISSING: ("worker_session_not_found", "There is no such worker session.", 404),
    Standing.CROWDED: (
        "worker_session_limit_reached",
        "The worker holds as many sessions as it may.",
        409,
    ),
}


class _Create(Fields):
    worker_id: ShortText
    session_id: ShortText
    queue: OptionalText = None
    requirements: _Requirements = None
    lease_seconds: _Seconds = None
    ttl_seconds: _Seconds = None
    max_concurrent_activities: _Activities = None
    create_if_missing: bool | None = None
    allow_reacquire_after_failure: bool | None = None


class _Heartbeat(Fields):
    worker_id: ShortText
    lease_seconds: _Seconds = None


class _Close(Fields):
    worker_id: ShortText
    reason: OptionalText = None


async def create(call: Call) -> Reply:
    """``POST /api/worker/sessions``: hold a session; again by its holder renews it."""
    body = call.fields(_Create)
    worker = await _worker(call, body.worker_id)
    if body.queue is not None and body.queue != worker.task_queue:
        raise Refused(
            "task_queue_mismatch",
            "Worker is registered for another task queue.",
            worker_id=body.worker_id,
            registered_task_queue=worker.task_queue,
            requested_task_queue=body.queue,
        )
    options = SessionOptions(
        session_id=body.session_id,
        requirements=tuple(body.requirements or ()),
        lease_seconds=body.lease_seconds or LEASE_SECONDS,
        ttl_seconds=body.ttl_seconds or TTL_SECONDS,
        max_concurrent_activities=body.max_concurrent_activities or 1,
        create_if_missing=body.create_if_missing is not False,
        allow_reacquire_after_failure=body.allow_reacquire_after_failure is not False,
        queue=body.queue,
    )
    sessions = call.node.sessions
    found = await sessions.take(
        call.namespace, body.worker_id, options, most=worker.max_concurrent_worker_sessions
    )
    _check(found, Standing.HELD, body.session_id, body.worker_id)
    await _release(call, worker, found, body.session_id)
    return Reply(_show(found, body.session_id, "active"), 201 if found.new else 200)


async def heartbeat(call: Call) -> Reply:
    """``POST /api/worker/sessions/{session_id}/heartbeat``."""
    body = call.fields(_Heartbeat)
    session_id = call.parameters["session_id"]
    await _worker(call, body.worker_id)
    found = await call.node.sessions.renew(
        call.namespace, session_id, body.worker_id, body.lease_seconds or LEASE_SECONDS
    )
    _check(found, Standing.HELD, session_id, body.worker_id)
    return Reply(_show(found, session_id, "active") | {"renewed": True})


async def close(call: Call) -> Reply:
    """``DELETE /api/worker/sessions/{session_id}``: doing it again gives the same answer."""
    body = call.fields(_Close)
    session_id = call.parameters["session_id"]
    found = await call.node.sessions.close(
        call.namespace, session_id, body.worker_id, body.reason or "closed"
    )
    _check(found, Standing.CLOSED, session_id, body.worker_id)
    worker = await call.node.workers.get(call.namespace, body.worker_id)
    if worker is not None:
        await _release(call, worker, found, session_id)
    return Reply(_show(found, session_id, "closed") | {"outcome": "closed", "reason": body.reason})


async def _worker(call: Call, worker_id: str) -> Registration:
    worker = await call.node.workers.get(call.namespace, worker_id)
    if worker is None:
        raise Refused("worker_not_registered", "Worker not registered.", status=404, worker_id=worker_id)
    return worker


async def _release(call: Call, worker: Registration, found: WorkerSession, session_id: str) -> None:
    """Tasks that wait are looked at now; if that cannot be done, they come back by themselves."""
    try:
        await call.node.sessions.release_all(call.namespace, worker.task_queue, found, session_id)
    except StoreError:
        return


def _check(found: WorkerSession, wanted: Standing, session_id: str, worker_id: str) -> None:
    if found.standing is wanted:
        return
    reason, message, status = _REFUSALS[found.standing]
    raise Refused(reason, message, status=status, session_id=session_id, worker_id=worker_id)


def _show(found: WorkerSession, session_id: str, status: str) -> dict[str, Any]:
    shown = {
        **found.options,
        "session_id": session_id,
        "worker_id": found.worker_id,
        "lease_owner": found.worker_id,
        "status": status,
        "created_at": iso_ms(found.since_ms),
        "lease_expires_at": iso_ms(found.lease_expires_at_ms),
        "ttl_expires_at": iso_ms(found.ttl_expires_at_ms),
    }
    return {**shown, "worker_session": shown}
