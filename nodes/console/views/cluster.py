"""What belongs to no namespace: the namespaces themselves, nodes and partitions."""

from __future__ import annotations

from typing import Any, Final

from cluster.paging import names_after
from nodes.console.visits import PAGE_SIZE, Visit

_MOST: Final = 256
"""Nodes, and partitions, that one page shows."""


async def namespaces(visit: Visit) -> dict[str, Any]:
    """Namespaces by name."""
    found = await visit.access.get("/api/namespaces")
    wanted = {entry["name"]: entry for entry in found["namespaces"] if visit.text("query") in entry["name"]}
    names, following = names_after(sorted(wanted), visit.text("after"), PAGE_SIZE)
    return {"namespaces": [wanted[name] for name in names], "next": following}


async def cluster(visit: Visit) -> dict[str, Any]:
    """Nodes, and who keeps house for which partition."""
    nodes = await visit.access.get("/api/nodes")
    partitions = await visit.access.get("/api/partitions")
    first = visit.number("first")
    page = partitions["partitions"][first : first + _MOST]
    return {
        "nodes": nodes["nodes"][:_MOST],
        "hidden": max(0, len(nodes["nodes"]) - _MOST),
        "answered_by": nodes["answered_by"],
        "partitions": page,
        "following": first + _MOST if first + _MOST < partitions["partition_count"] else None,
        "unowned": partitions["unowned_count"],
    }
