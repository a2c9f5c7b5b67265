"""Tells every partition which workers have shared streams on this node (rule C).

Commits that make a step ready read it: a worker who is connected anywhere and whose slots can run the
step may be waited for, others may not (R28, R30, R40). Written only when the first shared stream of a
worker comes, when the last one goes, and when what they can run changes; then also the steps that would
wait for him in vain go to their queues at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgpack
import structlog
import trio

from cluster.errors import Fenced, StoreError
from cluster.store.store import Store

log = structlog.get_logger(__name__)

CHUNK: Final = 100
RETRY_SECONDS: Final = 0.25


class Presence:
    """One per node. ``session`` names the node's present session."""

    def __init__(self, store: Store, session: Callable[[], str]) -> None:
        self._store = store
        self._session = session
        self._wanted: dict[str, str] = {}
        self._written: dict[int, dict[str, str]] = {}
        self._writer = ""
        self._changed = trio.Event()
        self._settled = trio.Event()

    def arrived(self, worker: str, abilities: str) -> None:
        """A worker (``<namespace>:<worker>``, encoded) has shared streams, which can run that."""
        if self._wanted.get(worker) != abilities:
            self._wanted[worker] = abilities
            self._ring()

    def left(self, worker: str) -> None:
        """The last shared stream of a worker is gone."""
        self._wanted.pop(worker, None)
        self._ring()

    def renewed(self) -> None:
        """The node goes by a new session: what the old one had said is void."""
        self._ring()

    def rewrite(self) -> None:
        """The store may have lost what was written: write all of it again."""
        self._written = {}
        self._ring()

    async def settled(self) -> None:
        """Wait until the partitions know everything that was said so far."""
        await self._settled.wait()

    def _ring(self) -> None:
        if self._settled.is_set():
            self._settled = trio.Event()
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            if not await self._write():
                await trio.sleep(RETRY_SECONDS)
                continue
            if not self._changed.is_set():
                self._settled.set()
                await self._changed.wait()
            self._changed = trio.Event()

    async def _write(self) -> bool:
        """Bring the partitions up to date; False when some could not be told everything."""
        if self._writer != self._session():
            # What a buried session had said goes with it.
            self._writer, self._written = self._session(), {}
        done: list[bool] = []
        async with trio.open_nursery() as nursery:
            for partition in range(self._store.keys.partitions):
                nursery.start_soon(self._write_to, partition, self._writer, done)
        return all(done)

    async def _write_to(self, partition: int, session: str, done: list[bool]) -> None:
        written = self._written.setdefault(partition, {})
        while written != self._wanted:
            arrived = dict(list(self._wanted.items() - written.items())[:CHUNK])
            gone = list(written.keys() - self._wanted.keys())[:CHUNK]
            try:
                unfinished = await tell_presence(self._store, partition, session, arrived, gone)
            except StoreError as error:
                log.debug("presence_not_written", partition=partition, reason=error.reason)
                done.append(False)
                return
            written |= arrived
            for worker in set(gone) - unfinished:
                written.pop(worker, None)
        done.append(True)


async def tell_presence(
    store: Store, partition: int, session: str, arrived: Mapping[str, str], gone: Sequence[str]
) -> set[str]:
    """Say who came to the node of ``session`` or can run other things now (worker -> abilities), and who
    left it; at most CHUNK each.

    Returns those whose steps are not all in their queues yet: say again that they left. Raises Fenced
    when somebody arrived and the session is buried, StoreError.
    """
    keys = store.keys
    packed = msgpack.packb([list(arrived.items()), list(gone)], use_bin_type=False)
    reply = await store.run(
        "presence",
        [keys.touch(partition)],
        [keys.base(partition), keys.prefix, session, packed],
        idempotent=True,
    )
    if reply == b"FENCED":
        raise Fenced(f"session {session} was buried")
    return {worker.decode() for worker in reply}
