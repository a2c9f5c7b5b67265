"""Passes an operator asks for: repair, and timeouts of activities (server-behaviour 8.6, 8.7).

The keepers do all of this by themselves when it is due, so a pass usually finds nothing. What it finds
is put right by the same conditional commits, by any number of operators at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cachetools import TTLCache

from cluster.errors import HeadraceError
from cluster.store.store import Store
from cluster.upkeep.due import DueWork
from cluster.workflows import repairing
from cluster.workflows.care import Repaired, TimeoutResult
from cluster.workflows.engine import Engine

SCAN_LIMIT: Final = 25
"""Runs a pass looks at when it is not told which."""
TIMEOUT_LIMIT: Final = 100
RECENT_NAMESPACES: Final = 256
RECENT_SECONDS: Final = 5.0
POLICY: Final = {
    "redispatch_after_seconds": 3,
    "loop_throttle_seconds": 5,
    "scan_limit": SCAN_LIMIT,
    "scan_strategy": "scope_fair_round_robin",
    "failure_backoff_max_seconds": 60,
    "failure_backoff_strategy": "exponential_by_repair_count",
}


@dataclass(frozen=True, slots=True)
class Candidates:
    """Runs that may need repair: ``failing`` ones, those of ``lacking`` miss a task or timer.

    ``overdue`` counts leases that ran out and timers that are due, in all namespaces.
    """

    overdue: int
    failing: list[str]
    lacking: list[str]

    @property
    def existing(self) -> int:
        return self.overdue + len(self.failing)


@dataclass(slots=True)
class RepairReport:
    """What a repair pass did."""

    selected_existing: int = 0
    selected_missing: int = 0
    repaired: Repaired = field(default_factory=Repaired)
    failures: list[dict[str, Any]] = field(default_factory=list)


class Passes:
    """Runs passes on one node."""

    def __init__(self, store: Store, engine: Engine, due: DueWork) -> None:
        self._store = store
        self._engine = engine
        self._due = due
        self._recent: TTLCache[str, Candidates] = TTLCache(RECENT_NAMESPACES, RECENT_SECONDS)

    # -- repair -----------------------------------------------------------------------------

    async def repair_candidates(self, namespace: str) -> Candidates:
        """What a pass would look at now."""
        overdue = sum([len(timers) + len(leases) for timers, leases in await self._overdue(SCAN_LIMIT)])
        failing = await self.failing_runs(namespace, SCAN_LIMIT)
        page = await self._engine.list_runs(
            namespace, workflow_type=None, bucket="running", query=None, page_size=SCAN_LIMIT, token=None
        )
        lacking = []
        for view in page.runs:
            run_id = view.run.info.run_id
            found = await self._engine.inspect(namespace, run_id)
            if found and (repairing.missing_tasks(*found) or repairing.missing_timers(*found)):
                lacking.append(run_id)
        return Candidates(overdue, failing, lacking)

    async def recent_candidates(self, namespace: str) -> Candidates:
        """What :meth:`repair_candidates` found within the last few seconds; for those who ask often."""
        found = self._recent.get(namespace)
        if found is None:
            found = self._recent[namespace] = await self.repair_candidates(namespace)
        return found

    async def failing_runs(self, namespace: str, limit: int) -> list[str]:
        """Runs whose workflow task fails again and again, the worst of each partition first."""
        found: list[str] = []
        for partition in range(self._store.keys.partitions):
            key = self._store.keys.failing(partition, namespace)
            rows = await self._store.call("ZRANGE", key, 0, limit - 1, "REV", idempotent=True)
            found += [row.decode() for row in rows]
        return found[:limit]

    async def repair(self, namespace: str, run_ids: Sequence[str] | None) -> RepairReport:
        """Repair ``run_ids``, or what :meth:`repair_candidates` finds when that is None."""
        report = RepairReport()
        if run_ids is None:
            candidates = await self.repair_candidates(namespace)
            report.selected_existing, report.selected_missing = (
                candidates.existing,
                len(candidates.lacking),
            )
            report.repaired += Repaired(existing=await self._do_overdue())
            run_ids = [*candidates.failing, *candidates.lacking]
        else:
            report.selected_existing = len(run_ids)
        for run_id in run_ids:
            try:
                report.repaired += await self._engine.repair(namespace, run_id)
            except HeadraceError as error:
                report.failures.append({"run_id": run_id, "reason": error.reason})
        return report

    async def _do_overdue(self) -> int:
        done = 0
        for partition, (timers, leases) in enumerate(await self._overdue(1)):
            if timers or leases:
                done += (await self._due.run(partition)).done
        return done

    async def _overdue(self, limit: int) -> list[tuple[list[bytes], list[bytes]]]:
        """Per partition the timers and leases whose time has come, at most ``limit`` of each."""
        keys = self._store.keys
        found = []
        for partition in range(keys.partitions):
            _, timers, leases, *_ = await self._store.run(
                "due", [keys.touch(partition)], [keys.base(partition), limit], idempotent=True
            )
            found.append((timers[::2], leases))
        return found

    # -- timeouts ---------------------------------------------------------------------------

    async def reached_timeouts(self, namespace: str, limit: int) -> list[str]:
        """Activities with a deadline that has come, at most ``limit``."""
        found: list[str] = []
        for timers, _ in await self._overdue(TIMEOUT_LIMIT):
            for timer in timers:
                run_id, _, name = timer.decode().partition(" ")
                execution_id = f"{run_id}-{name}"
                if len(found) >= limit or not name.startswith("a"):
                    continue
                if await self._engine.timeout_obstacle(namespace, execution_id) is None:
                    found.append(execution_id)
        return found

    async def time_out(self, namespace: str, execution_ids: Sequence[str]) -> list[TimeoutResult]:
        """Enforce reached deadlines. One activity that fails does not stop the rest."""
        results = []
        for execution_id in execution_ids:
            try:
                results.append(await self._engine.time_out_activity(namespace, execution_id))
            except HeadraceError as error:
                results.append(TimeoutResult(execution_id, "error", error.reason))
        return results
