"""Lets activities that name a worker session through to its holder, and to nobody else.

A claim knows nothing of sessions: whoever claims such a task finds out here, before the task leaves
the node, whether he may have it. If not, it is set aside for the holder, or fails when the session
is lost. Tasks without a session cost nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from cluster.errors import ConditionFailed, Refused
from cluster.queues.claims import Claim
from cluster.queues.model import ActivityTask
from cluster.session_options import SessionOptions
from cluster.store.keys import encode
from cluster.store.store import Store
from cluster.store.transaction import Transaction
from cluster.worker_sessions import (
    HELD,
    WAITS,
    Standing,
    WorkerSession,
    WorkerSessions,
    marker_start,
)

log = structlog.get_logger(__name__)

LONGEST_ASIDE_MS: Final = 10_000
"""A task that waits for room or for a session is looked at again after this time at the latest."""

Fail = Callable[[str, str, str, str, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Fails an attempt: namespace, task id, attempt id, owner, failure."""


class SessionGate:
    """What a node's polls ask before they hand out an activity of a session."""

    def __init__(self, store: Store, sessions: WorkerSessions, fail: Fail) -> None:
        self._store = store
        self._fail = fail
        self.sessions = sessions

    async def admit(
        self, namespace: str, claim: Claim, task: ActivityTask, wire: Mapping[str, Any], most: int
    ) -> bool:
        """Whether the claimer may have the task; if not, it has been seen to. Raises StoreError."""
        options = SessionOptions.of_command(wire)
        found = await self.sessions.take(
            namespace,
            task.owner,
            options,
            most=most,
            task_id=task.task_id,
            task_until_ms=task.lease_expires_at_ms,
            partition=claim.partition,
        )
        if found.standing is Standing.HELD:
            return True
        try:
            if found.standing is Standing.LOST:
                await self._give_up(namespace, task, options, found)
            else:
                await self._set_aside(claim, task.owner, options, found)
                await self._look_again(namespace, claim, task, options, found)
        except (ConditionFailed, Refused):
            log.debug("session_task_gone", task_id=task.task_id)
        return False

    async def _set_aside(
        self, claim: Claim, owner: str, options: SessionOptions, found: WorkerSession
    ) -> None:
        taken = found.standing is Standing.TAKEN
        tx = Transaction(claim.partition, frees=True)
        tx.expect_task(claim.task_id, "l", claim.attempt, claim.delivery, owner)
        tx.expect_equal(self._store.keys.task(claim.partition, claim.task_id), "c", claim.call)
        tx.set_aside(
            claim.task_id,
            claim.attempt,
            claim.delivery + 1,
            encode(marker_start(options.session_id, HELD if taken else WAITS)),
            min(found.look_again_ms, found.now_ms + LONGEST_ASIDE_MS),
        )
        await self._store.commit(tx)

    async def _look_again(
        self, namespace: str, claim: Claim, task: ActivityTask, options: SessionOptions, found: WorkerSession
    ) -> None:
        """What the task waits for may have happened before it was set aside, and nobody would tell."""
        if found.standing is Standing.CROWDED:
            return
        sessions, place = self.sessions, HELD if found.standing is Standing.TAKEN else WAITS
        if await sessions.look(namespace, options.session_id, task.owner) is not found.standing:
            await sessions.release(namespace, task.queue, options.session_id, claim.partition, place, 1)

    async def _give_up(
        self, namespace: str, task: ActivityTask, options: SessionOptions, found: WorkerSession
    ) -> None:
        failure = {
            "type": "WorkerSessionLost",
            "message": f"Worker {found.worker_id!r} held the session {options.session_id!r} and fell silent;"
            " the session does not allow another worker to take it over.",
            "non_retryable": True,
        }
        await self._fail(namespace, task.task_id, task.attempt_id, task.owner, failure)
