"""The pulse of a namespace: what happens in it, sampled while somebody watches.

Whoever looks reads the same line of samples, whichever node answers. A sample is taken when somebody
looks and the newest is older than INTERVAL_SECONDS, by one node at a time; nobody looking costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Final

import msgpack
import msgspec
import trio

from cluster.queues.overview import EVERY_KIND, queue_names
from cluster.store.keys import encode
from cluster.store.together import together

if TYPE_CHECKING:
    from cluster.store.store import Store

INTERVAL_SECONDS: Final = 5.0
KEPT: Final = 360
"""Samples of a line: half an hour."""
KEEP_SECONDS: Final = 3600
CHUNK: Final = 100
"""Queues one script looks at, in one partition."""
_SLOWEST: Final = 20
"""Taking samples may use one part in so many of the time."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One look. Rates are tasks a minute, averaged over the last one; ``oldest_age_ms`` is of the ready task
    that waits longest, 0 when none does. ``usual_ms`` and ``slowest_ms`` are the median and the 99th
    percentile of how long the node that looked took to answer requests.
    """

    at_ms: int
    added: int
    handed_out: int
    ready: int
    leased: int
    oldest_age_ms: int
    runs: int
    closed: int
    failing: int
    flows: int
    closed_flows: int
    usual_ms: float
    slowest_ms: float


_COUNTS: Final = 10
"""Numbers that the script adds up."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sample)


class Pulse:
    """Takes samples, and reads those of all nodes.

    ``latency`` says how long this node's answers took since it was last asked: median and 99th percentile
    in seconds.
    """

    def __init__(
        self,
        store: Store,
        now_ms: Callable[[], int],
        latency: Callable[[], tuple[float, float]],
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._latency = latency
        self._lock = trio.Lock()
        self._seen: dict[str, tuple[float, list[Sample]]] = {}

    async def look(self, namespace: str) -> list[Sample]:
        """The line of a namespace, oldest first; its end is hardly older than INTERVAL_SECONDS.

        Raises StoreError.
        """
        async with self._lock:
            now = trio.current_time()
            self._seen = {
                n: entry for n, entry in self._seen.items() if now < entry[0] + INTERVAL_SECONDS / 2
            }
            if namespace not in self._seen:
                line = await self._read(namespace)
                self._seen[namespace] = (trio.current_time(), line)
            return self._seen[namespace][1]

    async def _read(self, namespace: str) -> list[Sample]:
        key, turn = self._store.keys.pulse(namespace), self._store.keys.turn("pulse", namespace)
        milliseconds = int(INTERVAL_SECONDS * 1000)
        if await self._store.call("SET", turn, "1", "NX", "PX", milliseconds) is not None:
            began = trio.current_time()
            sample = await self._sample(namespace)
            spent = trio.current_time() - began
            await self._store.run("sample", [key], [_encoder.encode(sample), KEPT, KEEP_SECONDS])
            if spent * _SLOWEST > INTERVAL_SECONDS:
                await self._store.call("PEXPIRE", turn, int(spent * _SLOWEST * 1000), idempotent=True)
        rows = await self._store.call("LRANGE", key, 0, KEPT - 1, idempotent=True)
        return [_decoder.decode(row) for row in reversed(rows)]

    async def _sample(self, namespace: str) -> Sample:
        """One look, in small scripts that are all sent together."""
        keys, now_ms = self._store.keys, self._now_ms()
        names = sorted(encode(name) for name in await queue_names(self._store, namespace, EVERY_KIND))
        chunks = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)] or [[]]
        sums = [0] * _COUNTS
        oldest = now_ms

        async def look(place: tuple[int, int]) -> None:
            nonlocal oldest
            partition, number = place
            ready, leased, first, *counts = await self._store.run(
                "pulse",
                [keys.touch(partition)],
                [
                    keys.base(partition),
                    encode(namespace),
                    msgpack.packb(chunks[number], use_bin_type=False),
                    "".join(EVERY_KIND),
                    "runs" if number == 0 else "",
                ],
                idempotent=True,
            )
            oldest = min(oldest, int(first or now_ms))
            for position, count in enumerate((ready, leased, *counts)):
                sums[position] += count

        await together(look, product(range(keys.partitions), range(len(chunks))))
        ready, leased, added, handed_out, runs, closed, archived, failing, flows, closed_flows = sums
        usual, slowest = self._latency()
        return Sample(
            at_ms=now_ms,
            added=added,
            handed_out=handed_out,
            ready=ready,
            leased=leased,
            oldest_age_ms=now_ms - oldest,
            runs=runs,
            closed=closed + archived,
            failing=failing,
            flows=flows,
            closed_flows=closed_flows,
            usual_ms=round(usual * 1000, 2),
            slowest_ms=round(slowest * 1000, 2),
        )
