"""A secret that all nodes of a cluster share: made by the first that needs it, kept in the cluster record."""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cluster.store.store import Store

BYTES: Final = 32


class SharedSecret:
    """The secret called ``name``; a node keeps it once it was read."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._field = f"secret:{name}"
        self._known: bytes | None = None

    async def read(self, *, anew: bool = False) -> bytes:
        """The secret; ``anew`` asks the store again. Raises StoreError."""
        if self._known is None or anew:
            key = self._store.keys.cluster()
            found = await self._store.call("HGET", key, self._field, idempotent=True)
            if found is None:
                await self._store.call("HSETNX", key, self._field, token_hex(BYTES).encode(), idempotent=True)
                found = await self._store.call("HGET", key, self._field, idempotent=True)
            self._known = bytes.fromhex(found.decode())
        return self._known
