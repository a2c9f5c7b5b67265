"""Retention: closed runs go when their namespace's time is over (server-behaviour 8.5).

Removing a run is one script that checks everything itself, so any number of nodes may do it at the
same time: the keepers of the partitions now and then, a heartbeat a little, an operator at will.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from cluster.errors import StoreError
from cluster.ids import partition_of_run
from cluster.store.keys import encode
from cluster.store.store import Store

DAY_MS: Final = 24 * 3600 * 1000
TURN_SECONDS: Final = 60
"""A namespace's heartbeats remove at most one run in this time."""
CHUNK: Final = 50
"""Runs of one namespace and partition that a keeper removes before it looks again."""
NAMESPACES: Final = 100
"""Namespaces looked at per script (H6)."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of one run: ``outcome`` is pruned, skipped (with a reason) or error."""

    run_id: str
    outcome: str
    reason: str | None = None
    events: int = 0
    instances: int = 0


class Retention:
    """Finds and removes expired runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def expired(self, namespace: str, cutoff_ms: int, limit: int) -> list[str]:
        """Runs that closed before ``cutoff_ms`` and are not archived, the oldest first."""
        found: list[tuple[float, str]] = []
        for partition in range(self._store.keys.partitions):
            found += await self._expired_of(partition, namespace, cutoff_ms, limit)
        return [run_id for _, run_id in sorted(found)[:limit]]

    async def prune(self, namespace: str, run_ids: Iterable[str]) -> list[Pruned]:
        """Remove closed runs, whatever their age. One that fails does not stop the rest."""
        results = []
        for run_id in run_ids:
            try:
                results.append(await self._prune(namespace, run_id))
            except StoreError as error:
                results.append(Pruned(run_id, "error", error.reason))
        return results

    async def take_turn(self, namespace: str, cutoff_ms: int) -> list[Pruned] | None:
        """Remove at most one expired run; None when that was tried within the last minute."""
        key = self._store.keys.turn("retention", namespace)
        if await self._store.call("SET", key, "1", "NX", "EX", TURN_SECONDS) is None:
            return None
        return await self.prune(namespace, await self.expired(namespace, cutoff_ms, 1))

    async def keep(self, partition: int, cutoffs_ms: Mapping[str, int]) -> int:
        """Remove up to a CHUNK of expired runs per namespace from one partition; returns how many.

        ``cutoffs_ms`` maps namespaces to their cutoff; one script looks at NAMESPACES of them.
        """
        removed = 0
        async for namespace, run_id in expired_runs(self._store, partition, cutoffs_ms, "closed"):
            removed += (await self._prune(namespace, run_id)).outcome == "pruned"
        return removed

    async def _expired_of(
        self, partition: int, namespace: str, cutoff_ms: int, limit: int
    ) -> list[tuple[float, str]]:
        key = self._store.keys.closed(partition, namespace)
        flat = await self._store.call(
            "ZRANGE",
            key,
            "-inf",
            f"({cutoff_ms}",
            "BYSCORE",
            "LIMIT",
            0,
            limit,
            "WITHSCORES",
            idempotent=True,
        )
        return [(float(score), run.decode()) for run, score in zip(flat[::2], flat[1::2], strict=True)]

    async def _prune(self, namespace: str, run_id: str) -> Pruned:
        keys, partition = self._store.keys, partition_of_run(run_id)
        if partition is None or partition >= keys.partitions:
            return Pruned(run_id, "skipped", "run_not_found")
        outcome, *rest = await self._store.run(
            "purge",
            [keys.run(partition, run_id)],
            [keys.base(partition), run_id, namespace, encode(namespace)],
            idempotent=True,
        )
        if outcome == b"pruned":
            return Pruned(run_id, "pruned", None, *rest)
        return Pruned(run_id, "skipped", rest[0].decode())


async def expired_runs(
    store: Store, partition: int, cutoffs_ms: Mapping[str, int], family: str
) -> AsyncIterator[tuple[str, str]]:
    """Namespace and id of up to a CHUNK of expired runs per namespace; ``family`` is closed or fclosed."""
    keys = store.keys
    names = list(cutoffs_ms)
    for start in range(0, len(names), NAMESPACES):
        some = names[start : start + NAMESPACES]
        wanted = [[encode(name), cutoffs_ms[name]] for name in some]
        rows = await store.run(
            "expired",
            [keys.touch(partition)],
            [keys.base(partition), msgpack.packb(wanted, use_bin_type=False), CHUNK, family],
            idempotent=True,
        )
        for index, *run_ids in rows:
            for run_id in run_ids:
                yield some[index], run_id.decode()


def cutoff_ms(now_ms: int, retention_days: int) -> int:
    """Runs that closed before this time have expired."""
    return now_ms - retention_days * DAY_MS


def show(results: list[Pruned]) -> dict[str, Any]:
    """Counts of a pass, by outcome."""
    outcomes = [result.outcome for result in results]
    return {
        "processed": len(results),
        "pruned": outcomes.count("pruned"),
        "skipped": outcomes.count("skipped"),
        "failed": outcomes.count("error"),
    }
