"""How far the races of a run are: which members are open, and what is written when one decides.

A race is kept under the key of its outermost group for as long as a member is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from cluster.workflows import groups
from cluster.workflows.events import EventType
from cluster.workflows.records import Race


def entered(races: Mapping[str, Race], group: Mapping[str, Any]) -> dict[str, Race]:
    """Counts one more open operation of a member."""
    key, member = groups.key(group) or "", groups.contender(group).place
    race = races.get(key, Race(open={}))
    return {**races, key: replace(race, open={**race.open, member: race.open.get(member, 0) + 1})}


def left(races: Mapping[str, Race], group: Mapping[str, Any], *, resolved: bool) -> dict[str, Race]:
    """Counts one open operation of a member less; ``resolved``: that decided the race."""
    key, member = groups.key(group) or "", groups.contender(group).place
    others = dict(races)
    race = others.pop(key, Race(open={}))
    counts = {name: count - (name == member) for name, count in race.open.items()}
    counts = {name: count for name, count in counts.items() if count > 0}
    if counts:
        others[key] = Race(open=counts, resolved=race.resolved or resolved)
    return others


def ends(races: Mapping[str, Race], group: Mapping[str, Any], *, failed: bool) -> tuple[bool, bool]:
    """What the end of an operation means: whether its member is over, and whether that decides the race."""
    race = races.get(groups.key(group) or "", Race(open={}, resolved=True))
    over = race.open.get(groups.contender(group).place, 0) <= 1
    return over, not race.resolved and (failed or over)


def resolution(
    group: Mapping[str, Any], event_type: EventType, payload: Mapping[str, Any], event: str, *, failed: bool
) -> dict[str, Any]:
    """SelectionResolved for the operation whose last event has the id ``event`` and this payload."""
    level, member = groups.outermost(group), groups.contender(group)
    return {
        "selection_group_id": level.get("parallel_group_id"),
        "selection_group_base_sequence": level["parallel_group_base_sequence"],
        "selection_group_size": level["parallel_group_size"],
        "member_key": member.key,
        "member_index": member.index,
        "member_base_sequence": member.base,
        "member_size": member.size,
        "operation_kind": member.kind,
        "operation_identity": member.identity(payload),
        "outcome": "failed" if failed else "completed",
        "resolution_event_id": event,
        "resolution_event_type": event_type.value,
    }
