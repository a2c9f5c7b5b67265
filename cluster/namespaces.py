"""Namespaces: records in Redis, and every node's memory of them (server-behaviour 3.2, 8.1, 8.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from cluster.errors import Refused
from cluster.paging import names_after
from cluster.record_cache import RecordCache, change_message
from cluster.records import JSON, Document, Reader

if TYPE_CHECKING:
    from cluster.store.store import Store

_FAMILY = "ns"


class Namespace(Document, frozen=True, kw_only=True):
    """A namespace. Times are milliseconds since the epoch."""

    name: str
    description: str | None = None
    retention_days: int
    status: str = "active"
    created_at_ms: int
    updated_at_ms: int


def _not_found(name: str) -> Refused:
    return Refused("namespace_not_found", "Namespace not found.", status=404, namespace=name)


class NamespaceStore:
    """Creates, finds and changes namespaces. Names are lower-cased by the caller's rule here."""

    def __init__(self, store: Store, now_ms: Callable[[], int], default_retention_days: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._default_retention_days = default_retention_days
        self._cache = RecordCache(_FAMILY, self._load)

    async def watch(self) -> None:
        """Start to remember namespaces; changes on other nodes are heard from now on."""
        await self._cache.watch(self._store)

    async def bootstrap(self, default_namespace: str) -> None:
        """Create the default namespace unless it exists; any number of nodes may do so at once."""
        await self._insert(self._new(default_namespace.lower(), "Default namespace.", None), idempotent=True)

    async def get(self, name: str) -> Namespace | None:
        """The namespace called ``name`` (any case), or None; usually from memory."""
        return await self._cache.get(name.lower())

    async def describe(self, name: str) -> Namespace:
        """As :meth:`get`, from the store. Raises Refused (namespace_not_found)."""
        found = await self._load(name.lower())
        if found is None:
            raise _not_found(name.lower())
        return found

    async def list(self) -> list[Namespace]:
        """All namespaces by name."""
        flat = await self._store.call("HGETALL", self._store.keys.namespaces(), idempotent=True)
        return sorted((_decode(raw) for raw in flat[1::2]), key=lambda namespace: namespace.name)

    async def page(self, size: int | None, token: str | None) -> tuple[Sequence[Namespace], str | None]:
        """Up to ``size`` namespaces by name (None: all), and the token of the next page."""
        found = {namespace.name: namespace for namespace in await self.list()}
        names, following = names_after(list(found), token, size)
        return [found[name] for name in names], following

    async def create(self, name: str, description: str | None, retention_days: int | None) -> Namespace:
        """A new namespace. Raises Refused (namespace_already_exists)."""
        namespace = self._new(name.lower(), description, retention_days)
        if not await self._insert(namespace, idempotent=False):
            raise Refused(
                "namespace_already_exists", "Namespace already exists.", status=409, namespace=namespace.name
            )
        return namespace

    async def update(self, name: str, description: str | None, retention_days: int | None) -> Namespace:
        """Change what is not None. Raises Refused (namespace_not_found)."""
        name = name.lower()
        expected = await self._read(name)
        while expected:
            old = _decode(expected)
            new = msgspec.structs.replace(
                old,
                description=old.description if description is None else description,
                retention_days=retention_days or old.retention_days,
                updated_at_ms=self._now_ms(),
            )
            applied, current = await self._store.run(
                "swap",
                [self._store.keys.namespaces()],
                [
                    name,
                    expected,
                    JSON.encode(new),
                    self._store.keys.changed_channel(),
                    change_message(_FAMILY, name),
                ],
                idempotent=True,
            )
            if applied:
                self._cache.forget(name)
                return new
            expected = current
        raise _not_found(name)

    def _new(self, name: str, description: str | None, retention_days: int | None) -> Namespace:
        now = self._now_ms()
        return Namespace(
            name=name,
            description=description,
            retention_days=retention_days or self._default_retention_days,
            created_at_ms=now,
            updated_at_ms=now,
        )

    async def _insert(self, namespace: Namespace, *, idempotent: bool) -> bool:
        created = await self._store.call(
            "HSETNX",
            self._store.keys.namespaces(),
            namespace.name,
            JSON.encode(namespace),
            idempotent=idempotent,
        )
        return bool(created)

    async def _read(self, name: str) -> bytes:
        raw = await self._store.call("HGET", self._store.keys.namespaces(), name, idempotent=True)
        return raw or b""

    async def _load(self, name: str) -> Namespace | None:
        raw = await self._read(name)
        return _decode(raw) if raw else None


_decode = Reader(Namespace, JSON)
