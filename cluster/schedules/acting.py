"""Schedules act: a timer is due, a user triggers, a run has closed.

Every act is one conditional commit in the schedule's partition: the schedule's version, the due time
of its timer, the state of its previous run; with the run it starts and the one it ends. So any node
may fire a schedule that is due, and none fires it twice (B4, F1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

import msgspec

from cluster.clock import Clock
from cluster.errors import ConditionFailed, Contended, Refused
from cluster.ids import new_run_id
from cluster.namespaces import NamespaceStore
from cluster.schedules import decisions, names, storage
from cluster.schedules.decisions import Cause, Decision, NewRun, Occasion
from cluster.schedules.endings import plan_end
from cluster.schedules.records import Definition, Schedule, Status
from cluster.schedules.storage import Snapshot
from cluster.store.store import Store
from cluster.store.transaction import Transaction, TransactionTooLarge
from cluster.workflows import machine
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.starts import Birth, StartRequest, plan_start, run_info
from cluster.workflows.storage import RunCache

DEFAULT_QUEUE: Final = "default"
ATTEMPTS: Final = 20
"""How often a decision is made anew because somebody else changed the schedule meanwhile."""
_BY_TIME: Final[Mapping[str, Any]] = {"caller": {"type": "server", "label": "Schedule"}}


class Acting:
    """Starts runs for schedules."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        namespaces: NamespaceStore,
        runs: RunCache,
        *,
        leases: LeaseTimes,
        random: Random,
    ) -> None:
        self._store = store
        self._clock = clock
        self._namespaces = namespaces
        self._runs = runs
        self._leases = leases
        self._random = random

    async def fire(self, timer: str, due_ms: int) -> None:
        """The timer of a schedule is due: act for its next occurrence."""
        namespace, schedule_id = names.parse_timer(timer)

        def expect(tx: Transaction) -> None:
            tx.expect_due(timer, due_ms)

        for _ in range(ATTEMPTS):
            snapshot = await storage.load(self._store, namespace, schedule_id)
            state = snapshot.schedule.state if snapshot else None
            if snapshot is None or state is None or state.next_due_ms != due_ms or state.next_fire_ms is None:
                await self._disarm(timer, due_ms)
                return
            occasion = self.occasion(namespace, schedule_id, Cause.DUE, state.next_fire_ms, "")
            try:
                await self._act_once(snapshot, occasion, expect)
                return
            except ConditionFailed as failed:
                if failed.condition[0] == "due":
                    return
        raise contended(schedule_id)

    async def freed(self, timer: str, due_ms: int) -> None:
        """A run of a schedule has closed: start what waited for it."""
        namespace, schedule_id = names.parse_timer(timer)

        def expect(tx: Transaction) -> None:
            tx.expect_due(timer, due_ms)
            tx.disarm(timer)

        for _ in range(ATTEMPTS):
            snapshot = await storage.load(self._store, namespace, schedule_id)
            buffered = snapshot.schedule.state.buffered if snapshot else ()
            occasion = self.occasion(
                namespace, schedule_id, Cause.DRAIN, buffered[0] if buffered else due_ms, f"drain {due_ms}"
            )
            try:
                if snapshot is None or not await self._act_once(snapshot, occasion, expect):
                    await self._disarm(timer, due_ms)
                return
            except ConditionFailed as failed:
                if failed.condition[0] == "due":
                    return
        raise contended(schedule_id)

    async def _disarm(self, timer: str, due_ms: int) -> None:
        """Remove a timer that stands for nothing, unless it has been set anew."""
        partition = names.partition_of_schedule(*names.parse_timer(timer), self._store.keys.partitions)
        tx = Transaction(partition, frees=True)
        tx.expect_due(timer, due_ms)
        tx.disarm(timer)
        with suppress(ConditionFailed):
            await self._store.commit(tx)

    def occasion(self, namespace: str, schedule_id: str, cause: Cause, fire_ms: int, salt: str) -> Occasion:
        keys, now_ms = self._store.keys, self._clock.now_ms()
        partition = names.partition_of_schedule(namespace, schedule_id, keys.partitions)
        return Occasion(
            cause=cause,
            fire_ms=fire_ms,
            now_ms=now_ms,
            previous_open=False,
            new_run=NewRun(
                names.workflow_id(namespace, schedule_id, fire_ms, keys.partitions, salt),
                new_run_id(partition, now_ms, self._random),
            ),
            context=_BY_TIME,
        )

    async def act(self, occasion: Occasion, namespace: str, schedule_id: str) -> dict[str, Any]:
        """What came of it, JSON-ready. Raises Refused ``schedule_not_found`` (404)."""
        for _ in range(ATTEMPTS):
            snapshot = existing(await storage.load(self._store, namespace, schedule_id), schedule_id)
            try:
                decision = await self._act_once(snapshot, occasion)
            except ConditionFailed:
                continue
            return decision.outcome if decision else {}
        raise contended(schedule_id)

    async def _act_once(
        self, snapshot: Snapshot, occasion: Occasion, expect: Callable[[Transaction], None] | None = None
    ) -> Decision | None:
        """Decide and commit; None when there is nothing to do. Raises ConditionFailed."""
        schedule = snapshot.schedule
        occasion = replace(occasion, previous_open=snapshot.open)
        if occasion.cause is Cause.DRAIN:
            decision = decisions.drain(schedule, occasion)
        else:
            decision = decisions.act(schedule, occasion)
        if decision is None:
            return None
        try:
            await self._commit(snapshot, decision, occasion, expect)
        except ConditionFailed as failed:
            if failed.condition[0] != "absent":
                raise
            decision = decisions.already_started(schedule, occasion)
            await self._commit(snapshot, decision, occasion, expect)
        except TransactionTooLarge as error:
            decision = decisions.fail(schedule, occasion, str(error))
            await self._commit(snapshot, decision, occasion, expect)
        return decision

    async def _commit(
        self,
        snapshot: Snapshot,
        decision: Decision,
        occasion: Occasion,
        expect: Callable[[Transaction], None] | None,
    ) -> None:
        tx = await self.transaction(snapshot.schedule, decision)
        if expect is not None:
            expect(tx)
        if decision.buffers:
            self._expect_open(tx, snapshot)
        if decision.ends_previous is not None:
            now_us = self._clock.now_us()
            await plan_end(tx, self._store, self._leases, snapshot.run_id, decision.ends_previous, now_us)
        birth: Birth | None = None
        if decision.starts is not None:
            birth = self._plan_start(tx, decision.definition, decision.starts)
        tx.frees = False
        await self._store.commit(tx)
        if birth is not None:
            self._runs.learn_commit(birth.run, birth.size)

    def _plan_start(self, tx: Transaction, definition: Definition, new_run: NewRun) -> Birth:
        action, now_us = definition.action, self._clock.now_us()
        request = StartRequest(
            namespace=definition.namespace,
            workflow_type=action.workflow_type,
            task_queue=action.task_queue or DEFAULT_QUEUE,
            input=action.input,
            memo=definition.memo,
            search_attributes=definition.search_attributes,
            execution_timeout_seconds=action.execution_timeout_seconds,
            run_timeout_seconds=action.run_timeout_seconds,
        )
        info = run_info(request, new_run.workflow_id, new_run.run_id, now_us)
        info = msgspec.structs.replace(info, schedule_id=definition.schedule_id)
        return plan_start(tx, self._store.keys, info, machine.start(info, now_us), self._leases)

    def _expect_open(self, tx: Transaction, snapshot: Snapshot) -> None:
        """The previous run still runs, so its end will come and free what waits."""
        keys = self._store.keys
        workflow = snapshot.schedule.state.latest_workflow_id or ""
        tx.expect_equal(keys.workflow(tx.partition, workflow), "run", snapshot.run_id)
        tx.expect_unset(keys.run(tx.partition, snapshot.run_id), "c")

    async def transaction(self, old: Schedule | None, decision: Decision) -> Transaction:
        namespace, schedule_id = decision.definition.namespace, decision.definition.schedule_id
        keys = self._store.keys
        partition = names.partition_of_schedule(namespace, schedule_id, keys.partitions)
        tx = Transaction(
            partition,
            ring=keys.schedule(partition, namespace, schedule_id),
            request_id=f"{self._random.getrandbits(64):016x}",
        )
        owner = await self._namespaces.get(namespace)
        storage.plan(tx, self._store, old, decision, owner.retention_days if owner else 1)
        return tx


def existing(snapshot: Snapshot | None, schedule_id: str) -> Snapshot:
    if snapshot is None or snapshot.schedule.state.status is Status.DELETED:
        raise not_found(schedule_id)
    return snapshot


def not_found(schedule_id: str) -> Refused:
    return Refused("schedule_not_found", "Schedule not found.", status=404, schedule_id=schedule_id)


def contended(schedule_id: str) -> Contended:
    return Contended(f"schedule {schedule_id} changes faster than this node can decide; try again")
