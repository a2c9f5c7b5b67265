"""Memo, search attributes and local activities."""

from __future__ import annotations

from typing import Any

import pytest

from cluster import payloads
from cluster.errors import Refused, ValidationFailed
from cluster.workflows.limits import Limits
from cluster.workflows.records import Payload
from tests.unit.workflows.simulation import BLOB, RUN_ID, Simulation, member, timer


def memo(value: object) -> dict[str, Any]:
    payload = payloads.encode(value)
    return {"type": "upsert_memo", "entries": {"codec": payload.codec, "blob": payload.blob}}


def test_entries_merge_and_none_removes() -> None:
    sim = Simulation(memo={"keep": 1, "gone": 2})
    sim.complete(memo({"z": {"b": 1, "a": [1, None]}, "gone": None}))
    assert sim.run.info.memo == {"keep": 1, "z": {"b": 1, "a": [1, None]}}
    event = sim.payload("MemoUpserted")
    merged = Payload(codec="avro", blob=event["merged"]["blob"])
    assert payloads.decode(merged) == sim.run.info.memo
    assert list(payloads.decode(merged)["z"]) == ["a", "b"]
    assert event["entries"] == memo({"z": {"b": 1, "a": [1, None]}, "gone": None})["entries"]
    assert event["sequence"] == 1


@pytest.mark.parametrize("value", [[1], {}, "x", {"1": 2}, {"a b": 1}, {"x" * 65: 1}])
def test_entries_are_a_map_with_plain_keys(value: object) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Simulation().complete(memo(value))
    assert list(refused.value.errors) == ["commands.0.entries"]


def test_the_memo_is_limited() -> None:
    sim = Simulation(Limits(memo_size=60))
    sim.complete(memo({"a": "x" * 20}))
    sim.signal()
    with pytest.raises(Refused, match="memo_size"):
        sim.complete(memo({"b": "x" * 40}))
    assert list(sim.run.info.memo) == ["a"]


def test_search_attributes_merge_and_null_removes() -> None:
    sim = Simulation(search_attributes={"Old": 1, "Gone": 2})
    sim.complete({"type": "upsert_search_attributes", "attributes": {"New": "x", "Gone": None}})
    assert sim.run.info.search_attributes == {"New": "x", "Old": 1}
    event = sim.payload("SearchAttributesUpserted")
    assert event["attributes"] == {"New": "x", "Gone": None}
    assert event["merged"] == {"New": "x", "Old": 1}


def local(outcome: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record_local_activity",
        "activity_type": "here",
        "execution_mode": "local",
        "arguments": {"codec": "avro", "blob": BLOB},
        "outcome": outcome,
        "attempts": [{"attempt_id": "a1", "attempt_number": 1, "outcome": outcome, "heartbeats": []}],
        **fields,
    }


def test_a_local_activity_leaves_two_events_and_no_task() -> None:
    sim = Simulation()
    sim.complete(local("completed", result={"codec": "avro", "blob": BLOB}))
    assert sim.types[-2:] == ["ActivityScheduled", "ActivityCompleted"]
    done = sim.payload("ActivityCompleted")
    assert done["local_activity"] is True
    assert (done["result"], done["payload_codec"], done["activity_attempt_id"]) == (BLOB, "avro", "a1")
    assert not sim.state.task_open
    assert sim.state.next_step == 2


@pytest.mark.parametrize(
    ("outcome", "event"),
    [("failed", "ActivityFailed"), ("timed_out", "ActivityTimedOut"), ("cancelled", "ActivityCancelled")],
)
def test_how_a_local_activity_failed(outcome: str, event: str) -> None:
    sim = Simulation()
    sim.complete(local(outcome, message="no", exception_type="Boom", non_retryable=True))
    failed = sim.payload(event)
    assert failed["message"] == "no"
    assert failed["exception"] == {"type": "Boom", "message": "no", "non_retryable": True}
    assert failed["activity_execution_id"] == f"{RUN_ID}-a1"


def test_a_local_activity_in_a_list_counts_as_over() -> None:
    sim = Simulation()
    sim.complete(member(local("completed"), 1, 2, 0), member(timer(3), 1, 2, 1))
    assert not sim.state.task_open
    sim.advance(3)
    sim.fire("t2")
    assert sim.task_lease().state == "r"
