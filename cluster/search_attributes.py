"""Definitions of search attributes, per namespace (server-behaviour 8.4).

A definition is for people and tools: a start need not use defined names only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cluster.errors import Refused
from cluster.store.store import Store


class AttributeType(StrEnum):
    KEYWORD = "keyword"
    TEXT = "text"
    INT = "int"
    DOUBLE = "double"
    BOOL = "bool"
    DATETIME = "datetime"
    KEYWORD_LIST = "keyword_list"


SYSTEM_ATTRIBUTES: Final = {
    "WorkflowType": AttributeType.KEYWORD,
    "WorkflowId": AttributeType.KEYWORD,
    "RunId": AttributeType.KEYWORD,
    "Status": AttributeType.KEYWORD,
    "StartTime": AttributeType.DATETIME,
    "CloseTime": AttributeType.DATETIME,
    "TaskQueue": AttributeType.KEYWORD,
    "BuildId": AttributeType.KEYWORD,
}
"""What every run has; these names are reserved."""


class SearchAttributes:
    """Defines, lists and removes custom attributes; at most ``limit`` per namespace (0: any number)."""

    def __init__(self, store: Store, limit: int) -> None:
        self._store = store
        self._limit = limit

    async def list_custom(self, namespace: str) -> dict[str, str]:
        """Name and type of every defined attribute, by name."""
        flat = await self._store.call("HGETALL", self._key(namespace), idempotent=True)
        return {
            name.decode(): kind.decode() for name, kind in sorted(zip(flat[::2], flat[1::2], strict=True))
        }

    async def define(self, namespace: str, name: str, kind: AttributeType) -> None:
        """Define an attribute.

        Raises Refused ``name_reserved``, ``attribute_already_exists`` (409),
        ``search_attribute_limit_reached`` (422).
        """
        if name in SYSTEM_ATTRIBUTES:
            raise Refused("name_reserved", f"{name} is a system attribute.", name=name)
        done, existing = await self._store.run(
            "define", [self._key(namespace)], [name, kind.value, self._limit]
        )
        if existing:
            raise Refused(
                "attribute_already_exists",
                f"The search attribute {name} already exists.",
                name=name,
                type=existing.decode(),
            )
        if not done:
            raise Refused(
                "search_attribute_limit_reached",
                f"A namespace may define at most {self._limit} search attributes.",
                status=422,
                limit=self._limit,
            )

    async def remove(self, namespace: str, name: str) -> None:
        """Forget a definition. Raises Refused ``system_attribute`` (409), ``attribute_not_found`` (404)."""
        if name in SYSTEM_ATTRIBUTES:
            raise Refused("system_attribute", f"{name} is a system attribute.", name=name)
        if not await self._store.call("HDEL", self._key(namespace), name):
            raise Refused(
                "attribute_not_found", "The search attribute does not exist.", status=404, name=name
            )

    def _key(self, namespace: str) -> str:
        return self._store.keys.search_attributes(namespace)
