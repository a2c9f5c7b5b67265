"""Judges what ``streams_events`` recorded: the invariants I1 to I9 of the stream plane.

=====  =============================================================================================
I1     a hand-out (method, attempt, delivery) reaches one worker once
I2     the delivery grows only after a return: half-closed without a sign of life, or declined
I3     what counts is an output some worker sent for that very hand-out; a method completes once
I4     every flow ends, and every start that was acknowledged is there
I5     nothing is handed out after its flow has ended
I6     the gauge of queued steps is 0 when nothing is queued
I7     no head had to be restored
I8     a reserved slot never carries a step
I9     attempts are used up by failures, timeouts and losses only, each once, without gaps
RPC    a request id acts once, and is answered alike however often it comes
=====  =============================================================================================
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tests.chaos.streams_events import Event

RETURNS: Final = frozenset({"half_close", "decline"})
USED_UP: Final = frozenset({"failed", "lost", "timed_out"})
CLOCKS_MS: Final = 100
"""By how much the node's estimate of the store's time may differ."""
BURIED_SECONDS: Final = 5.0
"""A node that stands still for longer may be buried."""


@dataclass(frozen=True)
class Ended:
    """A flow at the end, as the server shows it: its description and its step history."""

    status: str
    closed_at: str | None
    steps: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Findings:
    """Everything there is to judge. ``entries`` and ``restored`` are sums over the nodes."""

    events: Sequence[Event]
    flows: Mapping[str, Ended]
    entries: float = 0
    restored: float = 0
    counter: int = 0
    """The attribute that RPCs count up."""


@dataclass
class _HandOut:
    event: Event
    endings: list[str] = field(default_factory=list)
    accepted: bool = False
    closed: str = ""

    @property
    def delivery(self) -> int:
        return int(self.event["attempt_id"].rpartition(".")[2])

    @property
    def method(self) -> tuple[str, str, str]:
        return self.event["flow_id"], self.event["execution"], self.event["method"]


def check(found: Findings) -> list[str]:
    """The broken promises, as sentences."""
    handed_out: dict[str, _HandOut] = {}
    times: Counter[str] = Counter()
    rpcs: Counter[str] = Counter()
    for event in found.events:
        match event["what"]:
            case "handed_out":
                (times if event["kind"] == "step" else rpcs)[event["attempt_id"]] += 1
                handed_out[event["attempt_id"]] = _HandOut(event)
            case "ending" if event["attempt_id"] in rpcs and event["how"] in RETURNS:
                rpcs[event["attempt_id"]] -= 1
            case "ending" if event["attempt_id"] in handed_out:
                handed_out[event["attempt_id"]].endings.append(event["how"])
            case "confirmed" if event["attempt_id"] in handed_out:
                handed_out[event["attempt_id"]].accepted = event["accepted"]
            case "closed" if event["attempt_id"] in handed_out:
                handed_out[event["attempt_id"]].closed = event["reason"]
    steps = {name: one for name, one in handed_out.items() if one.event["kind"] == "step"}
    return [
        *(f"I1: {name} was handed out {count} times" for name, count in times.items() if count > 1),
        *(f"I1: RPC {name} ran {count} times" for name, count in rpcs.items() if count > 1),
        *_deliveries(steps),
        *_results(steps, found.flows),
        *_ends(found),
        *_after_the_end(steps, found.flows),
        *([f"I6: the gauge says {found.entries:g} at the end"] if found.entries else []),
        *([f"I7: {found.restored:g} heads were restored"] if found.restored else []),
        *(f"I8: {name} on a reserved slot" for name, one in steps.items() if _reserved(one)),
        *_attempts(steps, found),
        *_requests(found),
    ]


def _reserved(one: _HandOut) -> bool:
    return bool(one.event["slot_kind"] == "rpc_only")


def _deliveries(steps: Mapping[str, _HandOut]) -> Iterator[str]:
    by_attempt: dict[Any, list[_HandOut]] = defaultdict(list)
    for one in steps.values():
        by_attempt[*one.method, one.event["attempt"]].append(one)
    for deliveries in by_attempt.values():
        deliveries.sort(key=lambda one: one.delivery)
        for one in deliveries[:-1]:
            if not RETURNS.intersection(one.endings):
                yield f"I2: {one.event['attempt_id']} came again after {one.endings or 'nothing'}"


def _results(steps: Mapping[str, _HandOut], flows: Mapping[str, Ended]) -> Iterator[str]:
    completed: Counter[Any] = Counter()
    results: set[tuple[Any, ...]] = set()
    for flow_id, flow in flows.items():
        for entry in flow.steps:
            if entry["event"] != "completed":
                continue
            method = (flow_id, entry["step_execution_id"], entry["method"])
            completed[method] += 1
            results.add((*method, entry["attempt"], entry["delivery"]))
    for method, count in completed.items():
        if count > 1:
            yield f"I3: {method} completed {count} times"
    known: dict[Any, _HandOut] = {
        (*one.method, one.event["attempt"], one.delivery): one for one in steps.values()
    }
    for result in results:
        sent = known.get(result)
        if sent is None or not {"output", "beat_and_output"}.intersection(sent.endings):
            yield f"I3: {result} completed, and no worker said so"
    for result, one in known.items():
        done = one.accepted and {"output", "beat_and_output"}.intersection(one.endings)
        if done and result not in results:
            yield f"I3: {one.event['attempt_id']} was accepted and is not in the history"


def _ends(found: Findings) -> Iterator[str]:
    for event in found.events:
        if event["what"] == "started" and event["flow_id"] not in found.flows:
            yield f"I4: flow {event['flow_id']} was acknowledged and is gone"
    for flow_id, flow in found.flows.items():
        if flow.closed_at is None:
            yield f"I4: flow {flow_id} does not end"


def _after_the_end(steps: Mapping[str, _HandOut], flows: Mapping[str, Ended]) -> Iterator[str]:
    for name, one in steps.items():
        flow = flows.get(one.event["flow_id"])
        began = one.event["first_attempt_at"]
        if flow is None or flow.closed_at is None or began is None:
            continue
        if _ms(began) > _ms(flow.closed_at) + CLOCKS_MS:
            yield f"I5: {name} was handed out at {began}, its flow ended at {flow.closed_at}"


def _ms(time: str) -> float:
    return datetime.fromisoformat(time).timestamp() * 1000


def _attempts(steps: Mapping[str, _HandOut], found: Findings) -> Iterator[str]:
    frozen = {
        event["target"]
        for event in found.events
        if event["what"] == "fault" and event["kind"] == "freeze_node" and event["seconds"] > BURIED_SECONDS
    }
    used_up: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for flow_id, flow in found.flows.items():
        for entry in flow.steps:
            if entry["event"] not in USED_UP:
                continue
            spent = used_up[flow_id, entry["step_execution_id"], entry["method"]]
            if entry["attempt"] in spent:
                yield f"I9: attempt {entry['attempt']} of {entry['step_execution_id']} was used up twice"
            spent[entry["attempt"]] = entry
    for method, spent in used_up.items():
        if sorted(spent) != list(range(1, len(spent) + 1)):
            yield f"I9: {method} used up the attempts {sorted(spent)}"
    for one in steps.values():
        mine = used_up.get(one.method, {}).get(one.event["attempt"])
        before = set(used_up.get(one.method, {}))
        if not before.issuperset(range(1, one.event["attempt"])):
            yield f"I9: {one.event['attempt_id']} came before attempt {one.event['attempt'] - 1} was used up"
        if mine is None or mine.get("delivery") != one.delivery or mine["event"] != "lost":
            continue
        node = one.event["session"].rpartition("~")[0]
        if one.accepted or (
            one.closed == "half_closed" and one.endings == ["half_close"] and node not in frozen
        ):
            yield f"I9: {one.event['attempt_id']} is lost, though it was settled"


def _requests(found: Findings) -> Iterator[str]:
    answers: dict[str, set[int]] = defaultdict(set)
    asked: set[str] = set()
    for event in found.events:
        if event["what"] == "calling":
            asked.add(event["request_id"])
        elif event["what"] == "answered":
            answers[event["request_id"]].add(event["result"])
    for request_id, results in answers.items():
        if len(results) > 1:
            yield f"RPC: {request_id} was answered {sorted(results)}"
    counted = Counter(result for results in answers.values() for result in results)
    for result, count in counted.items():
        if count > 1:
            yield f"RPC: {count} requests were answered {result}"
    if not len(answers) <= found.counter <= len(asked):
        yield f"RPC: {len(answers)} of {len(asked)} requests were answered, the counter says {found.counter}"
