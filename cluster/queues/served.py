"""Which flow types and step types the connected workers of all nodes serve.

Each node writes one summary of its own workers when it changes; whoever counts unserved queues reads
all of them. A summary of a node that is gone is not believed, and removed by the next reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from cluster.queues.stream_workers import NameKind, Skills, StreamWorker
from cluster.store.keys import decode, encode
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
    workers: int = 0
    slots: int = 0
    """How many workers with how many slots for steps are connected to that node."""

    def supports(self, type_part: str) -> bool:
        if self.only is not None and type_part not in self.only:
            return False
        return type_part not in self.never


Summary = frozenset[ServedTypes]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[ServedTypes])


@dataclass(frozen=True, slots=True)
class Serving:
    """Who serves one flow type, over all nodes. A worker counts at each node it is connected to."""

    rows: tuple[ServedTypes, ...] = ()

    @property
    def workers(self) -> int:
        return sum(row.workers for row in self.rows)

    @property
    def slots(self) -> int:
        return sum(row.slots for row in self.rows)

    def able(self, step_type: str) -> Serving:
        """Those who support a step type."""
        return Serving(tuple(row for row in self.rows if row.supports(encode(step_type))))


def summarise(workers: Iterable[tuple[StreamWorker, Skills, int]]) -> Summary:
    """What workers with so many slots for steps serve; each combination once."""
    found: dict[tuple[str, str, frozenset[str] | None, frozenset[str]], tuple[set[str], int]] = {}
    for worker, skills, slots in workers:
        for skill in skills.flows:
            combination = (
                encode(worker.namespace),
                encode(skill.flow_type),
                None if skill.step_types is None else frozenset(encode(name) for name in skill.step_types),
                worker.lacking(NameKind.STEP, skill.flow_type),
            )
            ids, number = found.get(combination, (set(), 0))
            found[combination] = ({*ids, worker.worker_id}, number + slots)
    return frozenset(
        ServedTypes(*combination, workers=len(ids), slots=number)
        for combination, (ids, number) in found.items()
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

    async def of_namespace(self, namespace: str) -> dict[str, Serving]:
        """Who serves which flow type of a namespace. Raises StoreError."""
        rows: dict[str, list[ServedTypes]] = {}
        for row in await self.read():
            if row.namespace == encode(namespace):
                rows.setdefault(decode(row.flow_type), []).append(row)
        return {flow_type: Serving(tuple(found)) for flow_type, found in rows.items()}

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
