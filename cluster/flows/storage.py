"""How runs of flows lie in the store, and what a node remembers of them.

Run hash (``keys.run``): ``fl`` marks a flow, ``v`` version, ``i`` info, ``s`` state, ``at``
attributes, ``x:<k>`` open step executions, ``c`` set once nothing may be handed out any more,
``by`` the request that committed last, ``st``, ``type`` and ``wid`` for lists, ``rids`` the last request
ids. ``flow_keys`` names every key that outlives the run.

The memory saves the read before a decision when this node changed the run last. It is a guess:
every commit is conditional on the version and on the task it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import msgpack
import msgspec

from cluster.flows.changes import Changes
from cluster.flows.records import FlowInfo, FlowRun, FlowState, StepState, Task
from cluster.ids import partition_of_run
from cluster.records import MSGPACK, Reader
from cluster.store.keys import Keys
from cluster.store.store import Store

CACHE_BYTES: Final = 32 * 1024 * 1024
CACHED_RUN_BYTES: Final = 1024 * 1024
CACHED_SECONDS: Final = 60.0
"""What is remembered of one run at most; a run that grows over it is read anew."""

decode_info = Reader(FlowInfo, MSGPACK)
decode_state = Reader(FlowState, MSGPACK)
_step = Reader(StepState, MSGPACK)
_attributes = msgspec.msgpack.Decoder(dict[str, bytes])

encode_record = MSGPACK.encode


def step_field(k: int) -> str:
    """Field of an open step execution."""
    return f"x:{k}"


def step_task_id(run_id: str, k: int) -> str:
    """Task id of a step execution, whichever method runs."""
    return f"{run_id}-s{k}"


def flow_keys(keys: Keys, info: FlowInfo) -> tuple[str, ...]:
    """Keys that a closed run leaves behind, for whoever ends its retention.

    Besides, it is a member of ``keys.flows`` and ``keys.closed_flows``; and ``keys.flow`` goes with
    it if that still names it as the current run.
    """
    partition = partition_of_run(info.run_id) or 0
    return (keys.run(partition, info.run_id), keys.steps(partition, info.run_id))


@dataclass(slots=True)
class Wants:
    """What to read of a run beside its state."""

    steps: set[int] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    messages: dict[str, int] = field(default_factory=dict)
    every_step: bool = False
    every_task: bool = False

    def include(self, other: Wants) -> None:
        """Want what ``other`` wants, too."""
        self.steps |= other.steps
        self.tasks |= other.tasks
        for name, count in other.messages.items():
            self.messages[name] = max(count, self.messages.get(name, 0))
        self.every_step |= other.every_step
        self.every_task |= other.every_task


class Picture(msgspec.Struct, frozen=True):
    """A run as one moment showed it, or as this node remembers or expects it (``now_ms`` 0)."""

    run: FlowRun
    tasks: dict[int, Task] = {}
    messages: dict[str, tuple[bytes, ...]] = {}
    now_ms: int = 0

    @property
    def sure(self) -> bool:
        return self.now_ms > 0

    def after(self, changes: Changes, version: str) -> Picture:
        """What a commit of ``changes`` leaves as ``version``; no longer sure. Other tasks are taken to
        be as they were.
        """
        steps = dict(self.run.steps)
        for k, step in changes.steps.items():
            if step is None:
                steps.pop(k, None)
            else:
                steps[k] = step
        run = msgspec.structs.replace(
            self.run,
            state=changes.state,
            version=version,
            attributes=self.run.attributes if changes.attributes is None else changes.attributes,
            steps=steps,
        )
        tasks = {k: task for k, task in self.tasks.items() if k not in changes.steps} if self.tasks else {}
        return Picture(run, tasks)


async def load(store: Store, run_id: str, wants: Wants) -> Picture | None:
    """Read a run from the store; None when there is none (or the id is no run of a flow)."""
    keys = store.keys
    partition = partition_of_run(run_id)
    if partition is None or partition >= keys.partitions:
        return None
    ks = sorted(wants.tasks)
    fields: str | list[str] = "all" if wants.every_step else [step_field(k) for k in sorted(wants.steps)]
    channels: list[str | int] = []
    for name, count in wants.messages.items():
        channels += [keys.channel(partition, run_id, name), count]
    request = msgpack.packb(
        [fields, [step_task_id(run_id, k) for k in ks], channels],
        use_bin_type=False,
        unicode_errors="surrogatepass",
    )
    reply = await store.run(
        "flow", [keys.run(partition, run_id)], [keys.base(partition), request], idempotent=True
    )
    if reply is None:
        return None
    now, version, info, state, attributes, steps, tasks, messages = reply
    run = FlowRun(
        info=decode_info(info),
        state=decode_state(state),
        version=version.decode(),
        attributes=_attributes.decode(attributes) if attributes else {},
        steps={int(name[2:]): _step(value) for name, value in zip(steps[::2], steps[1::2], strict=True)},
    )
    picture = Picture(
        run=run,
        tasks={k: _task(row) for k, row in zip(ks, tasks, strict=True)},
        messages={name: tuple(values) for name, values in zip(wants.messages, messages, strict=True)},
        now_ms=int(now),
    )
    if wants.every_task and not wants.tasks.issuperset(run.state.open):
        wants.tasks |= set(run.state.open)
        return await load(store, run_id, wants)
    return picture


def _task(row: list[Any]) -> Task:
    state, attempt, delivery, owner, leased, heartbeat, checkpoint, session = row
    return Task(
        state=state.decode(),
        attempt=int(attempt or 0),
        delivery=int(delivery or 0),
        owner=owner.decode(errors="surrogatepass"),
        leased_at_ms=int(leased or 0),
        heartbeat_at_ms=int(heartbeat or 0),
        checkpoint=checkpoint,
        session=session.decode(),
    )


class _Cached(msgspec.Struct):
    run: FlowRun
    size: int
    changed: float = 0.0


class FlowCache:
    """Runs this node changed within CACHED_SECONDS, the last ones within ``max_bytes``. Other nodes may have
    gone on with them, or ended them; nobody tells.

    Every step comes by here, and a cache of a library takes a dozen calls for each of ours.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._runs: dict[str, _Cached] = {}
        """Last changed last."""
        self._size = 0

    def learn(self, run: FlowRun, written: int) -> None:
        """This node committed ``run`` and wrote about ``written`` bytes of it."""
        run_id = run.info.run_id
        cached = self._runs.pop(run_id, None) or _Cached(run, 0)
        self._size -= cached.size
        cached.run = run
        cached.size += written
        if not run.state.status.closed and cached.size <= CACHED_RUN_BYTES:
            cached.changed = now = monotonic()
            self._runs[run_id] = cached
            self._size += cached.size
            while self._size > self._max_bytes:
                self.forget(next(iter(self._runs)))
            # At most one is added here, so one at a time is enough.
            oldest, first = next(iter(self._runs.items()), (run_id, cached))
            if first.changed < now - CACHED_SECONDS:
                self.forget(oldest)

    def forget(self, run_id: str) -> None:
        cached = self._runs.pop(run_id, None)
        if cached is not None:
            self._size -= cached.size

    def guess(self, run_id: str) -> Picture | None:
        """What this node remembers of a run."""
        cached = self._runs.get(run_id)
        return None if cached is None else Picture(cached.run)
