"""Polls that may be sent again: that they were sent is noted, and what they hold already is found (H1).

The claim that a poll is in notes it, so a task costs no round trip for that. A poll that is in no claim
when it could be, because nothing is ready for it, limits refuse it or others come first, is noted by
itself. On a Redis Cluster all are, before their first claim: one script sees one partition there, the note
lies in a slot of its own, and what a token holds may lie in any partition.

A poll that was noted before gets no new task until all partitions were asked for what its token holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import trio

from cluster.errors import StoreError
from cluster.queues import claims
from cluster.queues.claiming import Claiming
from cluster.queues.waiters import QueueId, Waiter, WaitingQueue

RETRY_SECONDS: Final = 0.25
"""Pause after a claim that the store could not answer."""


class Noting(Claiming, ABC):
    """Takes polls apart from the others until it is known whether they were sent before."""

    _closed = False

    @abstractmethod
    def _kick(self, name: QueueId, queue: WaitingQueue) -> None:
        """See whether anything can be claimed for those that wait on a queue."""

    def _note_all_but(self, queue: WaitingQueue, asked_for: Sequence[Waiter]) -> None:
        """Polls that no claim is sent for now must be known as sent all the same."""
        for waiter in queue.unnoted.difference(asked_for):
            self._set_apart(queue, waiter)

    def _set_apart(self, queue: WaitingQueue, waiter: Waiter) -> None:
        queue.unnoted.discard(waiter)
        waiter.apart = True
        self.start_soon(self._resume, queue, waiter)

    async def _resume(self, queue: WaitingQueue, waiter: Waiter) -> None:
        """Give a poll that was sent before what its token holds; if that is nothing, it waits like all
        others. One that cannot be noted ends: were it sent again, nobody would know.
        """
        try:
            await self._note(waiter)
        except StoreError as error:
            waiter.trouble = error
            waiter.done.set()
        while waiter.repeated and not self._closed and waiter in queue.waiters and not waiter.done.is_set():
            try:
                if self._may_act():
                    await self._find_held(queue, [waiter])
                    waiter.trouble = None
                    break
            except StoreError as error:
                waiter.trouble = error
            await trio.sleep(RETRY_SECONDS)
        waiter.apart = False
        self._kick(waiter.queue, queue)

    async def _note(self, waiter: Waiter) -> None:
        """Note that a poll was sent, apart from any claim."""
        if waiter.note_ms:
            waiter.repeated = await claims.note_poll(
                self._store, self._session(), waiter.token, waiter.note_ms
            )
            waiter.note_ms = 0

    async def _found_again(self, queue: WaitingQueue, waiter: Waiter) -> bool:
        """Note that a poll was sent; whether it got what its token holds because it was sent before."""
        await self._note(waiter)
        if waiter.repeated:
            await self._find_held(queue, [waiter])
        return waiter.done.is_set()
