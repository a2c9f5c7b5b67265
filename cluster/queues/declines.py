"""What workers declined as unsupported, known to all nodes (R40 to R47).

An entry is (namespace, flow type, step type or RPC name, worker id). It lives in Redis beside the
list of nodes where the worker has streams and goes with the last of them; every node with streams of
the worker holds a copy. The number of entries on a node is bounded; an evicted one stays out of
offers until the worker completes a step, so that no idle slot is asked again and again (R45).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import orjson
import structlog
import trio

from cluster.errors import StoreError
from cluster.queues.stream_workers import StreamWorker
from cluster.store.store import Store

log = structlog.get_logger(__name__)

KEEP_SECONDS: Final = 60.0
"""How long a node's word that a worker has streams there counts."""
REFRESH_SECONDS: Final = 20.0


class Declines:
    """One per node. ``limit`` is ``matching.unsupportedTypeCacheEntries``; ``changed`` is told of each worker
    with streams here of whom more or less is known.
    """

    def __init__(
        self,
        store: Store,
        session: Callable[[], str],
        limit: int,
        changed: Callable[[StreamWorker], None] = lambda _worker: None,
    ) -> None:
        self._store = store
        self._session = session
        self._limit = limit
        self._changed = changed
        self._workers: dict[str, StreamWorker] = {}
        self._entries: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep in touch with the other nodes until cancelled."""
        channel = self._store.keys.unsupported_channel()
        self._store.on_message(channel, self._heard)
        self._store.on_reconnect(self._reload)
        await self._store.subscribe(channel)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                while True:
                    await trio.sleep(REFRESH_SECONDS)
                    self._reload()
            finally:
                self._nursery = None

    def arrived(self, worker: StreamWorker) -> None:
        """The first stream of a worker opened on this node."""
        self._workers[worker.key] = worker
        self._ask(worker, "stay")

    def left(self, worker: StreamWorker) -> None:
        """The last stream of a worker on this node is gone."""
        self._workers.pop(worker.key, None)
        self._drop(worker)
        self._ask(worker, "leave")

    def declined(self, worker: StreamWorker, item: str) -> None:
        """Remember that a worker has no such name."""
        self._remember(worker, item)
        self._ask(worker, "decline", item)

    def completed(self, worker: StreamWorker) -> None:
        """A worker completed a step: what was evicted may be offered to it again (R45)."""
        if worker.held_back:
            worker.held_back.clear()
            self._changed(worker)

    # -- memory -----------------------------------------------------------------------------

    def _remember(self, worker: StreamWorker, item: str) -> None:
        entry = (worker.key, item)
        if entry in self._entries:
            return
        worker.held_back.discard(item)
        worker.declined.add(item)
        self._entries[entry] = None
        self._changed(worker)
        while len(self._entries) > self._limit:
            (key, oldest), _ = self._entries.popitem(last=False)
            self.evicted += 1
            owner = self._workers.get(key)
            if owner is not None:
                owner.declined.discard(oldest)
                if len(owner.held_back) < self._limit:
                    owner.held_back.add(oldest)
                self._ask(owner, "forget", oldest)

    def _drop(self, worker: StreamWorker) -> None:
        for item in worker.declined:
            self._entries.pop((worker.key, item), None)
        worker.declined.clear()
        worker.held_back.clear()

    # -- other nodes ------------------------------------------------------------------------

    def _ask(self, worker: StreamWorker, what: str, item: str = "") -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._tell, worker, what, item)

    async def _tell(self, worker: StreamWorker, what: str, item: str) -> None:
        keys = self._store.keys
        names = (worker.namespace, worker.worker_id)
        message = orjson.dumps([*names, item]).decode()
        try:
            items = await self._store.run(
                "connected",
                [keys.connected(*names), keys.unsupported(*names)],
                [
                    self._session(),
                    int(KEEP_SECONDS * 1000),
                    what,
                    item,
                    self._limit,
                    keys.unsupported_channel(),
                    message,
                ],
                idempotent=True,
            )
        except StoreError as error:
            # The next refresh says it again; what is lost costs another decline.
            log.debug("declines_not_shared", reason=error.reason)
            return
        if what == "stay" and self._workers.get(worker.key) is worker:
            for known in items:
                self._remember(worker, known.decode())

    def _reload(self) -> None:
        for worker in self._workers.values():
            self._ask(worker, "stay")

    def _heard(self, _channel: str, message: bytes) -> None:
        namespace, worker_id, item = orjson.loads(message)
        worker = self._workers.get(StreamWorker(namespace, worker_id).key)
        if worker is not None and item:
            self._remember(worker, item)
