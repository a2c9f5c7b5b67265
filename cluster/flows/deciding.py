"""The loop behind every change of a flow: read, decide, commit; again if somebody was faster.

It takes any number of jobs at once. They are decided one after the other, each on what the one before
it leaves, and travel as one script call in which every commit stands for itself: a stale or refused job
costs its neighbours nothing. On a Redis Cluster that is one call for each partition.

What this node remembers of a run saves the read, never a check: a refusal that rests on memory, or
on a commit that is still under way, is decided again on what the store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec
import trio

from cluster.clock import Clock
from cluster.errors import ConditionFailed, Contended, Refused, StoreError
from cluster.flows.changes import Changes, NotLoaded, View
from cluster.flows.limits import FlowLimits
from cluster.flows.planning import Placement, Planned, Taker, plan
from cluster.flows.storage import FlowCache, Picture, Wants, load
from cluster.flows.turns import Turns
from cluster.ids import partition_of_run
from cluster.queues.hand_outs import HandedOut
from cluster.store.store import Store
from cluster.store.transaction import Transaction, TransactionTooLarge

ROUNDS: Final = 40
"""How often a decision is made anew: others changed the run meanwhile, or more had to be read."""
CALM_ROUNDS: Final = 5
PAUSE_SECONDS: Final = 0.02
"""After so many rounds nodes that change the same flow stop running into each other all the time."""
LARGE_BYTES: Final = 1024 * 1024
LARGE_OPERATIONS: Final = 500
"""From here on a commit is measured before it travels with others, which it must not take down."""


class Job(msgspec.Struct, frozen=True):
    """One decision about one run.

    ``decide`` gets what was read and the time (ms) and answers with changes. ``expect`` adds the
    conditions that go beyond the run's version, and may add operations. ``task`` is the execution
    whose task record the decision looks at, 0 for none; ``moot`` names the condition, or the key one
    looks at, whose failure says that it was done already. ``outright`` fills a commit that needs no
    decision unless it fails.
    """

    run_id: str
    decide: Callable[[View, int], Changes]
    expect: Callable[[Transaction, View], None] | None = None
    task: int = 0
    fresh: bool = False
    moot: str = ""
    taker: Taker | None = None
    """The slot that the decision frees, if it may be given a step of the same run."""
    outright: Callable[[Transaction], None] | None = None


class Done(msgspec.Struct, frozen=True):
    """How a job ended. ``changes`` is None when there was nothing left to do.

    ``handed_out`` is the step that went to the job's slot. ``unsure``: one may have, and the reply that would
    tell was lost.
    """

    changes: Changes | None
    handed_out: HandedOut | None = None
    unsure: bool = False


class _Pending(msgspec.Struct, eq=False):
    job: Job
    partition: int
    fresh: bool
    outright: bool
    wants: Wants | None = None
    """What was missing so far."""
    result: Done | Refused | None = None

    def extend(self, more: NotLoaded) -> None:
        """Want what a decision missed, too."""
        self.wants = self.wants or Wants()
        _extend(self.wants, more, self.job)


class _Commit(msgspec.Struct, frozen=True, eq=False):
    pending: _Pending
    tx: Transaction
    changes: Changes | None
    after: Picture | None
    planned: Planned


class FlowDecider:
    """Makes decisions about flows; the parts of the engine build on it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Random,
        *,
        limits: FlowLimits | None = None,
        placement: Placement | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._random = random
        # Tells commits apart, which takes no secret: a source that asks the system each time would be slow.
        self._tokens = Random(random.getrandbits(128))
        self._limits = limits or FlowLimits()
        self._placement = placement or Placement()
        self._runs = FlowCache()
        self._turns = Turns()

    async def decide(self, job: Job) -> Done:
        """Decide until a commit holds. Raises what the decision refuses, StoreError."""
        (result,) = await self.decide_all([job])
        if isinstance(result, Refused):
            raise result
        if result.changes is not None and result.changes.refusal is not None:
            raise result.changes.refusal
        return result

    async def decide_all(self, jobs: Sequence[Job]) -> list[Done | Refused]:
        """Decide every job; the results in order. Raises StoreError once all partitions were tried."""
        pending: list[_Pending] = []
        parts: dict[int, list[_Pending]] = {}
        for job in jobs:
            partition = partition_of_run(job.run_id)
            one = _Pending(job, partition or 0, job.fresh, job.outright is not None)
            pending.append(one)
            if partition is None or partition >= self._store.keys.partitions:
                one.result = run_not_found(job.run_id)
            else:
                parts.setdefault(partition if self._store.clustered else 0, []).append(one)
        failures: list[StoreError] = []
        if len(parts) == 1:
            (part,) = parts.values()
            await self._try_part(part, failures)
        else:
            async with trio.open_nursery() as nursery:
                for part in parts.values():
                    nursery.start_soon(self._try_part, part, failures)
        if failures:
            raise failures[0]
        return [run_not_found(one.job.run_id) if one.result is None else one.result for one in pending]

    async def _try_part(self, part: list[_Pending], failures: list[StoreError]) -> None:
        try:
            async with self._turns.of(one.job.run_id for one in part):
                await self._go_round(part)
        except StoreError as error:
            failures.append(error)

    async def _go_round(self, part: list[_Pending]) -> None:
        for number in range(ROUNDS):
            waiting = [one for one in part if one.result is None]
            if not waiting:
                return
            if number >= CALM_ROUNDS:
                await trio.sleep(self._random.uniform(0, PAUSE_SECONDS))
            pictures = await self._read(waiting)
            await self._commit(self._decide(waiting, pictures))
        if any(one.result is None for one in part):
            raise Contended("a flow changes faster than this node can decide; try again")

    # -- reading ----------------------------------------------------------------------------

    async def _read(self, waiting: Sequence[_Pending]) -> dict[str, Picture | None]:
        """What to decide on, by run: remembered where that may do, else read."""
        wants: dict[str, Wants] = {}
        pictures: dict[str, Picture | None] = {}
        for one in waiting:
            if one.outright:
                continue
            run_id = one.job.run_id
            guess = None if one.fresh or run_id in wants else self._runs.guess(run_id)
            if guess is not None:
                pictures.setdefault(run_id, guess)
                continue
            wanted = wants.setdefault(run_id, Wants())
            if one.job.task:
                wanted.steps.add(one.job.task)
                wanted.tasks.add(one.job.task)
            if one.wants is not None:
                wanted.include(one.wants)
        failures: list[StoreError] = []

        async def read(run_id: str) -> None:
            try:
                pictures[run_id] = await load(self._store, run_id, wants[run_id])
            except StoreError as error:
                failures.append(error)

        if len(wants) == 1:
            await read(next(iter(wants)))
        elif wants:
            async with trio.open_nursery() as nursery:
                for run_id in wants:
                    nursery.start_soon(read, run_id)
        if failures:
            raise failures[0]
        return pictures

    # -- deciding ---------------------------------------------------------------------------

    def _decide(self, waiting: Sequence[_Pending], pictures: dict[str, Picture | None]) -> list[_Commit]:
        commits: list[_Commit] = []
        held_up: set[str] = set()
        now_ms = self._clock.now_ms()
        for one in waiting:
            job = one.job
            if one.outright and job.outright is not None:
                tx = self._transaction(one.partition, job.run_id)
                job.outright(tx)
                commits.append(_Commit(one, tx, None, None, Planned(0)))
                continue
            picture = pictures.get(job.run_id)
            if picture is None:
                self._runs.forget(job.run_id)
                one.result = run_not_found(job.run_id)
            elif job.run_id not in held_up:
                commit = self._decide_one(one, picture, max(picture.now_ms, now_ms))
                if commit is not None:
                    commits.append(commit)
                    pictures[job.run_id] = commit.after
                elif one.result is None:
                    # Those behind it must not overtake, nor rest on what was not decided.
                    held_up.add(job.run_id)
        return commits

    def _decide_one(self, one: _Pending, picture: Picture, now_ms: int) -> _Commit | None:
        job, partition = one.job, one.partition
        view = _view(picture, job)
        try:
            changes = job.decide(view, now_ms)
        except NotLoaded as more:
            one.fresh = True
            one.extend(more)
            return None
        except Refused as refused:
            if picture.sure:
                one.result = refused
            one.fresh = True
            return None
        tx = self._transaction(partition, job.run_id)
        tx.expect_equal(tx.ring, "v", picture.run.version)
        if job.expect is not None:
            job.expect(tx, view)
        try:
            planned = plan(tx, self._store.keys, picture.run, changes, self._placement, job.taker)
            if planned.written > LARGE_BYTES or len(tx.operations) > LARGE_OPERATIONS:
                tx.pack()
        except TransactionTooLarge as error:
            one.result = Refused("payload_too_large", str(error), status=422)
            return None
        return _Commit(one, tx, changes, picture.after(changes, tx.request_id), planned)

    def _transaction(self, partition: int, run_id: str) -> Transaction:
        request_id = f"{self._tokens.getrandbits(64):016x}"
        return Transaction(partition, ring=self._store.keys.run(partition, run_id), request_id=request_id)

    # -- committing -------------------------------------------------------------------------

    async def _commit(self, commits: Sequence[_Commit]) -> None:
        if not commits:
            return
        try:
            results = await self._store.commit_many([commit.tx for commit in commits])
        except StoreError:
            for commit in commits:
                self._runs.forget(commit.pending.job.run_id)
            raise
        for commit, result in zip(commits, results, strict=True):
            one = commit.pending
            if isinstance(result, ConditionFailed):
                self._runs.forget(one.job.run_id)
                if one.job.moot and one.job.moot in result.condition[:2]:
                    one.result = Done(None)
                one.fresh = True
                one.outright = False
                continue
            unsure = not result and commit.planned.offered is not None
            one.result = Done(commit.changes, commit.planned.handed_out(commit.tx), unsure)
            if commit.after is not None:
                self._learn(commit, applied_now=result)

    def _learn(self, commit: _Commit, *, applied_now: bool) -> None:
        if commit.after is None:
            return
        if applied_now:
            self._runs.learn(commit.after.run, commit.planned.written)
        else:
            self._runs.forget(commit.pending.job.run_id)


def _view(picture: Picture, job: Job) -> View:
    handed_out, still_open = None, picture.run.state.open
    if (picture.tasks or not still_open) and picture.tasks.keys() >= frozenset(still_open):
        handed_out = frozenset(k for k, task in picture.tasks.items() if task.state == "l")
    return View(
        run=picture.run,
        messages=picture.messages,
        task=picture.tasks.get(job.task),
        handed_out=handed_out,
    )


def _extend(wants: Wants, more: NotLoaded, job: Job) -> None:
    # What is missing again although it was asked for came with changes of others: ask for plenty.
    wants.every_step = wants.every_step or (bool(more.steps) and bool(wants.steps))
    wants.steps.update(more.steps)
    for name, count in more.messages.items():
        wants.messages[name] = 2 * count if name in wants.messages else count
    if more.task:
        wants.tasks.add(job.task)
    if more.handed_out:
        wants.every_step = wants.every_task = True


def run_not_found(run_id: str) -> Refused:
    return Refused("run_not_found", f"There is no run {run_id!r} of a flow.", status=404, run_id=run_id)
