"""The loop behind every change of a run: load, decide, commit; again if somebody was faster.

What this node remembers of a run saves the read, never a check: a commit or refusal that rests on
memory is tried again on what the store holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import trio

from cluster.clock import Clock
from cluster.errors import ConditionFailed, Contended, Refused
from cluster.ids import partition_of_run
from cluster.store.store import Store
from cluster.store.transaction import Transaction, TransactionTooLarge
from cluster.workflows import guards, machine
from cluster.workflows.changes import Changes
from cluster.workflows.planning import LeaseTimes, plan
from cluster.workflows.records import Run
from cluster.workflows.storage import RunCache, Snapshot, changed_run, item_field, load
from cluster.workflows.turns import Turns

ATTEMPTS: Final = 40
"""How often a decision is made anew because somebody else changed the run meanwhile."""
EAGER_ATTEMPTS: Final = 3
"""After so many a decision pauses first, for a time drawn anew, or two nodes could go on in step."""
PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Step:
    """One decision about one run.

    ``decide`` gets what was read and answers with changes, with the outcome alone when nothing
    changes, or with None when there is nothing to do.
    ``expect`` adds the conditions that go beyond the run's version.
    """

    run_id: str
    decide: Callable[[Snapshot], Changes | dict[str, Any] | None]
    expect: Callable[[Transaction, Snapshot], None]
    task_id: str = ""
    fields: tuple[str, ...] = ()
    whole: bool = False
    answer: str = ""
    """The kept answer to a client to read along; such a run is always read anew."""
    ends: str = ""
    attempt: int | str | None = None
    """The attempt that the worker named: an unknown run is refused in the words for an unknown task."""
    orphan: Callable[[], Awaitable[object]] | None = None
    """What to do when the run is gone; None: refuse."""
    moot: str = ""
    """The condition whose failure says that somebody else has done it already."""


class Decider:
    """Makes decisions about runs; the parts of the engine build on it."""

    def __init__(
        self, store: Store, clock: Clock, runs: RunCache, leases: LeaseTimes, random: Random
    ) -> None:
        self._store = store
        self._clock = clock
        self._runs = runs
        self._leases = leases
        self._random = random
        # Ids of commits only have to be unique; the system's own source is a call of the kernel each time.
        self._request_ids = Random(random.getrandbits(128))
        self._turns = Turns()

    async def decide(self, step: Step, *, fresh: bool = False) -> dict[str, Any]:
        """Decide until a commit holds; returns the outcome for the caller.

        ``fresh`` reads the run even when this node remembers it. Raises what the decision raises.
        """
        async with self._turns.turn(step.run_id):
            return await self._decide(step, remembered=not fresh and not step.answer)

    async def _decide(self, step: Step, *, remembered: bool) -> dict[str, Any]:
        for attempt in range(ATTEMPTS):
            if attempt >= EAGER_ATTEMPTS:
                await trio.sleep(self._random.uniform(0, PAUSE_SECONDS))
            snapshot = None
            if remembered:
                snapshot = self._runs.guess(
                    step.run_id, task_id=step.task_id, fields=step.fields, whole=step.whole
                )
            if snapshot is None:
                remembered = False
                snapshot = await load(
                    self._store,
                    step.run_id,
                    task_id=step.task_id,
                    fields=step.fields,
                    whole=step.whole,
                    answer=step.answer,
                )
            if snapshot is None:
                if step.orphan is None:
                    raise guards.task_not_found(step.ends, step.attempt)
                await step.orphan()
                return {}
            try:
                changes = step.decide(snapshot)
                if isinstance(changes, Changes):
                    await self._commit(step, snapshot, changes)
            except ConditionFailed as failed:
                self._runs.forget(step.run_id, step.task_id)
                if failed.condition[0] == step.moot:
                    return {}
            except Refused:
                if not snapshot.cached:
                    raise
            else:
                if changes is None:
                    return {}
                if isinstance(changes, dict):
                    return changes
                if changes.refusal is not None:
                    raise changes.refusal
                return dict(changes.outcome)
            remembered = False
        raise contended(step.run_id)

    async def _commit(self, step: Step, snapshot: Snapshot, changes: Changes) -> None:
        """Stores a decision and, if the run was a child and is over, what its parent makes of that."""
        run = snapshot.run
        partition = partition_of_run(step.run_id) or 0
        tx = self.transaction(partition, step.run_id)
        tx.expect_equal(self._store.keys.run(partition, step.run_id), "v", run.version)
        step.expect(tx, snapshot)
        parent = await self._parent(run, changes)
        try:
            size = plan(tx, self._store.keys, run, changes, self._leases)
            frees = tx.frees
            if parent is not None:
                parent_run, parent_changes = parent
                parent_size = plan(tx, self._store.keys, parent_run.run, parent_changes, self._leases)
                tx.frees = frees and tx.frees
                parent_id = parent_run.run.info.run_id
                tx.expect_equal(self._store.keys.run(partition, parent_id), "v", parent_run.run.version)
                tx.publish(self._store.keys.events_channel(parent_id), "")
                expect_workflow_task(tx, parent_run)
            await self._store.commit(tx)
        except TransactionTooLarge as error:
            raise Refused("payload_too_large", str(error), status=422) from error
        self._runs.forget_lease(step.ends)
        self._runs.learn_commit(changed_run(run, changes), size)
        if parent is not None:
            self._runs.learn_commit(changed_run(parent_run.run, parent_changes), parent_size)

    async def _parent(self, run: Run, changes: Changes) -> tuple[Snapshot, Changes] | None:
        """The parent of a child that is over, and how the end changes it; None: nobody waits for it."""
        parent = run.info.parent
        if changes.report is None or parent is None:
            return None
        field = item_field("c", parent.step)
        snapshot = await load(self._store, parent.run_id, fields=(field,))
        if snapshot is None:
            return None
        told = machine.child_over(
            snapshot.run, parent.step, changes.report, snapshot.workflow_task, self._clock.now_us()
        )
        return None if told is None else (snapshot, told)

    def transaction(self, partition: int, run_id: str) -> Transaction:
        request_id = f"{self._request_ids.getrandbits(64):016x}"
        return Transaction(partition, ring=self._store.keys.run(partition, run_id), request_id=request_id)

    def now_ms(self, snapshot: Snapshot) -> int:
        return snapshot.now_ms or self._clock.now_ms()


def expect_workflow_task(tx: Transaction, snapshot: Snapshot) -> None:
    """What was decided depends on whether the workflow task is leased: rule 4.8.2."""
    state = snapshot.run.state
    if state.task_open and not state.task_waiting:
        tx.expect_task_state(snapshot.workflow_task.task_id, snapshot.workflow_task.state)


def contended(run_id: str) -> Contended:
    return Contended(f"run {run_id} changes faster than this node can decide; try again")
