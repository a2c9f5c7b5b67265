"""Whether the Redis server is set up so that this node can keep its promises."""

from __future__ import annotations

from typing import Any

from cluster.errors import StartupError
from cluster.store.checks import check_server
from nodes.api.call import Call
from nodes.api.routes import Reply


async def show_store(call: Call) -> Reply:
    """``GET /api/system/store``: the checks a node makes at its start, made again now.

    ``status`` is ok, warning or failed: a node that is started now would be refused.
    """
    settings = call.node.settings
    findings: list[dict[str, Any]] = []
    status = "ok"
    try:
        warnings = await check_server(settings.redis_url, settings.durability)
    except StartupError as error:
        status = "failed"
        findings.append({"status": status, "message": str(error)})
    else:
        findings += [{"status": "warning", "message": warning} for warning in warnings]
        status = "warning" if findings else status
    return Reply({"status": status, "durability": settings.durability, "findings": findings})
