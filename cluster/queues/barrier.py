"""After the store was restarted or replaced: nodes first say what they run, then work is handed out (E5).

A replica that lagged behind may have lost the last hand-outs. Were they made again at once, two
workers would run one attempt. So a partition hands nothing out on a server it does not know until
every live node had its say, or for PAUSE_SECONDS. ``claim.lua`` and ``claim_steps.lua`` keep to that
whoever sends them, for the stamp of the server travels with every claim; a node that has not noticed
anything cannot slip by.

What a node runs is taken back where the task still is as it was handed out. Where it is not, the store
has lost more than the hand-out: the attempt is over, its output will be refused by its token.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgpack
import structlog
import trio

from cluster.errors import Fenced, StoreError
from cluster.queues.claims import NO_DUE
from cluster.store.connection import GENERATION
from cluster.store.store import Store

log = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 3.0
CHUNK: Final = 100
RETRY_SECONDS: Final = 0.25
KEEP_SECONDS: Final = 60.0
"""How long a lease of a poll is remembered: longer than a replica may lag and still be promoted."""
KEEP_LEASES: Final = 50_000


@dataclass(frozen=True, slots=True)
class Held:
    """One task that a node has handed out, as it should be held in the store.

    To a stream, or under ``token`` to a poll: then ``expires_at_ms``, ``call`` and, for a workflow task,
    ``registration`` and the ``version`` of the run it showed are as the claim had them.
    """

    partition: int
    task_id: str
    attempt: int
    delivery: int
    owner: str
    ticket: str = ""
    token: str = ""
    expires_at_ms: int = NO_DUE
    call: str = ""
    registration: str | None = None
    version: int = 0


class Reasserted(StrEnum):
    """What became of a task that a node said it runs."""

    KEPT = "kept"
    TAKEN = "taken"
    LOST = "lost"


_STATES: Final = {b"K": Reasserted.KEPT, b"T": Reasserted.TAKEN, b"L": Reasserted.LOST}


class RecentLeases:
    """The leases this node gave to polls a short while ago, oldest first."""

    def __init__(self) -> None:
        self._leases: OrderedDict[str, tuple[float, Held]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Held) -> None:
        """A lease was delivered; the last one of a task counts."""
        now = trio.current_time()
        self._leases.pop(lease.task_id, None)
        self._leases[lease.task_id] = (now, lease)
        while self._leases:
            task_id, (since, _) = next(iter(self._leases.items()))
            if since >= now - KEEP_SECONDS and len(self._leases) <= KEEP_LEASES:
                break
            del self._leases[task_id]

    def drop(self, task_id: str) -> None:
        """A lease went back."""
        self._leases.pop(task_id, None)

    def all(self) -> list[Held]:
        return [lease for _, lease in self._leases.values()]


@dataclass(frozen=True, slots=True)
class BarrierStatistics:
    """Counters since the start. ``passes``: how often everything was said; ``states`` of what was."""

    passes: int
    states: dict[Reasserted, int]


class Barrier:
    """One per node.

    ``session`` names the node's present session, ``live`` the sessions of all live nodes.
    """

    def __init__(
        self,
        store: Store,
        *,
        session: Callable[[], str],
        live: Callable[[], Collection[str]],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._store = store
        self._session = session
        self._live = live
        self._sources: list[Callable[[], Iterable[Held]]] = []
        self._hooks: list[Callable[[], None]] = []
        self._pause_ms = int(pause_seconds * 1000)
        self._changed = trio.Event()
        self._settled = trio.Event()
        self._states: Counter[Reasserted] = Counter()
        self._passes = 0

    def add(self, source: Callable[[], Iterable[Held]]) -> None:
        """``source()`` tells some of what this node has handed out."""
        self._sources.append(source)

    def on_said(self, hook: Callable[[], None]) -> None:
        """Call ``hook()`` each time everything was said."""
        self._hooks.append(hook)

    def ring(self) -> None:
        """A partition does not know its server, or the server has changed: say everything."""
        self._changed.set()
        if self._settled.is_set():
            self._settled = trio.Event()

    @property
    def standing(self) -> int | None:
        """A number that changes with every pass; None while something is still to be said.

        The change of a server is known before any reply of the new one is, so what was read between two
        equal numbers was read from a store that knows what this node runs.
        """
        return self._passes if self._settled.is_set() else None

    async def settled(self) -> None:
        """Wait until everything is said."""
        await self._settled.wait()

    def statistics(self) -> BarrierStatistics:
        return BarrierStatistics(self._passes, {state: self._states[state] for state in Reasserted})

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; at first every partition learns which server it is on."""
        self._store.on_new_generation(self.ring)
        # Only a command makes the lane look for its server again.
        self._store.on_reconnect(self.ring)
        await self._say()
        task_status.started()
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await self._say()

    async def _say(self) -> None:
        states: Counter[Reasserted] = Counter()
        async with trio.open_nursery() as nursery:
            for partition in range(self._store.keys.partitions):
                nursery.start_soon(self._say_to, partition, states)
        self._passes += 1
        self._states += states
        if not self._changed.is_set():
            self._settled.set()
        if states[Reasserted.TAKEN] or states[Reasserted.LOST]:
            log.warning("hand_outs_reasserted", **{str(state): number for state, number in states.items()})
        for hook in self._hooks:
            hook()

    async def _say_to(self, partition: int, states: Counter[Reasserted]) -> None:
        while True:
            session = self._session()
            held = [one for source in self._sources for one in source() if one.partition == partition]
            try:
                for start in range(0, max(len(held), 1), CHUNK):
                    chunk = held[start : start + CHUNK]
                    last = start + CHUNK >= len(held)
                    states.update(await self._reassert(partition, session, chunk, last=last))
            except Fenced:
                return  # what ran under that session is failed by others
            except StoreError as error:
                log.warning(
                    "hand_outs_not_reasserted", partition=partition, reason=error.reason, error=str(error)
                )
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def _reassert(
        self, partition: int, session: str, held: Sequence[Held], *, last: bool
    ) -> list[Reasserted]:
        """Raises StoreError."""
        keys = self._store.keys
        tasks = [
            [
                one.task_id,
                str(one.attempt),
                str(one.delivery),
                one.owner,
                one.token,
                one.expires_at_ms,
                one.ticket,
                one.call,
                one.registration if one.registration is not None else False,
                one.version,
            ]
            for one in held
        ]
        request = [keys.base(partition), [*self._live()], tasks, int(last)]
        reply = await self._store.run(
            "reassert",
            [keys.touch(partition)],
            [
                keys.prefix,
                session,
                GENERATION,
                self._pause_ms,
                msgpack.packb(request, use_bin_type=False),
            ],
            idempotent=True,
            stamped=True,
        )
        if reply == b"FENCED":
            raise Fenced(f"session {session} was buried")
        return [_STATES[state] for state in reply]
