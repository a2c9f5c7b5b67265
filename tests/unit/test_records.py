"""A node keeps what a newer release wrote into a record that it rewrites."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cluster.flows.records import FlowInfo, FlowState, StepState
from cluster.namespaces import Namespace
from cluster.records import JSON, MSGPACK, Document, Format, Reader, Record
from cluster.schedules.records import Definition, ScheduleState
from cluster.workflows import records


class Inner(Record, frozen=True, kw_only=True):
    size: int = 0


class Old(Document, frozen=True, kw_only=True):
    name: str
    count: int = 0
    inner: Inner = Inner()


class New(Document, frozen=True, kw_only=True):
    name: str
    count: int = 0
    colour: str = "red"
    parts: dict[str, Any] = {}
    inner: Inner = Inner()


@pytest.mark.parametrize("form", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_fields_of_a_newer_release_survive_an_older_one(form: Format) -> None:
    newer, older = Reader(New, form), Reader(Old, form)
    written = New(name="a", colour="blue", parts={"x": [1, "y", None]}, inner=Inner(size=2))
    read = older(form.encode(written))
    changed = form.encode(replace(read, count=read.count + 1))
    assert newer(changed) == replace(written, count=1)
    # And so on, through any number of hands.
    again = form.encode(replace(older(changed), name="b"))
    assert newer(again) == replace(written, name="b", count=1)


@pytest.mark.parametrize("form", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_records_of_this_release_carry_nothing_more(form: Format) -> None:
    document = Old(name="a", inner=Inner(size=1))
    raw = form.encode(document)
    assert Reader(Old, form)(raw) == document
    assert form.fields(raw) == {"name": "a", "inner": {"size": 1}}


def test_a_default_that_an_other_release_wrote_out_is_no_news() -> None:
    raw = MSGPACK.encode({"name": "a", "count": 0})
    assert Reader(Old, MSGPACK)(raw) == Old(name="a")


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        Reader(Old, MSGPACK)(MSGPACK.encode({"count": 1}))


KEPT = (
    records.RunInfo,
    records.RunState,
    records.ActivityState,
    records.TimerState,
    records.ChildState,
    records.UpdateState,
    FlowInfo,
    FlowState,
    StepState,
    Definition,
    ScheduleState,
    Namespace,
)


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.__name__)
def test_a_release_may_add_fields_only_with_defaults(kind: type[Document]) -> None:
    """What the first release wrote without them is still readable."""
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    assert required <= REQUIRED[kind.__name__]


REQUIRED: dict[str, set[str]] = {
    "RunInfo": {"namespace", "workflow_id", "run_id", "workflow_type", "task_queue", "started_at_us"},
    "RunState": set(),
    "ActivityState": {"step", "activity_type", "task_queue", "scheduled_at_us", "ready_at_ms"},
    "TimerState": {"step", "delay_seconds", "fire_at_ms"},
    "ChildState": {"step", "workflow_id", "run_id", "workflow_type", "policy"},
    "UpdateState": {"number"},
    "FlowInfo": {"namespace", "flow_id", "run_id", "flow_type", "start_step", "request_id", "started_at_ms"},
    "FlowState": set(),
    "StepState": {"k", "step_type", "number", "method", "phase", "scheduled_at_ms"},
    "Definition": {"namespace", "schedule_id", "spec", "action", "created_at_ms", "updated_at_ms"},
    "ScheduleState": set(),
    "Namespace": {"name", "retention_days", "created_at_ms", "updated_at_ms"},
}
"""Fields that every release writes."""
