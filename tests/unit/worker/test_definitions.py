"""How flows are defined, and what their handlers' returns become on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from cluster.flows.wire import read_options
from headrace import (
    Decision,
    DefinitionError,
    Flow,
    MethodOptions,
    NonRetryableError,
    RetryPolicy,
    RpcContext,
    Step,
    StepContext,
    StepError,
    StepOptions,
    Wait,
    channel,
    complete,
    dead_end,
    fail,
    fan_out,
    goto,
    rpc,
    step,
    timer,
    wait_any,
)
from nodes.worker.context import Attempt
from nodes.worker.flow import bind, shape_of
from nodes.worker.running import TaskRunner
from nodes.worker.tasks import TaskBody, read_task


@dataclass
class Order:
    item: str
    count: int = 1


class Ship(Step[Order], name="ship-it"):
    options = StepOptions(
        execute=MethodOptions(timeout=5, retry=RetryPolicy(maximum_attempts=2)),
        recovery="refund",
        lock_attributes=("stock",),
        non_retryable=(KeyError,),
    )

    def __init__(self, carrier: str = "post") -> None:
        self.carrier = carrier

    def wait_for(self, ctx: StepContext, order: Order) -> Wait:
        return wait_any(channel("paid"), timer(5), timer(7), channel("paid", 2, id="twice"))

    async def execute(self, ctx: StepContext, order: Order) -> Decision:
        assert isinstance(order, Order)
        match order.item:
            case "broken":
                raise NonRetryableError("no", type="Broken")
            case "missing":
                raise KeyError("missing")
            case "later":
                raise StepError("later", retry_after=3)
            case "nothing":
                return None  # type: ignore[return-value]
            case "again":
                return goto(Ship, Order("more"))
        ctx.attributes["by"] = self.carrier
        ctx.publish("log", order)
        return goto(Shop.refund, "x") if order.item == "returned" else complete(order)


class Shop(Flow, name="shop"):
    steps = (Ship,)
    start = "refund"

    @step
    def refund(self, ctx: StepContext, why: str) -> Decision:
        return dead_end().cancelling_siblings() if why else fail("why?", type="Sorry")

    @step
    async def split(self, ctx: StepContext, count: int) -> Decision:
        return fan_out(goto(Shop.refund, str(n)) for n in range(count)).cancelling(Ship)

    @rpc(name="state-of", lock_attributes=["by"])
    async def state(self, ctx: RpcContext, name: str) -> Any:
        ctx.start(goto(Shop.refund, name))
        return ctx.attributes.get(name)

    @rpc
    def plain(self, ctx: RpcContext) -> int:
        return 7


async def run(flow: Flow | type[Flow] = Shop, **members: Any) -> dict[str, Any]:
    """What goes over the wire for a task with these members: its output, or {"failure": ...}."""
    fields = {
        "attempt_id": "a1",
        "kind": "step",
        "flow_type": "shop",
        "flow_id": "f1",
        "run_id": "r1",
        "method": "execute",
        **members,
    }
    body: TaskBody = read_task(msgspec.Raw(msgspec.json.encode(fields)))
    job = TaskRunner([bind(flow)], "w1", 2).job(body)
    assert job is not None
    ended = await job.run(Attempt())
    if ended.failure is not None:
        return {"failure": msgspec.json.decode(ended.failure)}
    found: dict[str, Any] = msgspec.json.decode(ended.output or b"")
    return found


async def test_wait_for_names_its_conditions() -> None:
    assert await run(step_type="ship-it", method="wait_for", input={"item": "a"}) == {
        "conditions": {
            "mode": "any",
            "items": [
                {"id": "paid", "channel": "paid", "count": 1},
                {"id": "timer", "timer_seconds": 5},
                {"id": "timer-2", "timer_seconds": 7},
                {"id": "twice", "channel": "paid", "count": 2},
            ],
        }
    }


async def test_effects_go_along_with_the_decision() -> None:
    class Fast(Flow, name="shop"):
        steps = (Ship("bike"), *(Shop.refund,))

    output = await run(Fast, step_type="ship-it", input={"item": "a", "count": 3})
    assert output == {
        "decision": {"complete": {"item": "a", "count": 3}},
        "attributes": {"by": "bike"},
        "publish": [{"channel": "log", "value": {"item": "a", "count": 3}}],
    }


async def test_goto_carries_the_options_of_the_definition() -> None:
    output = await run(step_type="ship-it", input={"item": "again"})
    (following,) = output["decision"]["next"]
    assert (following["step_type"], following["input"]) == ("ship-it", {"item": "more", "count": 1})
    assert following["options"]["execute"]["retry"]["maximum_attempts"] == 2
    assert following["options"]["lock_attributes"] == ["stock"]


async def test_options_that_a_step_has_anyway_are_not_sent() -> None:
    output = await run(step_type="ship-it", input={"item": "returned"})
    assert output["decision"]["next"] == [{"step_type": "refund", "input": "x"}]
    shape = shape_of(Shop)
    assert read_options(shape.options(shape.steps["refund"])) == read_options(None)


def test_options_of_a_step_name_its_waiting_its_locks_and_its_recovery() -> None:
    shape = shape_of(Shop)
    options = shape.options(shape.steps["ship-it"])
    assert options["wait_for"]["timeout_seconds"] == 7_200
    assert options["execute"]["timeout_seconds"] == 5
    assert options["lock_attributes"] == ["stock"]
    assert options["recovery"]["step_type"] == "refund"
    assert "execute" in options["recovery"]["options"]
    assert shape.start.name == "refund"


async def test_fan_out_and_cancelling() -> None:
    output = await run(step_type="split", input=3)
    assert [n["input"] for n in output["decision"]["next"]] == ["0", "1", "2"]
    assert output["decision"]["cancel"] == {"step_types": ["ship-it"], "siblings": False}
    assert await run(step_type="split", input=0) == {
        "decision": {"dead_end": True, "cancel": {"step_types": ["ship-it"], "siblings": False}}
    }
    assert await run(step_type="refund", input="x") == {
        "decision": {"dead_end": True, "cancel": {"step_types": [], "siblings": True}}
    }
    assert await run(step_type="refund", input="") == {
        "decision": {"fail": {"message": "why?", "type": "Sorry"}}
    }


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("broken", {"message": "no", "type": "Broken", "non_retryable": True}),
        ("missing", {"message": "'missing'", "type": "KeyError", "non_retryable": True}),
        ("later", {"message": "later", "type": "StepError", "retry_after_seconds": 3}),
        ("nothing", {"message": "execute must return a decision, not NoneType", "type": "TypeError"}),
    ],
)
async def test_failures(item: str, expected: dict[str, Any]) -> None:
    failure = (await run(step_type="ship-it", input={"item": item}))["failure"]
    assert "Traceback" in failure.pop("stack_trace")
    assert failure == expected


async def test_an_input_that_does_not_fit_is_a_failure() -> None:
    failure = (await run(step_type="ship-it", input={"count": "three"}))["failure"]
    assert failure["type"] == "ValidationError"


async def test_rpcs() -> None:
    output = await run(kind="rpc", rpc_name="state-of", input="by", attributes={"by": {"a": 1}})
    assert output["result"] == {"a": 1}
    assert output["next"][0]["input"] == "by"
    assert await run(kind="rpc", rpc_name="plain") == {"result": 7}
    assert shape_of(Shop).rpcs["state-of"].lock_attributes == ("by",)


async def test_what_a_step_sees() -> None:
    seen: list[Any] = []

    class Looking(Flow, name="shop"):
        @step
        async def look(self, ctx: StepContext) -> Decision:
            seen.append((ctx.attempt, ctx.idempotency_key, ctx.checkpoint(Order), ctx.received("paid")))
            seen.append((ctx.satisfied("timer"), ctx.satisfied("other"), ctx.failure and ctx.failure.type))
            ctx.attributes["new"] = None
            seen.append((dict(ctx.attributes), len(ctx.attributes), "old" in ctx.attributes))
            with pytest.raises(KeyError):
                ctx.attributes["unknown"]
            return dead_end()

    await run(
        Looking,
        step_type="look",
        attempt=3,
        step_execution_id="look-2",
        checkpoint={"item": "a"},
        attributes={"old": [1]},
        failure={"message": "m", "type": "T"},
        conditions={"paid": {"satisfied": True, "values": [1, 2]}, "timer": {"satisfied": False}},
    )
    assert seen == [
        (3, "f1/look-2", Order("a"), (1, 2)),
        (False, False, "T"),
        ({"old": [1], "new": None}, 2, True),
    ]


def _wrong_flows() -> list[Any]:
    class Empty(Flow):
        pass

    class Twice(Flow):
        steps = (Ship, Ship)

    class BadStart(Flow):
        steps = (Ship,)
        start = "elsewhere"

    class LongName(Flow, name="x" * 257):
        steps = (Ship,)

    class NoContext(Flow):
        @step  # type: ignore[arg-type]
        async def work(self) -> Decision:
            return dead_end()

    class TooMuch(Flow):
        @step  # type: ignore[arg-type]
        async def work(self, ctx: StepContext, one: int, two: int) -> Decision:
            return dead_end()

    class Circle(Flow):
        @step(options=StepOptions(recovery="b"))
        async def a(self, ctx: StepContext) -> Decision:
            return dead_end()

        @step(options=StepOptions(recovery="a"))
        async def b(self, ctx: StepContext) -> Decision:
            return dead_end()

    return [Empty, Twice, BadStart, LongName, NoContext, TooMuch, Circle]


@pytest.mark.parametrize("flow", _wrong_flows(), ids=lambda flow: flow.__name__[:20])
def test_flows_that_cannot_work(flow: type[Flow]) -> None:
    with pytest.raises(DefinitionError):
        bind(flow)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MethodOptions(heartbeat_timeout=9),
        lambda: MethodOptions(timeout=0),
        lambda: RetryPolicy(backoff_coefficient=0.5),
        lambda: RetryPolicy(maximum_attempts=-1),
        lambda: RetryPolicy(initial_interval=0),
        lambda: timer(-1),
        lambda: channel("x", 0),
        lambda: wait_any(channel("a"), timer(1, id="a")).wire(),
        lambda: complete(1).cancelling("a"),
        lambda: fan_out(complete(1)),
        lambda: goto(7),  # type: ignore[call-overload]
    ],
)
def test_values_that_cannot_work(make: Any) -> None:
    with pytest.raises(DefinitionError):
        make()
