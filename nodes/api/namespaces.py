"""Routes of namespaces (server-behaviour 3.2)."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Le, MaxLen
from pydantic import StringConstraints

from cluster.namespaces import Namespace
from cluster.times import iso_seconds
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, Trimmed
from nodes.api.routes import Reply

_Description = Annotated[Annotated[str, MaxLen(1000)] | None, Trimmed]
_RetentionDays = Annotated[Annotated[int, Ge(1), Le(365)] | None, Integer]


class _Create(Fields):
    name: Annotated[str, StringConstraints(max_length=128, pattern=r"^[a-zA-Z0-9._-]+$"), Trimmed]
    description: _Description = None
    retention_days: _RetentionDays = None


class _Update(Fields):
    description: _Description = None
    retention_days: _RetentionDays = None


class _List(Fields):
    page_size: Annotated[Annotated[int, Ge(1), Le(1000)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


def _item(namespace: Namespace, *times: str) -> dict[str, Any]:
    moments = {
        "created_at": iso_seconds(namespace.created_at_ms),
        "updated_at": iso_seconds(namespace.updated_at_ms),
    }
    return {
        "name": namespace.name,
        "description": namespace.description,
        "retention_days": namespace.retention_days,
        "status": namespace.status,
        "external_payload_storage": None,
        **{name: moments[name] for name in times},
    }


async def list_namespaces(call: Call) -> Reply:
    """``GET /api/namespaces``, by name; all of them without a ``page_size``."""
    wanted = call.query_fields(_List)
    found, following = await call.node.namespaces.page(wanted.page_size, wanted.next_page_token)
    rows = [_item(namespace, "created_at", "updated_at") for namespace in found]
    return Reply({"namespaces": rows, "next_page_token": following})


async def create_namespace(call: Call) -> Reply:
    """``POST /api/namespaces``."""
    body = call.fields(_Create)
    created = await call.node.namespaces.create(body.name, body.description, body.retention_days)
    return Reply(_item(created, "created_at"), 201)


async def describe_namespace(call: Call) -> Reply:
    """``GET /api/namespaces/{namespace}``."""
    found = await call.node.namespaces.describe(call.parameters["namespace"])
    return Reply(_item(found, "created_at", "updated_at"))


async def update_namespace(call: Call) -> Reply:
    """``PUT /api/namespaces/{namespace}``."""
    body = call.fields(_Update)
    name = call.parameters["namespace"]
    updated = await call.node.namespaces.update(name, body.description, body.retention_days)
    return Reply(_item(updated, "updated_at"))
