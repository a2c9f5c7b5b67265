"""The schedules of a node, as users see and change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from cluster.errors import ConditionFailed, Refused
from cluster.schedules import decisions, names, storage
from cluster.schedules.acting import ATTEMPTS, Acting, contended, existing, not_found
from cluster.schedules.decisions import Cause, Decision
from cluster.schedules.occurrences import occurrences
from cluster.schedules.records import Definition, Overlap, Schedule, ScheduleEvent, Status
from cluster.schedules.storage import Snapshot
from cluster.store.transaction import TransactionTooLarge

MOST_BACKFILLED: Final = 1_000
"""Most occurrences one backfill may cover."""


class Schedules(Acting):
    """Creates, changes and shows schedules; see ``Acting`` for what they do."""

    async def create(
        self, definition: Definition, *, paused: bool, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A new schedule. Raises Refused ``schedule_already_exists`` (409)."""

        def decide(snapshot: Snapshot | None) -> Decision:
            old = snapshot.schedule if snapshot else None
            return decisions.create(definition, old, paused=paused, context=context)

        return await self._change(definition.namespace, definition.schedule_id, decide)

    async def update(
        self,
        namespace: str,
        schedule_id: str,
        change: Callable[[Definition], Mapping[str, Any]],
        context: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Replace the fields that ``change`` answers with. Raises Refused ``schedule_not_found`` (404)."""
        return await self._change_known(
            namespace,
            schedule_id,
            lambda known: decisions.update(known, change(known.definition), self._clock.now_ms(), context),
        )

    async def pause(
        self, namespace: str, schedule_id: str, note: str | None, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Stop firing. Raises Refused ``schedule_not_found`` (404)."""
        return await self._change_known(
            namespace,
            schedule_id,
            lambda known: decisions.pause(known, note, self._clock.now_ms(), context),
        )

    async def resume(
        self, namespace: str, schedule_id: str, note: str | None, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Fire again. Raises Refused ``schedule_not_found`` (404), ``schedule_not_paused`` (409)."""
        return await self._change_known(
            namespace,
            schedule_id,
            lambda known: decisions.resume(known, note, self._clock.now_ms(), context),
        )

    async def delete(self, namespace: str, schedule_id: str, context: Mapping[str, Any]) -> dict[str, Any]:
        """End a schedule. Raises Refused ``schedule_not_found`` (404)."""
        return await self._change_known(
            namespace, schedule_id, lambda known: decisions.delete(known, self._clock.now_ms(), context)
        )

    async def trigger(
        self, namespace: str, schedule_id: str, overlap: Overlap | None, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Act now, as the overlap policy says. Raises Refused ``schedule_not_found`` (404)."""
        now_ms = self._clock.now_ms()
        salt = f"{self._random.getrandbits(64):016x}"
        occasion = self.occasion(namespace, schedule_id, Cause.TRIGGER, now_ms, salt)
        outcome = await self.act(replace(occasion, overlap=overlap, context=context), namespace, schedule_id)
        return {"schedule_id": schedule_id, **outcome}

    async def backfill(
        self,
        namespace: str,
        schedule_id: str,
        start_ms: int,
        end_ms: int,
        overlap: Overlap | None,
        context: Mapping[str, Any],
    ) -> list[tuple[int, dict[str, Any]]]:
        """Act for every occurrence in ``[start_ms, end_ms)``; returns their times and outcomes.

        One that was backfilled before is not started again, so a repeated request is harmless.
        Raises Refused ``schedule_not_found`` (404), ``invalid_time_range`` (422).
        """
        known = await self.describe(namespace, schedule_id)
        times: list[int] = []
        for fire_ms in occurrences(known.definition.spec, start_ms, end_ms):
            if len(times) == MOST_BACKFILLED:
                raise Refused(
                    "invalid_time_range",
                    f"The window holds more than {MOST_BACKFILLED} occurrences; use several backfills.",
                    status=422,
                )
            times.append(fire_ms)
        results: list[tuple[int, dict[str, Any]]] = []
        for fire_ms in times:
            occasion = self.occasion(namespace, schedule_id, Cause.BACKFILL, fire_ms, "backfill")
            occasion = replace(occasion, overlap=overlap, context=context)
            try:
                results.append((fire_ms, await self.act(occasion, namespace, schedule_id)))
            except Refused as refusal:
                if refusal.reason != "schedule_not_found":
                    raise
                break  # its last allowed run was started, or somebody deleted it
        return results

    async def describe(self, namespace: str, schedule_id: str) -> Schedule:
        """A schedule. Raises Refused ``schedule_not_found`` (404)."""
        return existing(await storage.load(self._store, namespace, schedule_id), schedule_id).schedule

    async def history(
        self, namespace: str, schedule_id: str, *, after: int, limit: int
    ) -> tuple[list[ScheduleEvent], bool]:
        """Events after a sequence and whether there are more, also of a deleted schedule.

        Raises Refused ``schedule_not_found`` (404).
        """
        snapshot = await storage.load(self._store, namespace, schedule_id, after=after, limit=limit)
        if snapshot is None:
            raise not_found(schedule_id)
        events = snapshot.events
        last = events[-1].sequence if events else snapshot.schedule.state.history_length
        return events, last < snapshot.schedule.state.history_length

    async def list_schedules(
        self,
        namespace: str,
        *,
        status: Status | None,
        workflow_type: str | None,
        query: str | None,
        page_size: int,
        token: str | None,
    ) -> tuple[list[Schedule], str | None]:
        """Schedules of a namespace, newest first, without deleted ones; and the next page's token."""
        return await storage.list_schedules(
            self._store,
            namespace,
            status=status.value if status else "",
            workflow_type=workflow_type or "",
            query=query or "",
            page_size=page_size,
            token=token,
        )

    async def _change_known(
        self, namespace: str, schedule_id: str, decide: Callable[[Schedule], Decision]
    ) -> dict[str, Any]:
        return await self._change(
            namespace, schedule_id, lambda snapshot: decide(existing(snapshot, schedule_id).schedule)
        )

    async def _change(
        self, namespace: str, schedule_id: str, decide: Callable[[Snapshot | None], Decision]
    ) -> dict[str, Any]:
        for _ in range(ATTEMPTS):
            snapshot = await storage.load(self._store, namespace, schedule_id)
            decision = decide(snapshot)
            tx = await self.transaction(snapshot.schedule if snapshot else None, decision)
            if decision.state.buffered and decision.state.status is Status.ACTIVE:
                # What waits may have been freed while the schedule was paused.
                tx.arm(names.freed_timer(namespace, schedule_id), self._clock.now_ms())
            try:
                await self._store.commit(tx)
            except ConditionFailed:
                continue
            except TransactionTooLarge as error:
                raise Refused("payload_too_large", str(error), status=413) from error
            return decision.outcome
        raise contended(schedule_id)
