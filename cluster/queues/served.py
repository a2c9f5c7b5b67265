"""Which flow types and step types the connected workers of all nodes serve.

Each node writes one summary of its own workers when it changes; whoever counts unserved queues reads
all of them. A summary of a node that is gone is not believed, and removed by the next reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec
import trio

from cluster.queues.stream_workers import NameKind, Skills, StreamWorker
from cluster.store.keys import encode
from cluster.store.store import Store

REPEAT_SECONDS: Final = 10.0
"""A reader that does not know a node yet may have removed its summary."""


KEEP_SECONDS: Final = 0.5
"""The partitions of a node are counted one after the other, with one picture of who serves what."""


class ServedTypes(msgspec.Struct, frozen=True, array_like=True):
    """What some worker of a node serves of one flow type (names encoded): ``only`` these step types,
    or None for all but ``never``.
    """

    namespace: str
    flow_type: str
    only: frozenset[str] | None
    never: frozenset[str]

    def supports(self, type_part: str) -> bool:
        if self.only is not None and type_part not in self.only:
            return False
        return type_part not in self.never


Summary = frozenset[ServedTypes]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[ServedTypes])


def summarise(workers: Iterable[tuple[StreamWorker, Skills]]) -> Summary:
    """What workers with a shared slot serve; each combination once."""
    return frozenset(
        ServedTypes(
            encode(worker.namespace),
            encode(skill.flow_type),
            None if skill.step_types is None else frozenset(encode(name) for name in skill.step_types),
            worker.lacking(NameKind.STEP, skill.flow_type),
        )
        for worker, skills in workers
        if worker.shared
        for skill in skills.flows
    )


class Served:
    """The summaries of all nodes. ``alive`` are the sessions of live nodes."""

    def __init__(
        self, store: Store, session: Callable[[], str], alive: Callable[[], Collection[str]]
    ) -> None:
        self._store = store
        self._session = session
        self._alive = alive
        self._written: tuple[str, Summary] | None = None
        self._written_at = -REPEAT_SECONDS
        self._seen: list[ServedTypes] = []
        self._seen_at = -KEEP_SECONDS

    async def tell(self, summary: Summary) -> None:
        """Write this node's summary if it changed, or was not written for a while. Raises StoreError."""
        state, now = (self._session(), summary), trio.current_time()
        if state == self._written and now < self._written_at + REPEAT_SECONDS:
            return
        key = self._store.keys.served()
        await self._store.call("HSET", key, state[0], _encoder.encode(list(summary)), idempotent=True)
        self._written, self._written_at = state, now

    async def read(self) -> list[ServedTypes]:
        """What is served anywhere, at most KEEP_SECONDS ago. Raises StoreError."""
        now = trio.current_time()
        if now < self._seen_at + KEEP_SECONDS:
            return self._seen
        key, alive = self._store.keys.served(), {*self._alive(), self._session()}
        flat = await self._store.call("HGETALL", key, idempotent=True)
        served: list[ServedTypes] = []
        gone: list[str] = []
        for name, data in zip(flat[::2], flat[1::2], strict=True):
            session = name.decode()
            if session in alive:
                served += _decoder.decode(data)
            else:
                gone.append(session)
        if gone:
            await self._store.call("HDEL", key, *gone, idempotent=True)
        self._seen, self._seen_at = served, now
        return served
