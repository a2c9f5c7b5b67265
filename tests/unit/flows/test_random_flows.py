"""Flows under random workers, clients and clocks: what must hold, holds after every step."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cluster.flows.answers import Attempt
from cluster.flows.decision import StepEvent
from cluster.flows.limits import FlowLimits
from cluster.flows.machine import StopType
from cluster.flows.records import MethodOptions, StepOptions, TimeoutHandler, TimeoutPolicy
from cluster.flows.wire import Failure, RpcOutput, read_output
from tests.unit.flows.simulation import Simulation, refusal

TYPES = ("a", "b", "c")
CHANNELS = ("x", "y")
LOCKS = ("m", "n")

methods = st.sampled_from(
    (None, MethodOptions(), MethodOptions(max_attempts=1), MethodOptions(max_attempts=2, heartbeat_ms=10_000))
)


@st.composite
def option_fields(draw: st.DrawFn) -> dict[str, Any]:
    retry = draw(
        st.sampled_from(({}, {"retry": {"maximum_attempts": 1}}, {"retry": {"maximum_attempts": 3}}))
    )
    fields: dict[str, Any] = {"execute": retry}
    if draw(st.booleans()):
        fields["wait_for"] = retry
        fields["proceed_on_wait_for_failure"] = draw(st.booleans())
    if draw(st.booleans()):
        fields["recovery"] = {"step_type": draw(st.sampled_from(TYPES))}
    fields["lock_attributes"] = draw(st.lists(st.sampled_from(LOCKS), max_size=2, unique=True))
    return fields


next_steps = st.lists(
    st.fixed_dictionaries({"step_type": st.sampled_from(TYPES), "options": option_fields()}), max_size=3
)
channels = st.lists(st.sampled_from(CHANNELS), max_size=3)
conditions = st.lists(
    st.one_of(
        st.fixed_dictionaries({"timer_seconds": st.integers(0, 5)}),
        st.fixed_dictionaries({"channel": st.sampled_from(CHANNELS), "count": st.integers(1, 3)}),
    ),
    max_size=3,
)


class Flows(RuleBasedStateMachine):
    """One run in many hands."""

    @initialize(
        wait=methods,
        execute=st.sampled_from((MethodOptions(), MethodOptions(max_attempts=2))),
        timeout=st.sampled_from((0, 0, 3_600_000)),
        policy=st.sampled_from(TimeoutPolicy),
    )
    def start(self, wait: MethodOptions | None, execute: MethodOptions, timeout: int, policy: Any) -> None:
        options = StepOptions(wait_for=wait, execute=execute, locks=("m",))
        limits = FlowLimits(open_step_count=8)
        handler = None
        if policy is TimeoutPolicy.HANDLER:
            handler = TimeoutHandler(step_type="late", options=StepOptions(locks=("m",)))
        self.flow = Simulation(
            options, timeout_ms=timeout, timeout_policy=policy, timeout_handler=handler, limits=limits
        )
        self.running: list[Attempt] = []
        self.over: list[Attempt] = []
        self.published: dict[str, list[str]] = {channel: [] for channel in CHANNELS}
        self.messages = 0
        self.rpcs = 0

    def _take(self, data: st.DataObject) -> Attempt:
        attempt = data.draw(st.sampled_from(self.running))
        self.running.remove(attempt)
        self.over.append(attempt)
        return attempt

    def _current(self, attempt: Attempt) -> bool:
        """Whether the hand-out is the present one, by the record of its task."""
        task = self.flow.tasks.get(attempt.k)
        step = self.flow.bodies.get(attempt.k)
        return (
            task is not None
            and step is not None
            and (task.state, task.attempt, task.delivery) == ("l", attempt.attempt, attempt.delivery)
            and step.method is attempt.method
        )

    def _say(self, said: list[str]) -> list[dict[str, str]]:
        """Messages to these channels, each unlike any other."""
        self.messages += len(said)
        first = self.messages - len(said)
        return [{"channel": c, "value": f"{c}{first + place}"} for place, c in enumerate(said)]

    def _was_said(self, messages: list[dict[str, str]]) -> None:
        for message in messages:
            self.published[message["channel"]].append(message["value"])

    @rule()
    def hand_out(self) -> None:
        attempt = self.flow.hand_out()
        if attempt is not None:
            assert attempt not in self.running + self.over, "a hand-out happens once"
            self.running.append(attempt)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        following=next_steps,
        said=channels,
        items=conditions,
        mode=st.sampled_from(("any", "all")),
        siblings=st.booleans(),
        end=st.integers(0, 9),
    )
    def complete(
        self,
        data: st.DataObject,
        following: list[Any],
        said: list[str],
        items: list[dict[str, Any]],
        mode: str,
        siblings: bool,
        end: int,
    ) -> None:
        attempt = self._take(data)
        current = self._current(attempt)
        if attempt.method == "wait_for":
            named = [{"id": str(place), **item} for place, item in enumerate(items)]
            output: dict[str, Any] = {"conditions": {"mode": mode, "items": named}}
        else:
            decision: dict[str, Any] = {"next": following} if following else {"dead_end": True}
            if end == 0:
                decision = {"complete": 1}
            elif end == 1:
                decision = {"fail": {"message": "no"}}
            elif siblings:
                decision["cancel"] = {"siblings": True}
            output = {"decision": decision}
        messages = self._say(said)
        reason = refusal(lambda: self.flow.complete(attempt, {**output, "publish": messages}))
        assert current == (reason not in ("stale", "flow_closed"))
        if current and reason:
            assert reason == "structural_limit_exceeded"
            self.flow.fail(attempt)
        if not reason:
            self._was_said(messages)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        failure=st.builds(
            Failure, non_retryable=st.booleans(), retry_after_seconds=st.sampled_from((None, 0, 5))
        ),
        event=st.sampled_from((StepEvent.FAILED, StepEvent.LOST)),
    )
    def fail(self, data: st.DataObject, failure: Failure, event: StepEvent) -> None:
        attempt = self._take(data)
        current = self._current(attempt)
        assert current == (refusal(lambda: self.flow.fail(attempt, failure, event)) == "")

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        attempt = self._take(data)
        current = self._current(attempt)
        assert current == (refusal(lambda: self.flow.give_back(attempt)) == "")

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.over))
        before = self.flow.run
        output = {} if attempt.method == "wait_for" else {"decision": {"complete": 1}}
        for act in (
            lambda: self.flow.complete(attempt, output),
            lambda: self.flow.fail(attempt),
            lambda: self.flow.give_back(attempt),
        ):
            assert refusal(act) in ("stale", "flow_closed")
        assert self.flow.run is before

    @precondition(lambda self: self.flow.timers)
    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        self.flow.fire(data.draw(st.sampled_from(sorted(self.flow.timers))))

    @rule(channel=st.sampled_from(CHANNELS))
    def publish(self, channel: str) -> None:
        (message,) = self._say([channel])
        if refusal(lambda: self.flow.publish(channel, message["value"])) == "":
            self._was_said([message])

    @precondition(lambda self: len(self.over) > 3)
    @rule(kind=st.sampled_from(StopType), wait=st.booleans())
    def stop(self, kind: StopType, wait: bool) -> None:
        assert refusal(lambda: self.flow.stop(kind, wait)) in ("", "flow_closed")

    @rule(
        locks=st.lists(st.sampled_from(LOCKS), min_size=1, max_size=2, unique=True),
        said=channels,
        following=next_steps,
        dies=st.booleans(),
    )
    def rpc(self, locks: list[str], said: list[str], following: list[Any], dies: bool) -> None:
        self.rpcs += 1
        rpc_id = str(self.rpcs)
        if refusal(lambda: self.flow.begin_rpc(rpc_id, locks)) or dies:
            return
        self.flow.check()
        messages = self._say(said)
        output = read_output(RpcOutput, {"publish": messages, "next": following})
        reason = refusal(lambda: self.flow.apply_rpc(rpc_id, locks, output))
        assert reason in ("", "structural_limit_exceeded")
        if not reason:
            self._was_said(messages)

    @invariant()
    def everything_agrees(self) -> None:
        if hasattr(self, "flow"):
            self.flow.check()

    @invariant()
    def messages_are_heard_once_and_in_order(self) -> None:
        if hasattr(self, "flow"):
            for channel, published in self.published.items():
                heard = [value for value in self.flow.heard if value[0] == channel]
                assert heard == published[: len(heard)]

    def teardown(self) -> None:
        """Whatever happened, the run can be brought to its end."""
        if not hasattr(self, "flow"):
            return
        for _ in range(500):
            if self.flow.run.state.status.closed:
                break
            attempt = self.flow.hand_out()
            if attempt is not None:
                done = {} if attempt.method == "wait_for" else {"decision": {"dead_end": True}}
                self.flow.complete(attempt, done)
            elif self.flow.timers:
                self.flow.fire(min(self.flow.timers, key=lambda name: self.flow.timers[name]))
            else:
                for channel in CHANNELS:
                    self.flow.publish(channel, 1, 1, 1, 1, 1, 1, 1, 1, 1)
            self.flow.check()
        assert self.flow.run.state.status.closed
        assert all(count == 1 for count in self.flow.ended.values())


TestFlows = Flows.TestCase
TestFlows.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
