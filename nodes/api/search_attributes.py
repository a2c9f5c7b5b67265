"""Routes of search attribute definitions (server-behaviour 8.4)."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

from cluster.search_attributes import SYSTEM_ATTRIBUTES, AttributeType
from nodes.api.attributes import ATTRIBUTE_NAME
from nodes.api.call import Call
from nodes.api.fields import Fields, Trimmed
from nodes.api.routes import Reply


class Define(Fields):
    name: Annotated[str, StringConstraints(max_length=128, pattern=ATTRIBUTE_NAME), Trimmed]
    type: Annotated[AttributeType, Trimmed]


async def list_attributes(call: Call) -> Reply:
    """``GET /api/search-attributes``."""
    return Reply(
        {
            "system_attributes": {name: kind.value for name, kind in SYSTEM_ATTRIBUTES.items()},
            "custom_attributes": await call.node.search_attributes.list_custom(call.namespace),
        }
    )


async def define(call: Call) -> Reply:
    """``POST /api/search-attributes``."""
    body = call.fields(Define)
    await call.node.search_attributes.define(call.namespace, body.name, body.type)
    return Reply({"name": body.name, "type": body.type.value, "outcome": "created"}, 201)


async def remove(call: Call) -> Reply:
    """``DELETE /api/search-attributes/{name}``."""
    name = call.parameters["name"]
    await call.node.search_attributes.remove(call.namespace, name)
    return Reply({"name": name, "outcome": "deleted"})
