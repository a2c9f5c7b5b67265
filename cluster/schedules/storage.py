"""How schedules lie in the store.

Schedule hash (``keys.schedule``): ``v`` version, ``d`` definition, ``s`` state, ``n`` sequence of the
newest event, ``last`` the latest workflow as a key part, ``rids`` the last request ids, and ``st``,
``type``, ``id`` for listings. Its history keeps the newest HISTORY_KEPT events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from cluster.newest_first import LOOK_LIMIT, Part, Place, newest_first
from cluster.records import MSGPACK, Reader
from cluster.schedules.decisions import Decision
from cluster.schedules.names import fire_timer, partition_of_schedule
from cluster.schedules.records import Definition, Schedule, ScheduleEvent, ScheduleState, Status
from cluster.store.keys import encode
from cluster.store.store import Store
from cluster.store.transaction import Transaction

HISTORY_KEPT: Final = 5_000
_DAY_MS: Final = 24 * 3600 * 1000

_encode = MSGPACK.encode
_definition = Reader(Definition, MSGPACK)
_state = Reader(ScheduleState, MSGPACK)
_event = msgspec.msgpack.Decoder(ScheduleEvent)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A schedule as one moment showed it. ``run_id`` is the current run of its latest workflow, "" if
    there is none (any more); ``open`` says whether it runs.
    """

    schedule: Schedule
    run_id: str
    open: bool
    events: list[ScheduleEvent]


async def load(
    store: Store, namespace: str, schedule_id: str, *, after: int = 0, limit: int = 0
) -> Snapshot | None:
    """Read a schedule, also a deleted one, with at most ``limit`` events after sequence ``after``."""
    keys = store.keys
    partition = partition_of_schedule(namespace, schedule_id, keys.partitions)
    reply = await store.run(
        "schedule",
        [
            keys.schedule(partition, namespace, schedule_id),
            keys.schedule_history(partition, namespace, schedule_id),
        ],
        [keys.base(partition), after, limit],
        idempotent=True,
    )
    if reply is None:
        return None
    version, definition, state, run_id, closed, events = reply
    return Snapshot(
        _schedule(version, definition, state),
        run_id.decode(),
        open=bool(run_id) and not closed,
        events=[_event.decode(event) for event in events],
    )


async def list_schedules(
    store: Store,
    namespace: str,
    *,
    status: str,
    workflow_type: str,
    query: str,
    page_size: int,
    token: str | None,
) -> tuple[list[Schedule], str | None]:
    """A page of a namespace's schedules, newest first, and the token of the next; "" filters nothing."""
    keys = store.keys

    async def look(partition: int, place: Place | None) -> Part[Schedule]:
        after = (str(place.ms), place.name) if place else ("", "")
        rows, more, last_ms, last_member = await store.run(
            "schedules",
            [keys.schedules(partition, namespace)],
            [
                keys.schedule(partition, namespace, ""),
                *after,
                page_size,
                LOOK_LIMIT,
                status,
                workflow_type,
                query,
            ],
            idempotent=True,
        )
        found = [(Place(int(row[1]), row[0].decode()), _schedule(*row[2:])) for row in rows]
        return Part(found, Place(int(last_ms), last_member.decode()) if more else None)

    return await newest_first(keys.partitions, look, page_size, token)


def plan(
    tx: Transaction, store: Store, old: Schedule | None, decision: Decision, retention_days: int
) -> None:
    """Add a decision about a schedule to ``tx``: records, history, listing, timer.

    ``old`` is what the decision looked at (None: nothing was there).
    """
    keys = store.keys
    definition, state = decision.definition, decision.state
    namespace, schedule_id = definition.namespace, definition.schedule_id
    key = keys.schedule(tx.partition, namespace, schedule_id)
    history = keys.schedule_history(tx.partition, namespace, schedule_id)
    if old is None:
        tx.expect_absent(key)
    else:
        tx.expect_equal(key, "v", old.version)
    fields: dict[str, str | bytes | int] = {
        "v": old.version + 1 if old else 1,
        "s": _encode(state),
        "n": state.history_length,
        "st": state.status.value,
        "last": encode(state.latest_workflow_id or ""),
    }
    if old is None or definition is not old.definition:
        fields |= {"d": _encode(definition), "type": definition.action.workflow_type, "id": schedule_id}
    tx.hset(key, fields)
    if decision.events:
        tx.append(history, [_encode(event) for event in decision.events])
        tx.redis("LTRIM", history, -HISTORY_KEPT, -1)
    listed = keys.schedules(tx.partition, namespace)
    if state.status is Status.DELETED:
        tx.redis("ZREM", listed, encode(schedule_id))
        for kept in (key, history):
            tx.redis("PEXPIRE", kept, retention_days * _DAY_MS)
    elif old is None or old.state.status is Status.DELETED:
        tx.redis("ZADD", listed, definition.created_at_ms, encode(schedule_id))
        for kept in (key, history):
            tx.redis("PERSIST", kept)
    if state.next_due_ms is None:
        tx.disarm(fire_timer(namespace, schedule_id))
    else:
        tx.arm(fire_timer(namespace, schedule_id), state.next_due_ms)


def _schedule(version: bytes, definition: bytes, state: bytes) -> Schedule:
    return Schedule(definition=_definition(definition), state=_state(state), version=int(version))
