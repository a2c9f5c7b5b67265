"""What stands at ``/``: where to go from here."""

from __future__ import annotations

from typing import Any, Final

from cluster.version import VERSION
from nodes.api.call import Call
from nodes.api.routes import Reply

_PLACES: Final[dict[str, Any]] = {
    "name": "Headrace",
    "description": "A durable task server: workers pull work from it.",
    "version": VERSION,
    "links": {
        "console": "/console",
        "openapi": "/openapi.json",
        "health": "/api/health",
        "ready": "/api/ready",
        "cluster_info": "/api/cluster/info",
        "metrics": "/metrics",
    },
}


async def front(_call: Call) -> Reply:
    """``GET /``: the name of this server, and where its interfaces are."""
    return Reply(_PLACES)
