"""What the limits let a node's slots take: one permit for each flow type, asked for before a claim.

A flow type is a queue for the gate. One that is refused is left out of claims until there may be room:
a freed lease is told, the minute's end is waited for, and once a second everybody may try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final

import trio

from cluster.admission.gate import Gate, Permit
from cluster.ids import TaskKind
from cluster.queues.claims import Refusal
from cluster.queues.slot_claims import StepClaims
from cluster.store.keys import QueueName

LOOK_AGAIN_SECONDS: Final = 0.25
MINUTE_JITTER_SECONDS: Final = 0.2

Permits = dict[QueueName, Permit]
"""By the queue of the flow type. A queue without a permit may not be taken from."""


class StepPermits:
    """One per node. ``room`` is called when a flow type that was refused may be asked for again."""

    def __init__(self, gate: Gate, room: Callable[[], None], random: Random) -> None:
        self._gate = gate
        self._tell = room
        self._random = random
        self._alarms: set[QueueName] = set()
        self._rooms = 0
        self._nursery: trio.Nursery | None = None
        self.refused: frozenset[QueueName] = frozenset()
        """Flow types that are left out for now."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hear of room until cancelled."""
        self._gate.on_room(self._on_room)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def terms(self, queues: Iterable[QueueName]) -> Permits:
        """Free permits of the queues that have no limits, and permits for nothing of those that have."""
        return {
            queue: await self._gate.terms(queue.namespace, TaskKind.STEP, queue.queue)
            for queue in dict.fromkeys(queues)
        }

    async def ask(self, wanted: Mapping[QueueName, int]) -> Permits:
        """Permits to take from ``wanted`` (queue: how many at most); the queues that got none are refused.

        Raises StoreError; then what was granted is given back.
        """
        permits: Permits = {}
        try:
            for queue, number in wanted.items():
                rooms = self._rooms
                permit = await self._gate.ask(queue.namespace, TaskKind.STEP, queue.queue, number)
                if permit.free or permit.number:
                    permits[queue] = permit
                elif rooms == self._rooms:
                    self._refuse(queue, permit)
        except BaseException:
            self.unused(permits)
            raise
        return permits

    def unused(self, permits: Permits) -> None:
        """No task was taken under these."""
        for permit in permits.values():
            self._gate.unused(permit, (), 0)

    def settle(self, permits: Permits, reply: StepClaims) -> None:
        """A claim under ``permits`` was answered."""
        used: dict[QueueName, list[str]] = {}
        for claim in reply.claims:
            used.setdefault(claim.queue, []).append(claim.ticket)
        for queue, permit in permits.items():
            tickets = used.get(queue, [])
            self._gate.unused(permit, tickets, len(tickets))
        for queue, refusal in reply.refusals:
            self._gate.contradicted(permits[queue], counted=refusal is Refusal.COUNTED)

    def version(self, queue: QueueName) -> int | None:
        """The version of the limits under which a flow type is free, as far as this node knows; else None."""
        return self._gate.free_version(queue.namespace, TaskKind.STEP, queue.queue)

    # -- room -------------------------------------------------------------------------------

    def _refuse(self, queue: QueueName, permit: Permit) -> None:
        self.refused |= {queue}
        seconds = LOOK_AGAIN_SECONDS if permit.standing is None else permit.retry_after
        if seconds is not None and queue not in self._alarms and self._nursery is not None:
            self._alarms.add(queue)
            jitter = self._random.uniform(0, MINUTE_JITTER_SECONDS)
            self._nursery.start_soon(self._room_after, queue, seconds + jitter)

    async def _room_after(self, queue: QueueName, seconds: float) -> None:
        await trio.sleep(seconds)
        self._alarms.discard(queue)
        self._make_room(lambda refused: refused == queue)

    def _on_room(self, namespace: str | None, kind: TaskKind | None, queue: str | None) -> None:
        if kind in (None, TaskKind.STEP):
            self._make_room(
                lambda refused: namespace in (None, refused.namespace) and queue in (None, refused.queue)
            )

    def look_again(self) -> None:
        """The safety net: whatever was refused may be asked for once more."""
        self._make_room(lambda _: True)

    def _make_room(self, where: Callable[[QueueName], bool]) -> None:
        self._rooms += 1
        left = frozenset(queue for queue in self.refused if not where(queue))
        if left != self.refused:
            self.refused = left
            self._tell()
