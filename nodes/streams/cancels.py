"""Hears at once which attempts on this node's streams are not wanted any more.

The commit that ends an attempt for other reasons than its worker, or that begins to stop its flow,
tells the node that handed it out. The message may overtake the task itself, whose claim is still on
its way, so one about an unknown attempt is kept for a moment. What gets lost with the connection to the
store is found by the hub's audit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from cluster.errors import StoreError
from cluster.store.store import Store

KEEP_SECONDS: Final = 10.0
"""How long a message about an attempt that is not known here is kept."""
RETRY_SECONDS: Final = 0.5

Cancel = Callable[[str, str], bool]
"""Gets attempt id and reason; False when no such attempt runs here."""


class Cancels:
    """One per node. ``missed`` is called when messages may have been lost."""

    def __init__(
        self, store: Store, session: Callable[[], str], cancel: Cancel, missed: Callable[[], None]
    ) -> None:
        self._store = store
        self._session = session
        self._cancel = cancel
        self._missed = missed
        self._early: dict[str, tuple[float, str]] = {}
        self._listening = ""
        self._renewed = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
        self._store.on_message(self._store.keys.cancel_channel(""), self._heard)
        self._store.on_reconnect(self._missed)
        await self._listen()
        task_status.started()
        while True:
            with trio.move_on_after(RETRY_SECONDS if self._listening != self._session() else KEEP_SECONDS):
                await self._renewed.wait()
            self._renewed = trio.Event()
            self._forget_old()
            await self._listen()

    def renewed(self) -> None:
        """The node goes by a new session now."""
        self._renewed.set()

    def early(self, attempt_id: str) -> str | None:
        """Why an attempt that begins now is not wanted any more, if that is so."""
        found = self._early.pop(attempt_id, None)
        return None if found is None else found[1]

    async def _listen(self) -> None:
        session = self._session()
        if session == self._listening:
            return
        try:
            await self._store.subscribe(self._store.keys.cancel_channel(session))
        except StoreError:
            return  # tried again soon
        self._listening = session
        self._missed()

    def _heard(self, _channel: str, message: bytes) -> None:
        attempt_id, _, reason = message.decode().rpartition(" ")
        if not self._cancel(attempt_id, reason):
            self._early[attempt_id] = (trio.current_time() + KEEP_SECONDS, reason)

    def _forget_old(self) -> None:
        now = trio.current_time()
        self._early = {name: kept for name, kept in self._early.items() if kept[0] > now}
