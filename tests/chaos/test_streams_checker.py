"""The checker of the stream plane sees each broken promise, and none where all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.streams_checker import Ended, Findings, check
from tests.chaos.streams_events import Event

EARLY, LATE = "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:09.000000Z"
Steps = list[dict[str, Any]]


def given(number: int, delivery: int, how: str, *, accepted: bool = True, closed: str = "") -> list[Event]:
    """One hand-out of ``a-1`` and how its worker ended it."""
    attempt_id = f"R-s1e-{number}.{delivery}"
    event: Event = {
        "what": "handed_out",
        "attempt_id": attempt_id,
        "kind": "step",
        "slot_kind": "step_and_rpc",
        "session": "node-1~x",
        "flow_id": "f",
        "execution": "a-1",
        "method": "execute",
        "attempt": number,
        "first_attempt_at": EARLY if number == 1 else None,
    }
    events = [event, {"what": "ending", "attempt_id": attempt_id, "how": how}]
    if how in ("output", "failure"):
        events.append({"what": "confirmed", "attempt_id": attempt_id, "accepted": accepted})
    if closed:
        events.append({"what": "closed", "attempt_id": attempt_id, "reason": closed})
    return events


def entry(event: str, number: int, delivery: int = 0) -> dict[str, Any]:
    return {
        "event": event,
        "step_execution_id": "a-1",
        "method": "execute",
        "attempt": number,
        "delivery": delivery,
    }


def good() -> Findings:
    """Returned, failed, lost, completed; one RPC, asked twice."""
    events = [{"what": "started", "flow_id": "f"}]
    events += given(1, 0, "half_close", closed="half_closed") + given(1, 1, "failure")
    events += given(2, 0, "reset") + given(3, 0, "output")
    events += [{"what": "calling", "request_id": "c"}, *[answered("c", 1)] * 2]
    steps: Steps = [entry("failed", 1, 1), entry("lost", 2), entry("completed", 3)]
    return Findings(events, {"f": Ended("completed", LATE, steps)}, counter=1)


def answered(request_id: str, result: int) -> Event:
    return {"what": "answered", "request_id": request_id, "result": result}


def with_events(*more: Event) -> Callable[[Findings], Findings]:
    return lambda found: replace(found, events=[*found.events, *more])


def with_steps(change: Callable[[Steps], Steps], **fields: Any) -> Callable[[Findings], Findings]:
    def changed(found: Findings) -> Findings:
        flow = found.flows["f"]
        steps = change([dict(step) for step in flow.steps])
        return replace(found, flows={"f": replace(flow, steps=steps, **fields)})

    return changed


def on_reserved_slot(found: Findings) -> Findings:
    return replace(found, events=[{**event, "slot_kind": "rpc_only"} for event in found.events])


def rpc_twice(found: Findings) -> Findings:
    rpc = {**found.events[1], "kind": "rpc", "attempt_id": "r1", "execution": "", "method": ""}
    return with_events(rpc, rpc)(found)


def same(steps: Steps) -> Steps:
    return steps


BROKEN = {
    "I1 step": ("I1", with_events(given(2, 0, "reset")[0])),
    "I1 rpc": ("I1", rpc_twice),
    "I2": ("I2", with_events(*given(3, 1, "output"))),
    "I3 nobody said so": ("I3", with_steps(lambda s: [*s, entry("completed", 3, 9)])),
    "I3 twice": ("I3", with_steps(lambda s: [*s, entry("completed", 3)])),
    "I3 forgotten": ("I3", with_steps(lambda s: s[:-1])),
    "I4 lost": ("I4", with_events({"what": "started", "flow_id": "g"})),
    "I4 stuck": ("I4", with_steps(same, closed_at=None)),
    "I5": ("I5", with_steps(same, closed_at="2025-12-31T23:59:59.000000Z")),
    "I6": ("I6", lambda found: replace(found, entries=1)),
    "I7": ("I7", lambda found: replace(found, restored=1)),
    "I8": ("I8", on_reserved_slot),
    "I9 gap": ("I9", with_steps(lambda s: [s[0], s[2]])),
    "I9 twice": ("I9", with_steps(lambda s: [*s, entry("lost", 1, 1)])),
    "I9 returned": ("I9", with_steps(lambda s: [{**s[0], "event": "lost", "delivery": 0}, *s[1:]])),
    "RPC two answers": ("RPC", with_events(answered("c", 2))),
    "RPC effect twice": ("RPC", lambda found: replace(found, counter=2)),
    "RPC effect lost": ("RPC", lambda found: replace(found, counter=0)),
    "RPC same answer": ("RPC", with_events({"what": "calling", "request_id": "d"}, answered("d", 1))),
}


def test_all_is_well() -> None:
    assert check(good()) == []


@pytest.mark.parametrize(("promise", "breaks"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_seen(promise: str, breaks: Callable[[Findings], Findings]) -> None:
    broken = check(breaks(good()))
    assert promise in {text.partition(":")[0] for text in broken}, broken
