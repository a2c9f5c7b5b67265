"""Upkeep by hand, straight from the store: what a scheduled job may run beside the nodes.

The nodes do all of it by themselves; a pass is for an installation whose nodes are stopped, or for
somebody who wants it done now. Any number may run at once.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import SystemRandom

from cluster.bootstrap import bootstrap
from cluster.clock import Clock
from cluster.errors import StartupError, StoreError
from cluster.namespaces import NamespaceStore
from cluster.settings import Settings
from cluster.store.store import Store, open_store
from cluster.upkeep.due import DueWork
from cluster.upkeep.passes import Passes
from cluster.workflows.engine import Engine
from cluster.workflows.limits import configured_limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.retention import Retention, cutoff_ms, show
from cluster.workflows.storage import RunCache


@dataclass(frozen=True, slots=True)
class Scope:
    """What a pass looks at: one namespace, or None for all, and at most ``limit`` things of each."""

    namespace: str | None
    limit: int


async def prune(settings: Settings, scope: Scope) -> int:
    """Remove runs past their retention; returns the exit code. Raises StartupError."""
    pruned = skipped = failed = 0
    async with _opened(settings) as store:
        seconds, _ = await store.call("TIME", idempotent=True)
        retention = Retention(store)
        for name, days in await _namespaces(store, settings, scope):
            expired = await retention.expired(name, cutoff_ms(int(seconds) * 1000, days), scope.limit)
            counts = show(await retention.prune(name, expired))
            pruned += counts["pruned"]
            skipped += counts["skipped"]
            failed += counts["failed"]
    if pruned + skipped + failed == 0:
        return _say("No expired runs to prune.")
    return _say(f"Done: {pruned} pruned, {skipped} skipped, {failed} failed.", failed)


async def enforce_timeouts(settings: Settings, scope: Scope) -> int:
    """Enforce deadlines of activities that have come; returns the exit code. Raises StartupError."""
    async with _opened(settings) as store:
        passes, expired = _passes(store, settings), list[tuple[str, str]]()
        for name, _ in await _namespaces(store, settings, scope):
            expired += [(name, found) for found in await passes.reached_timeouts(name, scope.limit)]
        if not expired:
            return _say("No expired activity executions.")
        _say(f"Enforcing {len(expired)} expired activity execution(s)...")
        outcomes: list[str] = []
        for name, execution_id in expired:
            outcomes += [result.outcome for result in await passes.time_out(name, [execution_id])]
    enforced, skipped, failed = map(outcomes.count, ("enforced", "skipped", "error"))
    return _say(f"Done: {enforced} enforced, {skipped} skipped, {failed} failed.", failed)


def _passes(store: Store, settings: Settings) -> Passes:
    leases = LeaseTimes(settings.workflow_task_timeout * 1000, settings.activity_task_timeout * 1000)
    engine = Engine(
        store, Clock(), RunCache(), leases=leases, limits=configured_limits(settings), random=SystemRandom()
    )
    return Passes(store, engine, DueWork(store, engine))


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Store]:
    try:
        async with open_store(
            settings.redis_url, prefix=settings.key_prefix, durability=settings.durability
        ) as store:
            record = await bootstrap(store, None)
            store.keys = replace(store.keys, partitions=record.partitions)
            yield store
    except* StoreError as errors:
        reasons = {error.reason for error in errors.exceptions if isinstance(error, StoreError)}
        raise StartupError(f"the store cannot be used: {', '.join(sorted(reasons))}") from None


async def _namespaces(store: Store, settings: Settings, scope: Scope) -> Sequence[tuple[str, int]]:
    """Names and retention days of the namespaces in ``scope``."""
    known = await NamespaceStore(store, Clock().now_ms, settings.history_retention_days).list()
    wanted = None if scope.namespace is None else scope.namespace.lower()
    if wanted is not None and wanted not in {namespace.name for namespace in known}:
        raise StartupError(f"the namespace {wanted!r} does not exist")
    return [(each.name, each.retention_days) for each in known if wanted in (None, each.name)]


def _say(text: str, failed: int = 0) -> int:
    """Writes a line; the exit code is 1 when something failed."""
    sys.stdout.write(f"{text}\n")
    return 1 if failed else 0
