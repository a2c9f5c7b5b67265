"""The verbs of a commit that create runs and release events that waited."""

from __future__ import annotations

import orjson

from cluster.store.store import Store
from cluster.store.transaction import BeginRun, Transaction
from cluster.workflows.events import encode_event, encode_pending
from cluster.workflows.records import PendingEvent

OLD, NEW = "01KB8M3V6T5Q0Z9W2N4X7C1D00", "01KB8M3V6T5Q0Z9W2N4X7C1E00"


def event(event_type: str, **payload: object) -> PendingEvent:
    return PendingEvent(event_type=event_type, payload=dict(payload), recorded_at_us=1_764_504_000_000_000)


def begin(run_id: str, number: int) -> BeginRun:
    return BeginRun(
        run_id=run_id,
        workflow_part="w%3A1",
        namespace="n",
        namespace_part="n",
        number=number,
        started_ms=5,
        fields={"v": 1, "s": b"\x80"},
        events=[encode_event(run_id, n, event("Start")) for n in (1, 2)],
    )


async def history(store: Store, run_id: str) -> list[tuple[int, str, str]]:
    raw = await store.call("LRANGE", store.keys.history(0, run_id), 0, -1)
    events = [orjson.loads(each) for each in raw]
    return [(each["sequence"], each["event_type"], each["id"]) for each in events]


async def test_a_run_begins_with_its_instance_listing_and_history(store: Store) -> None:
    tx = Transaction(0)
    tx.begin(begin(OLD, 1))
    tx.begin(begin(NEW, 2))
    await store.commit(tx)
    flat = await store.call("HGETALL", store.keys.workflow(0, "w:1"))
    instance = dict(zip(flat[::2], flat[1::2], strict=True))
    assert instance == {
        b"ns": b"n",
        b"run": NEW.encode(),
        b"runs": b"2",
        b"r1": OLD.encode(),
        b"r2": NEW.encode(),
    }
    assert await store.call("HGET", store.keys.run(0, OLD), "v") == b"1"
    assert await store.call("ZRANGE", store.keys.runs(0, "n"), 0, -1) == [OLD.encode(), NEW.encode()]
    assert len(await history(store, OLD)) == 2


async def test_events_that_waited_are_numbered_when_they_are_released(store: Store) -> None:
    count = 1_203
    pending = [encode_pending(OLD, n, event("SignalReceived", n=n)) for n in range(1, count + 1)]
    tx = Transaction(0)
    tx.append(store.keys.pending(0, OLD), pending)
    tx.release(OLD, 3)
    await store.commit(tx)
    found = await history(store, OLD)
    assert [sequence for sequence, _, _ in found] == list(range(3, count + 3))
    assert [name for _, _, name in found] == [f"{OLD}-p{n}" for n in range(1, count + 1)]
    assert await store.call("EXISTS", store.keys.pending(0, OLD)) == 0


async def test_signals_may_move_to_another_run(store: Store) -> None:
    kinds = ["SignalReceived", "TimerFired", "SignalReceived", "UpdateAccepted"]
    # A payload that looks like a signal is none.
    last = event("TimerFired", text='","event_type":"SignalReceived"')
    tx = Transaction(0)
    waiting = [encode_pending(OLD, n, event(kind)) for n, kind in enumerate(kinds, 1)]
    tx.append(store.keys.pending(0, OLD), [*waiting, encode_pending(OLD, 5, last)])
    tx.release(OLD, 7, NEW, 3)
    await store.commit(tx)
    assert await history(store, OLD) == [
        (7, "TimerFired", f"{OLD}-p2"),
        (8, "UpdateAccepted", f"{OLD}-p4"),
        (9, "TimerFired", f"{OLD}-p5"),
    ]
    assert await history(store, NEW) == [
        (3, "SignalReceived", f"{OLD}-p1"),
        (4, "SignalReceived", f"{OLD}-p3"),
    ]


async def test_nothing_waiting_releases_nothing(store: Store) -> None:
    tx = Transaction(0)
    tx.release(OLD, 1)
    await store.commit(tx)
    assert await history(store, OLD) == []
