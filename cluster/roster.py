"""Who is in the cluster and who keeps which partition, as operators see it. Reads only.

Everything is asked for at once and travels as one batch, however many nodes there are. It is no
snapshot: a partition may change hands between two of its reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cluster.ids import TaskKind
from cluster.membership.sessions import NodeInfo, decode_info
from cluster.membership.timing import Timing, milliseconds
from cluster.queues.slot_groups import STICKY
from cluster.store.together import together

if TYPE_CHECKING:
    from cluster.store.connection import Argument
    from cluster.store.store import Store

MOST_QUEUES: Final = 500
"""About how many queues of a partition are counted for its backlog."""
_COUNTED: Final = "".join((*TaskKind, STICKY))


class NodeStatus(StrEnum):
    """``SUSPECT``: silent for longer than a session lives, and not buried yet (E1)."""

    ALIVE = "alive"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class Member:
    """One node's session; times in ms. ``partitions`` are those whose lease it holds now."""

    incarnation: str
    info: NodeInfo
    status: NodeStatus
    last_heartbeat_ms: int
    expires_ms: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. ``owner`` is None while nobody holds its lease.

    ``backlog`` counts tasks that nobody has, at least: ``backlog_complete`` is false when the
    partition has more than about MOST_QUEUES queues. ``oldest_ms`` is when the oldest of them
    became ready. ``leased`` counts tasks that somebody has, ``timers`` armed timers, ``work`` chunks
    of housekeeping that wait.
    """

    partition: int
    owner: str | None
    epoch: int
    lease_until_ms: int
    backlog: int
    backlog_complete: bool
    oldest_ms: int | None
    leased: int
    timers: int
    work: int


@dataclass(frozen=True, slots=True)
class Roster:
    """All that was seen; ``now_ms`` is Redis time."""

    now_ms: int
    members: tuple[Member, ...]
    partitions: tuple[PartitionView, ...]


async def read_roster(store: Store, now_ms: int, timing: Timing | None = None) -> Roster:
    """Nodes by name, partitions by number; ``now_ms`` is Redis time. Raises StoreError."""
    keys = store.keys
    numbers = range(keys.partitions)
    commands: dict[tuple[str, int], tuple[Argument, ...]] = {
        ("alive", 0): ("ZRANGE", keys.sessions("alive"), 0, -1, "WITHSCORES"),
        ("info", 0): ("HGETALL", keys.sessions("info")),
    }
    for number in numbers:
        commands["lease", number] = ("HMGET", keys.lease(number), "owner", "epoch", "until")
        commands["leased", number] = ("ZCARD", keys.leases(number))
        commands["timers", number] = ("ZCARD", keys.timers(number))
        commands["work", number] = ("LLEN", keys.work(number))
    found: dict[tuple[str, int], Any] = {}

    async def ask(what: tuple[str, int]) -> None:
        if what in commands:
            found[what] = await store.call(*commands[what], idempotent=True)
            return
        _, number = what
        found[what] = await store.run(
            "backlog",
            [keys.touch(number)],
            [keys.base(number), _COUNTED, "0", MOST_QUEUES],
            idempotent=True,
        )

    await together(ask, [*commands, *(("backlog", number) for number in numbers)])
    partitions = tuple(_partition(found, number, now_ms) for number in numbers)
    return Roster(now_ms, _members(found, partitions, now_ms, timing or Timing()), partitions)


def _partition(found: Mapping[tuple[str, int], Any], number: int, now_ms: int) -> PartitionView:
    owner, epoch, until = found["lease", number]
    until_ms = int(until or 0)
    _, cursor, rows = found["backlog", number]
    counts = [int(count) for count in rows[1::3]]
    ready = [float(oldest) for count, oldest in zip(counts, rows[2::3], strict=True) if count > 0 and oldest]
    return PartitionView(
        partition=number,
        owner=owner.decode() if owner and until_ms > now_ms else None,
        epoch=int(epoch or 0),
        lease_until_ms=until_ms,
        backlog=sum(max(0, count) for count in counts),
        backlog_complete=cursor == b"0",
        oldest_ms=int(min(ready)) if ready else None,
        leased=found["leased", number],
        timers=found["timers", number],
        work=found["work", number],
    )


def _members(
    found: Mapping[tuple[str, int], Any], partitions: tuple[PartitionView, ...], now_ms: int, timing: Timing
) -> tuple[Member, ...]:
    names, texts = found["alive", 0][::2], found["info", 0]
    infos = dict(zip(texts[::2], texts[1::2], strict=True))
    members = []
    for raw, score in zip(names, found["alive", 0][1::2], strict=True):
        incarnation, expires_ms = raw.decode(), int(float(score))
        members.append(
            Member(
                incarnation=incarnation,
                info=decode_info(infos.get(raw, b"{}")),
                status=NodeStatus.ALIVE if expires_ms > now_ms else NodeStatus.SUSPECT,
                last_heartbeat_ms=expires_ms - milliseconds(timing.session_ttl),
                expires_ms=expires_ms,
                partitions=tuple(view.partition for view in partitions if view.owner == incarnation),
            )
        )
    return tuple(sorted(members, key=lambda member: (member.info.name, member.incarnation)))
