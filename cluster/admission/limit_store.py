"""The limits of each namespace, as every node sees them, and changing them while the server runs.

What the server was started with is the same for its whole life. What is set at run time lies in Redis
with a version, next to the tickets it limits: a node that asks for tickets under an older version is
told so by the script itself, so a change holds for all nodes at once. Claims that need no ticket carry
the version too, and every partition knows the newest (D3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final

import orjson

from cluster.admission.limits import LEASE_LIMITS, LimitBook, LimitName
from cluster.errors import StoreUnavailable
from cluster.ids import TaskKind
from cluster.record_cache import RecordCache, change_message
from cluster.settings.schema import Settings
from cluster.store.keys import decode, encode
from cluster.store.store import Store
from cluster.store.together import together

FAMILY: Final = "limits"
TRIES: Final = 10


def default_limits(settings: Settings) -> dict[TaskKind, dict[LimitName, int | None]]:
    """The limits that hold for every queue unless something else is said."""
    found: dict[TaskKind, dict[LimitName, int | None]] = {}
    stems = {
        TaskKind.WORKFLOW: "workflow_task",
        TaskKind.ACTIVITY: "activity_task",
        TaskKind.STEP: "step_task",
    }
    for kind, stem in stems.items():
        found[kind] = {
            name: getattr(settings, f"{stem}_{name.value}")
            for name in (*LEASE_LIMITS, LimitName.QUEUE_DISPATCHES, LimitName.NAMESPACE_DISPATCHES)
        }
    return found


class LimitStore:
    """Reads and changes the limits of namespaces. One per node."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._defaults = default_limits(settings)
        self._overrides: Mapping[str, Any] = settings.task_queue_admission_overrides
        self._cache = RecordCache(FAMILY, self._load)
        self._books: dict[str, LimitBook] = {}
        self._changed: list[Callable[[str | None], None]] = []

    async def watch(self) -> None:
        """Hear from now on what other nodes change."""
        self._store.on_message(self._store.keys.changed_channel(), self._heard)
        self._store.on_reconnect(lambda: self._tell(None))
        await self._cache.watch(self._store)

    def on_change(self, handler: Callable[[str | None], None]) -> None:
        """Call ``handler(namespace)`` after its limits changed; None: any may have."""
        self._changed.append(handler)

    async def book(self, namespace: str) -> LimitBook:
        """The limits of a namespace; from memory while change messages arrive. Raises StoreError."""
        return await self._cache.get(namespace) or await self._load(namespace)

    def remembered(self, namespace: str) -> LimitBook | None:
        """What this node knew last, without asking."""
        return self._books.get(namespace)

    def forget(self, namespace: str) -> None:
        """Read the limits again at the next use."""
        self._cache.forget(namespace)

    async def replace(
        self, namespace: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> LimitBook:
        """Set ``change(present run-time tree)`` as the new tree; returns the new limits.

        Returns once every partition refuses claims made under the older version. Raises StoreError.
        """
        for _ in range(TRIES):
            book = await self._load(namespace)
            tree = change(book.runtime)
            document = orjson.dumps(tree, option=orjson.OPT_SORT_KEYS) if tree else b""
            await self._store.call("SADD", self._store.keys.counted(), namespace, idempotent=True)
            applied, version = await self._store.run(
                "limits",
                [self._store.keys.terms(namespace)],
                [
                    book.version,
                    document,
                    self._store.keys.changed_channel(),
                    change_message(FAMILY, namespace),
                ],
                idempotent=True,
            )
            if applied:
                self.forget(namespace)
                await self.announce(namespace, version)
                return await self._load(namespace)
        raise StoreUnavailable(f"the limits of {namespace} change faster than this node can; try again")

    async def announce(self, namespace: str, version: int) -> None:
        """Make every partition refuse claims under a version older than this one."""
        places = product(range(self._store.keys.partitions), TaskKind)
        await together(lambda place: self._announce(*place, namespace, version), places)
        await self._store.call("HSET", self._store.keys.terms(namespace), "told", version, idempotent=True)

    async def catch_up(self, namespace: str) -> LimitBook:
        """Bring the version up to what partitions know, should a failover have taken it back."""
        newest = 0

        async def look(partition: int) -> None:
            nonlocal newest
            key = f"{self._store.keys.base(partition)}:adm"
            fields = [f"{kind.value}:{encode(namespace)}:v" for kind in TaskKind]
            known = await self._store.call("HMGET", key, *fields, idempotent=True)
            newest = max(newest, *(int(version or 0) for version in known))

        await together(look, range(self._store.keys.partitions))
        await self._store.run("catch_up", [self._store.keys.terms(namespace)], [newest], idempotent=True)
        self.forget(namespace)
        return await self.book(namespace)

    async def _announce(self, partition: int, kind: TaskKind, namespace: str, version: int) -> None:
        keys = self._store.keys
        scope = f"{kind.value}:{encode(namespace)}"
        await self._store.run(
            "terms",
            [keys.touch(partition)],
            [keys.base(partition), scope, version, "", ""],
            idempotent=True,
        )

    async def _load(self, namespace: str) -> LimitBook:
        version, document = await self._store.call(
            "HMGET", self._store.keys.terms(namespace), "v", "doc", idempotent=True
        )
        book = LimitBook(
            namespace,
            self._defaults,
            self._overrides,
            orjson.loads(document) if document else {},
            int(version or 0),
        )
        self._books[namespace] = book
        return book

    def _heard(self, _channel: str, message: bytes) -> None:
        family, _, name = message.decode(errors="replace").partition(" ")
        if family == FAMILY:
            self._tell(decode(name))

    def _tell(self, namespace: str | None) -> None:
        for handler in self._changed:
            handler(namespace)
