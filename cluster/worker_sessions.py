"""Worker sessions: activities that must run on one worker, for as long as it holds the session.

A session is a record with a lease; its holder alone is given the tasks of the session. A task names
its session, and whether anybody who finds it free may acquire it. Who holds what is decided by one
script when a task is about to be handed out, so two workers never hold a session at once.

Tasks that may not be handed out yet are *set aside*: they stand in their own queue behind a marker
made of the session's id. Behind ``HELD`` only the holder looks, behind ``WAITS`` nobody. They return
when something of the session ends, and by themselves after a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgpack
import orjson
import structlog

from cluster.errors import StoreError
from cluster.ids import TaskKind
from cluster.record_cache import RecordCache
from cluster.session_options import SessionOptions
from cluster.store.keys import decode, encode
from cluster.store.store import Store

log = structlog.get_logger(__name__)

MOST_PER_WORKER: Final = 64
"""Sessions that one worker may hold at once; its polls look behind a marker for each."""
RELEASED_AT_ONCE: Final = 1000
"""Tasks of one partition that return to their queue when a session ends or begins."""

HELD: Final = "h"
WAITS: Final = "w"
_MARK: Final = "\x1f"


class Standing(StrEnum):
    """How a session stands towards the worker that asks."""

    HELD = "held"
    TAKEN = "taken"
    LOST = "lost"
    """Its holder fell silent, and the session may not go to another worker."""
    MISSING = "missing"
    FULL = "full"
    CROWDED = "crowded"
    CLOSED = "closed"
    LAPSED = "lapsed"


@dataclass(frozen=True, slots=True)
class WorkerSession:
    """A session as one call found or left it. Times are milliseconds since the epoch."""

    standing: Standing
    now_ms: int
    worker_id: str
    lease_expires_at_ms: int
    ttl_expires_at_ms: int
    since_ms: int
    options: dict[str, Any]
    look_again_ms: int
    partitions: tuple[int, ...]
    new: bool


def marker_start(session_id: str, place: str) -> str:
    """What the markers begin with behind which tasks of a session are set aside; a build id may follow."""
    return f"{_MARK}{encode(session_id)}{_MARK}{place}{_MARK}"


def is_session_marker(marker: str) -> bool:
    return marker.startswith(_MARK)


def with_sessions(markers: tuple[str, ...], session_ids: tuple[str, ...]) -> tuple[str, ...]:
    """``markers`` of a poll and those behind which tasks wait for a worker that holds the sessions."""
    builds = [marker for marker in markers if not is_session_marker(marker)]
    return (*builds, *(marker_start(id_, HELD) + build for id_ in session_ids for build in builds))


class WorkerSessions:
    """The sessions of all workers. Nothing is remembered but which worker holds which."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held = RecordCache("holds", self._load)

    async def watch(self) -> None:
        """Start to remember who holds what; changes on other nodes are heard from now on."""
        await self._held.watch(self._store)

    async def held(self, namespace: str, worker_id: str) -> tuple[str, ...]:
        """Sessions that a worker holds or held lately."""
        return await self._held.get(namespace, worker_id) or ()

    async def take(
        self,
        namespace: str,
        worker_id: str,
        options: SessionOptions,
        *,
        most: int = MOST_PER_WORKER,
        task_id: str = "",
        task_until_ms: int = 0,
        partition: int = -1,
    ) -> WorkerSession:
        """Hold a session, if it is free or held already; with a task also make room in it for that.

        ``partition`` is remembered as one where a task of the session waits, when this fails.
        """
        wire = {name: getattr(options, name) for name in SessionOptions.__slots__}
        found = await self._run(
            "take",
            namespace,
            options.session_id,
            worker_id,
            [
                orjson.dumps({name: value for name, value in wire.items() if value is not None}).decode(),
                options.lease_seconds * 1000,
                options.ttl_seconds * 1000,
                options.max_concurrent_activities,
                int(options.allow_reacquire_after_failure),
                int(options.create_if_missing),
                min(most, MOST_PER_WORKER),
                task_id,
                task_until_ms,
                partition,
            ],
        )
        if found.new:
            self._held.forget(namespace, worker_id)
        return found

    async def renew(
        self, namespace: str, session_id: str, worker_id: str, lease_seconds: int
    ) -> WorkerSession:
        """Prolong the lease, at most until the session's ttl."""
        return await self._run("renew", namespace, session_id, worker_id, [lease_seconds * 1000])

    async def close(self, namespace: str, session_id: str, worker_id: str, reason: str) -> WorkerSession:
        """Give a session up; doing so again is no error."""
        found = await self._run("close", namespace, session_id, worker_id, [reason])
        self._held.forget(namespace, worker_id)
        return found

    async def look(self, namespace: str, session_id: str, worker_id: str) -> Standing:
        """How the session stands now: HELD says that the worker holds it and there is room in it."""
        return (await self._run("look", namespace, session_id, worker_id, [])).standing

    async def prolong(
        self, namespace: str, session_id: str, worker_id: str, task_id: str, until_ms: int
    ) -> None:
        """The lease of an activity of the session now ends at ``until_ms``. Errors are only logged."""
        try:
            await self._run("leave", namespace, session_id, worker_id, [task_id, until_ms])
        except StoreError as error:
            log.warning("worker_session_not_prolonged", task_id=task_id, reason=error.reason)

    async def left(
        self, namespace: str, queue: str, session_id: str, worker_id: str, task_id: str, partition: int
    ) -> None:
        """An activity of a session is over: the next one that waits for room may come.

        An error is only logged: the room is free when the lease would have ended, and who waits
        for it looks again in time.
        """
        try:
            found = await self._run("leave", namespace, session_id, worker_id, [task_id, -1])
            for number in sorted(found.partitions, key=lambda other: other != partition):
                if await self.release(namespace, queue, session_id, number, WAITS, 1):
                    break
                key = self._store.keys.worker_session("wait", namespace, session_id)
                await self._store.call("SREM", key, number, idempotent=True)
        except StoreError as error:
            log.warning("worker_session_not_left", task_id=task_id, reason=error.reason)

    async def release(
        self, namespace: str, queue: str, session_id: str, partition: int, place: str, most: int
    ) -> int:
        """Return tasks that were set aside in a partition to their queue; returns how many."""
        keys = self._store.keys
        task_queue = f"{TaskKind.ACTIVITY}:{encode(namespace)}:{encode(queue)}"
        start = encode(marker_start(session_id, place))
        moved = await self._store.run(
            "session_release",
            [keys.touch(partition)],
            [keys.base(partition), keys.prefix, task_queue, start, most],
            idempotent=True,
        )
        return int(moved)

    async def release_all(self, namespace: str, queue: str, found: WorkerSession, session_id: str) -> None:
        """The session began or ended: whatever waits is looked at anew."""
        for partition in found.partitions:
            for place in (HELD, WAITS):
                await self.release(namespace, queue, session_id, partition, place, RELEASED_AT_ONCE)

    async def _run(
        self, verb: str, namespace: str, session_id: str, worker_id: str, more: list[Any]
    ) -> WorkerSession:
        keys = self._store.keys
        row = await self._store.run(
            "worker_session",
            [keys.worker_session(family, namespace, session_id) for family in ("ses", "busy", "wait")],
            [
                verb,
                encode(session_id),
                worker_id,
                keys.changed_channel(),
                encode(namespace),
                msgpack.packb(more, use_bin_type=False),
            ],
            idempotent=True,
        )
        outcome, now, worker, lease, ttl, since, options, following, partitions, new = row
        return WorkerSession(
            standing=Standing(outcome.decode()),
            now_ms=int(now),
            worker_id=worker.decode(),
            lease_expires_at_ms=int(lease),
            ttl_expires_at_ms=int(ttl),
            since_ms=int(since),
            options=orjson.loads(options) if options else {},
            look_again_ms=int(following),
            partitions=tuple(int(partition) for partition in partitions),
            new=bool(new),
        )

    async def _load(self, namespace: str, worker_id: str) -> tuple[str, ...]:
        raw = await self._store.call("GET", self._store.keys.holds(namespace, worker_id), idempotent=True)
        return tuple(decode(part) for part in raw.decode().split()) if raw else ()
