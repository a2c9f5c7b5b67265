"""The short way to a decision comes to what the machine comes to, or leaves it to the machine."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster.flows.answers import Attempt, end_execute
from cluster.flows.changes import View
from cluster.flows.following import follow
from cluster.flows.limits import FlowLimits
from cluster.flows.records import (
    FlowInfo,
    FlowRun,
    FlowState,
    FlowStatus,
    Method,
    MethodOptions,
    Phase,
    StepOptions,
    StepState,
    Stop,
)
from cluster.flows.wire import ExecuteOutput, read_output
from cluster.ids import new_run_id

NOW_MS = 1_800_000_000_000
TYPES = ("a", "b", "c")
RUN = new_run_id(3, NOW_MS, Random(1))
LIMITS = FlowLimits()
INFO = FlowInfo(
    namespace="n", flow_id="f", run_id=RUN, flow_type="t", start_step="a", request_id="q", started_at_ms=1
)


def step(k: int, step_type: str = "a", **more: Any) -> StepState:
    return StepState(
        k=k,
        step_type=step_type,
        number=k,
        method=Method.EXECUTE,
        phase=Phase.READY,
        scheduled_at_ms=NOW_MS - 5,
        **more,
    )


def run_of(open_: tuple[int, ...], **state: Any) -> FlowRun:
    attributes = state.pop("attributes", {})
    return FlowRun(
        info=INFO,
        state=FlowState(open=open_, next_k=10, numbers={"a": 9}, history_length=4, **state),
        version="v",
        attributes=attributes,
        steps={k: step(k, options=StepOptions(execute=MethodOptions(max_attempts=2))) for k in open_},
    )


def both(run: FlowRun, output: dict[str, Any], limits: FlowLimits = LIMITS) -> tuple[Any, Any]:
    """What the short way and the machine say of the end of step 2."""
    executed = read_output(ExecuteOutput, orjson.dumps(output))
    attempt = Attempt(2, Method.EXECUTE, 1, 3, "w", "session")
    ended = run.steps[2]
    short = follow(View(run), ended, attempt.worker, attempt.delivery, executed, NOW_MS, limits)
    if short is None:
        return None, None
    return short, end_execute(View(run), attempt, ended, executed, NOW_MS, limits)


next_steps = st.lists(
    st.fixed_dictionaries(
        {"step_type": st.sampled_from(TYPES)},
        optional={
            "input": st.sampled_from((None, 1, "text", [1, {"x": 2}])),
            "options": st.sampled_from(
                ({}, {"wait_for": {}}, {"execute": {"timeout_seconds": 5}}, {"lock_attributes": ["m"]})
            ),
        },
    ),
    min_size=1,
    max_size=4,
)
attributes = st.dictionaries(st.sampled_from(("x", "y")), st.sampled_from((b"1", b'"s"', b"[null]")))


@given(
    following=next_steps,
    others=st.sets(st.integers(3, 9)),
    stored=attributes,
    channels=st.dictionaries(st.sampled_from(("p", "q")), st.integers(1, 3)),
    limits=st.builds(
        FlowLimits,
        open_step_count=st.sampled_from((3, 1000)),
        payload_size=st.sampled_from((4, 1000)),
        step_type_count=st.sampled_from((2, 1000)),
        decision_size=st.sampled_from((20, 1000)),
    ),
)
def test_what_follows_is_what_the_machine_decides(
    following: list[Any],
    others: set[int],
    stored: dict[str, bytes],
    channels: dict[str, int],
    limits: FlowLimits,
) -> None:
    run = run_of((2, *sorted(others)), attributes=stored, channels=channels, last_worker="v")
    short, full = both(run, {"decision": {"next": following}}, limits)
    assert short == full


def test_a_chain_goes_the_short_way() -> None:
    short, full = both(run_of((2,)), {"decision": {"next": [{"step_type": "a"}]}})
    assert short is not None
    assert short == full
    assert short.state.open == (10,)


NEXT = {"decision": {"next": [{"step_type": "a"}]}}


@pytest.mark.parametrize(
    "output",
    [
        {"decision": {"complete": 1}},
        {"decision": {"fail": {"message": "no"}}},
        {"decision": {"dead_end": True}},
        {"decision": {"next": [{"step_type": "a"}], "cancel": {"siblings": True}}},
        {"decision": {"next": [{"step_type": "a", "options": {"lock_attributes": ["m"]}}]}},
        {**NEXT, "attributes": {"x": 1}},
        {**NEXT, "publish": [{"channel": "c", "value": 1}]},
    ],
)
def test_whatever_is_special_is_left_to_the_machine(output: dict[str, Any]) -> None:
    assert both(run_of((2,)), output) == (None, None)


@pytest.mark.parametrize(
    "state",
    [
        {"stop": Stop(status=FlowStatus.CANCELED, requested_at_ms=1)},
        {"waiting": (3,)},
        {"locked": (3,)},
        {"locks": {"m": "s2"}},
    ],
)
def test_a_flow_in_which_something_waits_is_left_to_the_machine(state: dict[str, Any]) -> None:
    run = run_of((2, 3))
    run = replace(run, state=replace(run.state, **state))
    assert both(run, NEXT) == (None, None)
