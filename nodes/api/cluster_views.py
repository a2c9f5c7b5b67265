"""Routes that show the cluster itself: its nodes and its partitions. They belong to no namespace."""

from __future__ import annotations

from typing import Any

from cluster.roster import Member, PartitionView, Roster, read_roster
from cluster.times import iso_ms
from nodes.api.call import Call
from nodes.api.routes import Reply


async def list_nodes(call: Call) -> Reply:
    """``GET /api/nodes``: every node that is not buried; its load is about a second old."""
    roster = await _roster(call)
    return Reply(
        {
            "generated_at": iso_ms(roster.now_ms),
            "answered_by": call.node.membership.incarnation,
            "nodes": [_node(member) for member in roster.members],
        }
    )


async def list_partitions(call: Call) -> Reply:
    """``GET /api/partitions``: who keeps house for each, and what waits there."""
    roster = await _roster(call)
    names = {member.incarnation: member.info.name for member in roster.members}
    return Reply(
        {
            "generated_at": iso_ms(roster.now_ms),
            "partition_count": len(roster.partitions),
            "unowned_count": sum(view.owner is None for view in roster.partitions),
            "partitions": [_partition(view, names, roster.now_ms) for view in roster.partitions],
        }
    )


async def _roster(call: Call) -> Roster:
    return await read_roster(call.node.store, call.node.clock.now_ms())


def _node(member: Member) -> dict[str, Any]:
    info, load = member.info, member.info.load
    return {
        "name": info.name,
        "incarnation": member.incarnation,
        "status": member.status.value,
        "version": info.build,
        "level": info.level,
        "address": info.address or None,
        "started_at": iso_ms(info.started_at),
        "last_heartbeat_at": iso_ms(member.last_heartbeat_ms),
        "lease_expires_at": iso_ms(member.expires_ms),
        "draining": load.draining,
        "partitions": list(member.partitions),
        "partition_count": len(member.partitions),
        "parked_polls": load.parked_polls,
        "streams": load.streams,
        "stream_workers": load.stream_workers,
        "running_steps": load.running_steps,
    }


def _partition(view: PartitionView, names: dict[str, str], now_ms: int) -> dict[str, Any]:
    oldest = view.oldest_ms
    return {
        "partition": view.partition,
        "owner": view.owner,
        "owner_name": None if view.owner is None else names.get(view.owner),
        "epoch": view.epoch,
        "lease_expires_at": iso_ms(view.lease_until_ms) if view.owner else None,
        "backlog": view.backlog,
        "backlog_complete": view.backlog_complete,
        "oldest_age_seconds": None if oldest is None else max(0, now_ms - oldest) // 1000,
        "leased_tasks": view.leased,
        "timers": view.timers,
        "upkeep_items": view.work,
    }
