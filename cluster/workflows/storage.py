"""How runs lie in the store, and what a node remembers of them.

Run hash (``keys.run``): ``v`` version, ``i`` info, ``s`` state, open items (``a:<step>`` activities,
``t:<step>`` timers, ``c:<step>`` children, ``u:<number>`` updates), ``wt`` the open workflow task ("w3"
or ""), ``sk`` who keeps its history (see ``kept_histories``), ``c`` status once closed, ``rids`` the last
request ids, ``arch`` set when archived, and ``wid``, ``bk``, ``type`` for listings.

The cache saves the read before a decision when this node saw the run last. It is only a guess:
every commit is conditional on the version and on the task records it assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec
import orjson
from cachetools import TTLCache

from cluster.ids import partition_of_run
from cluster.queues.claims import Claim
from cluster.records import MSGPACK, Reader
from cluster.store.store import Store
from cluster.workflows.changes import Changes
from cluster.workflows.records import (
    ActivityState,
    ChildState,
    Lease,
    Run,
    RunInfo,
    RunState,
    TimerState,
    UpdateState,
)

CACHE_BYTES = 32 * 1024 * 1024
CACHED_LEASES = 16_384
CACHED_SECONDS = 60

decode_info = Reader(RunInfo, MSGPACK)
decode_state = Reader(RunState, MSGPACK)
_activity = Reader(ActivityState, MSGPACK)
_timer = Reader(TimerState, MSGPACK)
_child = Reader(ChildState, MSGPACK)
_update = Reader(UpdateState, MSGPACK)
encode_record = MSGPACK.encode


def item_field(kind: str, step: int) -> str:
    """Field of an open item: ``kind`` is "a" for an activity, "t" timer, "c" child, "u" update."""
    return f"{kind}:{step}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as one moment showed it.

    ``workflow_task`` is the record of its open workflow task, ``task`` of the task of interest
    (state "" when there is none). ``whole`` says that every open item is present.
    """

    run: Run
    workflow_task: Lease
    task: Lease
    whole: bool
    archived: bool = False
    now_ms: int = 0
    cached: bool = False
    answer: dict[str, Any] | None = None
    """The answer to a client that was asked for, if it is kept."""


def _lease(row: Sequence[bytes], task_id: str) -> Lease:
    if not row:
        return Lease(task_id=task_id, state="")
    _, state, attempt, delivery, owner, leased, expires, heartbeat, progress, registration = row
    return Lease(
        task_id=task_id,
        state=state.decode(),
        attempt=int(attempt),
        delivery=int(delivery),
        owner=owner.decode(),
        leased_at_ms=int(leased or 0),
        expires_at_ms=int(expires or 0),
        heartbeat_at_ms=int(heartbeat or 0),
        progress=orjson.loads(progress) if progress else None,
        registration=registration.decode(),
    )


async def load(
    store: Store,
    run_id: str,
    *,
    task_id: str = "",
    fields: Iterable[str] = (),
    whole: bool = False,
    answer: str = "",
) -> Snapshot | None:
    """Read a run from the store, or None when there is none (or the id is no run id)."""
    partition = partition_of_run(run_id)
    if partition is None or partition >= store.keys.partitions:
        return None
    reply = await store.run(
        "load",
        [store.keys.run(partition, run_id)],
        [store.keys.base(partition), run_id, task_id, "all" if whole else "", answer, *fields],
        idempotent=True,
    )
    return None if reply is None else snapshot_of(reply, task_id=task_id, whole=whole)


def snapshot_of(reply: Sequence[Any], *, task_id: str = "", whole: bool = False) -> Snapshot:
    """What ``load.lua`` returned of a run that there is."""
    now, version, info, state, archived, items, workflow_task, task, kept = reply
    activities: dict[int, ActivityState] = {}
    timers: dict[int, TimerState] = {}
    children: dict[int, ChildState] = {}
    updates: dict[int, UpdateState] = {}
    for name, value in zip(items[::2], items[1::2], strict=True):
        kind, _, number = name.decode().partition(":")
        match kind:
            case "a":
                activities[int(number)] = _activity(value)
            case "t":
                timers[int(number)] = _timer(value)
            case "c":
                children[int(number)] = _child(value)
            case _:
                updates[int(number)] = _update(value)
    run = Run(
        info=decode_info(info),
        state=decode_state(state),
        version=int(version),
        activities=activities,
        timers=timers,
        children=children,
        updates=updates,
    )
    open_task = f"{run.info.run_id}-w{run.state.task_index}"
    return Snapshot(
        run=run,
        workflow_task=_lease(workflow_task, open_task),
        task=_lease(task, task_id),
        whole=whole or is_whole(run),
        archived=bool(archived),
        now_ms=int(now),
        answer=orjson.loads(kept) if kept else None,
    )


def is_whole(run: Run) -> bool:
    """Whether every open item of the run is present."""
    state = run.state
    present = len(run.activities) + len(run.timers) + len(run.children) + len(run.updates)
    wanted = len(state.activities) + len(state.timers) + len(state.children) + len(state.updates)
    return present == wanted


@dataclass(slots=True)
class _Cached:
    run: Run
    size: int = field(default=0)


def claimed_lease(claim: Claim, owner: str, registration: str = "") -> Lease:
    """The record of a task that was just handed out."""
    return Lease(
        task_id=claim.task_id,
        state="l",
        attempt=claim.attempt,
        delivery=claim.delivery,
        owner=owner,
        leased_at_ms=claim.leased_at_ms,
        expires_at_ms=claim.expires_at_ms,
        registration=registration,
    )


class RunCache:
    """Runs and leases this node handled last, within CACHED_SECONDS: others may have gone on with them."""

    def __init__(self, max_bytes: int = CACHE_BYTES, timer: Callable[[], float] = monotonic) -> None:
        """``timer`` gives seconds."""
        self._runs: TTLCache[str, _Cached] = TTLCache(
            max_bytes, CACHED_SECONDS, timer, getsizeof=lambda cached: cached.size
        )
        self._leases: TTLCache[str, Lease] = TTLCache(CACHED_LEASES, CACHED_SECONDS, timer)

    def learn_claim(self, claim: Claim, lease: Lease, info: RunInfo, state: RunState, version: int) -> None:
        """A workflow task was handed out here, with these records of its run."""
        known = self._runs.get(info.run_id)
        if known is None or known.run.version != version:
            self._put(Run(info=info, state=state, version=version), len(claim.extra[1]) + len(claim.extra[2]))
        self._leases[claim.task_id] = lease

    def learn_activity_claim(self, claim: Claim, owner: str) -> None:
        self._leases[claim.task_id] = claimed_lease(claim, owner)

    def _put(self, run: Run, size: int) -> None:
        run_id = run.info.run_id
        self._runs.pop(run_id, None)
        if size < self._runs.maxsize:
            self._runs[run_id] = _Cached(run, size)

    def learn_commit(self, run: Run, size: int) -> None:
        """This node committed ``run`` (its items are those it knew plus what it changed)."""
        if run.state.status.closed:
            self._runs.pop(run.info.run_id, None)
        else:
            self._put(run, size)

    def forget(self, run_id: str, task_id: str = "") -> None:
        self._runs.pop(run_id, None)
        self._leases.pop(task_id, None)

    def forget_lease(self, task_id: str) -> None:
        self._leases.pop(task_id, None)

    def guess(
        self, run_id: str, *, task_id: str = "", fields: Iterable[str] = (), whole: bool = False
    ) -> Snapshot | None:
        """What a read would probably show, or None when this node does not know enough."""
        cached = self._runs.get(run_id)
        if cached is None:
            return None
        run = cached.run
        complete = is_whole(run)
        if not complete and (whole or not all(_has(run, name) for name in fields)):
            return None
        task = self._leases.get(task_id, Lease(task_id=task_id, state=""))
        if task_id and not task.state:
            return None
        open_id = f"{run_id}-w{run.state.task_index}"
        state = "" if not run.state.task_open or run.state.task_waiting else "r"
        workflow_task = (
            self._leases.get(open_id, Lease(task_id=open_id, state=state))
            if state
            else Lease(task_id=open_id, state="")
        )
        return Snapshot(run, workflow_task, task, whole=complete, cached=True)


def _has(run: Run, name: str) -> bool:
    kind, _, number = name.partition(":")
    items: dict[str, dict[int, Any]] = {"a": run.activities, "t": run.timers, "c": run.children}
    return int(number) in items.get(kind, run.updates)


def changed_run(run: Run, changes: Changes) -> Run:
    """``run`` after a commit: next version, changed items in, ended items out."""
    return msgspec.structs.replace(
        run,
        info=changes.info or run.info,
        state=changes.state,
        version=run.version + 1,
        activities=_merged(run.activities, changes.activities),
        timers=_merged(run.timers, changes.timers),
        children=_merged(run.children, changes.children),
        updates=_merged(run.updates, changes.updates),
    )


def _merged(old: dict[int, Any], changes: dict[int, Any]) -> dict[int, Any]:
    merged = {**old, **changes}
    return {step: item for step, item in merged.items() if item is not None}
