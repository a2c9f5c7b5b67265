"""Fails what buried nodes had handed out over streams, and forgets the workers they had (E1).

Each holder of a partition looks for itself, at the start of its tenure, after every burial and now
and then: so a holder that dies in the middle leaves nothing behind. Every piece is a conditional
commit on the attempt, its delivery and its worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from cluster.errors import StoreError
from cluster.flows.records import Method
from cluster.membership.housekeeping import HeldPartition
from cluster.queues.presence import tell_presence
from cluster.store.store import Store

log = structlog.get_logger(__name__)

CHUNK: Final = 50
LOOK_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.5
_WAITS: Final = Method.WAIT_FOR.letter.encode()


@dataclass(frozen=True, slots=True)
class Orphan:
    """A step attempt whose node is gone."""

    task_id: str
    attempt: int
    delivery: int
    worker_id: str
    session: str
    method: Method


Fail = Callable[[Sequence[Orphan]], Awaitable[None]]
"""Ends attempts as lost; raises StoreError when that must be tried again."""


@dataclass(frozen=True, slots=True)
class Left:
    """What one session left in one partition; ``workers`` are ``<namespace>:<worker>``, encoded."""

    session: str
    tasks: list[Orphan]
    workers: list[str]


async def find_orphans(store: Store, partition: int, session: str = "") -> Left | None:
    """What ``session``, or any buried one, still has in a partition (at most CHUNK of each)."""
    keys = store.keys
    reply = await store.run(
        "orphans", [keys.touch(partition)], [keys.base(partition), CHUNK, session], idempotent=True
    )
    if reply is None:
        return None
    name, flat, workers = reply
    tasks = [
        Orphan(
            flat[i].decode(),
            int(flat[i + 1]),
            int(flat[i + 2]),
            flat[i + 3].decode(),
            name.decode(),
            Method.WAIT_FOR if flat[i + 4] == _WAITS else Method.EXECUTE,
        )
        for i in range(0, len(flat), 5)
    ]
    return Left(name.decode(), tasks, [worker.decode() for worker in workers])


class Orphanage:
    """Housekeeping of one node for streams of others; ``fail`` ends lost attempts."""

    def __init__(self, store: Store, fail: Fail) -> None:
        self._store = store
        self._fail = fail
        self._bells: dict[int, trio.Event] = {}
        self.failed = 0

    def on_buried(self, _session: str) -> None:
        """Look into every partition kept here."""
        for bell in self._bells.values():
            bell.set()

    async def housekeep(self, held: HeldPartition) -> None:
        """Keep one partition until cancelled."""
        partition = held.partition
        try:
            while True:
                bell = self._bells[partition] = trio.Event()
                pause = LOOK_SECONDS
                if held.may_act():
                    try:
                        await self._sweep(held)
                    except StoreError as error:
                        log.debug("orphans_postponed", partition=partition, reason=error.reason)
                        pause = RETRY_SECONDS
                else:
                    pause = RETRY_SECONDS
                with trio.move_on_after(pause):
                    await bell.wait()
        finally:
            self._bells.pop(partition, None)

    async def _sweep(self, held: HeldPartition) -> None:
        while held.may_act():
            left = await find_orphans(self._store, held.partition)
            if left is None:
                return
            if left.tasks:
                await self._fail(left.tasks)
                self.failed += len(left.tasks)
                log.warning(
                    "attempts_lost_with_node",
                    partition=held.partition,
                    session=left.session,
                    attempts=len(left.tasks),
                )
            if left.workers:
                await tell_presence(self._store, held.partition, left.session, {}, left.workers)
