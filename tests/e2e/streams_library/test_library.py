"""Workers and clients of the library on real nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from headrace import (
    Client,
    Decision,
    Flow,
    FlowAlreadyStarted,
    FlowFailed,
    FlowHandle,
    FlowNotActive,
    FlowNotFound,
    FlowStillRunning,
    MethodOptions,
    NonRetryableError,
    RetryPolicy,
    RpcContext,
    RpcFailed,
    RpcUnavailable,
    Step,
    StepContext,
    StepError,
    StepOptions,
    UnknownRpc,
    Wait,
    Worker,
    channel,
    complete,
    dead_end,
    fail,
    fan_out,
    goto,
    rpc,
    step,
    timer,
    wait_all,
    wait_any,
)
from tests.cluster_processes import TOP, Cluster, environment
from tests.waiting import PATIENCE, eventually

EXAMPLES = ["order", "fan_out", "long_job"]
SOON = MethodOptions(retry=RetryPolicy(initial_interval=0.05, maximum_attempts=3))


def named(flow: type[Flow], name: str) -> Any:
    """A flow under a name that no other test uses."""
    return type(flow.__name__, (flow,), {"name": name})


@asynccontextmanager
async def working(
    urls: str | Sequence[str], flows: Sequence[Any], slots: int = 4, **options: Any
) -> AsyncIterator[Worker]:
    async with Worker(urls, flows, max_concurrent_tasks=slots, **options) as worker:
        with trio.fail_after(PATIENCE):
            await worker.wait_pull_registered()
        yield worker


# -- examples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("nodes", [1, 2])
async def test_examples_run_alone(cluster: Cluster, name: str, nodes: int) -> None:
    first, second = cluster.nodes[0].url, cluster.nodes[nodes - 1].url
    environ = environment(HEADRACE_URL=first, HEADRACE_WORKER_URL=second)
    done = await trio.run_process(
        [sys.executable, str(TOP / f"examples/{name}.py")],
        env=environ,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    assert done.stdout


# -- flows ------------------------------------------------------------------------------------


@dataclass
class Item:
    name: str
    count: int = 1


class Pack(Step[Item], name="pack"):
    async def execute(self, ctx: StepContext, item: Item) -> Decision:
        assert isinstance(item, Item)
        ctx.publish("packed", item)
        return dead_end()


class Everything(Flow):
    steps = (Pack,)
    start = "begin"

    @step
    def begin(self, ctx: StepContext, items: list[Item]) -> Decision:
        ctx.attributes["customer"] = "käthe"
        return fan_out([goto(Pack, item) for item in items], goto(Everything.count, len(items)))

    @step
    async def count(self, ctx: StepContext, number: int) -> Decision:
        names = sorted(item["name"] for item in ctx.received("packed"))
        return complete({"names": names, "customer": ctx.attributes["customer"]})

    @count.wait_for
    async def all_packed(self, ctx: StepContext, number: int) -> Wait:
        return wait_all(channel("packed", number), timer(0.1))


async def test_typed_steps_channels_timers_and_attributes(cluster: Cluster, queue: str) -> None:
    flow = named(Everything, queue)
    async with working(cluster.url, [flow]), Client(cluster.url) as client:
        handle = await client.start(flow, [Item("a"), Item("b", 2)], flow_id=f"f/{queue} ü")
        result = await handle.result(timeout_seconds=60)
        assert result == {"names": ["a", "b"], "customer": "käthe"}
        described = await handle.describe()
        assert described["status"] == "completed"
        assert described["attributes"] == {"customer": "käthe"}
        steps = (await handle.steps())["steps"]
        assert {s["step_execution_id"] for s in steps} == {"begin-1", "pack-1", "pack-2", "count-1"}
        listed = await client.list(flow_type=queue)
        assert [f["flow_id"] for f in listed["flows"]] == [handle.flow_id]


class Failing(Flow):
    @step(options=StepOptions(execute=SOON, recovery="recover"))
    async def retried(self, ctx: StepContext, how: str) -> Decision:
        match how:
            case "retry" if ctx.attempt == 1:
                raise StepError("later", retry_after=0.01)
            case "retry":
                return complete(ctx.attempt)
            case "never":
                raise NonRetryableError("broken for good", type="Broken")
            case _:
                return fail("the flow is over", type="Over")

    @step
    async def recover(self, ctx: StepContext, how: str) -> Decision:
        assert ctx.failure is not None
        return complete([ctx.failure.type, ctx.failure.message, how])


async def test_retries_failures_and_recoveries(cluster: Cluster, queue: str) -> None:
    flow = named(Failing, queue)
    async with working(cluster.url, [flow]), Client(cluster.url) as client:
        retried = await client.start(flow, "retry")
        broken = await client.start(flow, "never")
        over = await client.start(flow, "fail")
        assert await retried.result(timeout_seconds=60) == 2
        assert await broken.result(timeout_seconds=60) == ["Broken", "broken for good", "never"]
        with pytest.raises(FlowFailed, match="the flow is over") as caught:
            await over.result(timeout_seconds=60)
        assert caught.value.failure == {"message": "the flow is over", "type": "Over"}


class Talking(Flow):
    def __init__(self) -> None:
        self.release = trio.Event()

    @step
    async def begin(self, ctx: StepContext) -> Decision:
        return goto(Talking.wait)

    @step
    async def wait(self, ctx: StepContext) -> Decision:
        if not ctx.satisfied("end"):
            return goto(Talking.wait)
        return complete(ctx.attributes.get("said", []))

    @wait.wait_for
    def until_told(self, ctx: StepContext) -> Wait:
        return wait_any(channel("end"), timer(60))

    @step
    async def busy(self, ctx: StepContext) -> Decision:
        await self.release.wait()
        return dead_end()

    @rpc
    async def say(self, ctx: RpcContext, words: list[str]) -> int:
        said = [*ctx.attributes.get("said", []), *words]
        ctx.attributes["said"] = said
        return len(said)

    @rpc
    def shout(self, ctx: RpcContext, word: str) -> str:
        raise ValueError(f"not so loud: {word}")

    @rpc
    async def occupy(self, ctx: RpcContext, times: int) -> None:
        for _ in range(times):
            ctx.start(goto(Talking.busy))


async def test_rpcs(cluster: Cluster, queue: str) -> None:
    flow = named(Talking, queue)
    async with working(cluster.nodes[0].url, [flow]), Client(cluster.nodes[1].url) as client:
        handle = await client.start(flow)
        assert await handle.rpc(Talking.say, ["one"]) == 1
        assert await handle.rpc("say", ["two", "three"], type=int) == 3
        with pytest.raises(RpcFailed) as failed:
            await handle.rpc(Talking.shout, "hey")
        assert failed.value.failure["type"] == "ValueError"
        with pytest.raises(UnknownRpc):
            await handle.rpc("whisper")
        await handle.publish("end")
        assert await handle.result(timeout_seconds=60) == ["one", "two", "three"]


class Impatient(Flow, name="impatient"):
    """Its step takes longer than the flow may."""

    @step
    async def work(self, ctx: StepContext) -> Decision:
        await trio.sleep_forever()
        return dead_end()

    @step
    async def late(self, ctx: StepContext) -> Decision:
        assert ctx.failure is not None
        return complete({"type": ctx.failure.type, "attempt": ctx.attempt})

    on_timeout = late


async def test_a_timeout_handler_decides(cluster: Cluster, queue: str) -> None:
    flow = named(Impatient, queue)
    async with Client(cluster.url) as client, Worker(cluster.url, [flow], max_concurrent_tasks=2) as worker:
        await worker.wait_pull_registered()
        handle = await client.start(flow, timeout_seconds=1)
        assert await handle.result(timeout_seconds=60) == {"type": "FlowTimeout", "attempt": 1}
        failed = await client.start(flow, timeout_seconds=1, timeout_policy="fail")
        assert (await failed.wait(timeout_seconds=60)).failure is not None


class Counter(Flow, name="counter"):
    """Counts its calls in the flow and outside it."""

    def __init__(self) -> None:
        self.calls = 0

    @step
    async def idle(self, ctx: StepContext) -> Decision:
        return complete()

    @idle.wait_for
    def forever(self, ctx: StepContext) -> Wait:
        return wait_all(channel("never"))

    @rpc
    async def count(self, ctx: RpcContext) -> int:
        self.calls += 1
        ctx.attributes["calls"] = ctx.attributes.get("calls", 0) + 1
        return int(ctx.attributes["calls"])

    @rpc
    async def nonsense(self, ctx: RpcContext) -> float:
        return float("nan")


async def test_a_repeated_rpc_is_answered_from_memory(cluster: Cluster, queue: str) -> None:
    kind = named(Counter, queue)
    flow = kind()
    async with Client(cluster.url) as client, Worker(cluster.url, [flow], max_concurrent_tasks=2) as worker:
        await worker.wait_pull_registered()
        handle = await client.start(flow)
        assert [await handle.rpc("count", request_id="once") for _ in range(3)] == [1, 1, 1]
        assert await handle.rpc("count") == 2
        assert flow.calls == 2
        with pytest.raises(RpcFailed, match="NaN"):
            await handle.rpc("nonsense")


async def test_r61_an_rpc_without_a_worker_is_unavailable(cluster: Cluster, queue: str) -> None:
    flow = named(Talking, queue)
    async with Client(cluster.url) as client:
        handle = await client.start(flow)
        with pytest.raises(RpcUnavailable):
            await handle.rpc(Talking.say, [], timeout_seconds=0.5)
        await handle.stop("terminate")


async def test_r64_a_reserved_slot_answers_while_all_others_are_busy(cluster: Cluster, queue: str) -> None:
    talking = named(Talking, queue)()
    async with working(cluster.url, [talking], slots=3), Client(cluster.url) as client:
        handle = await client.start(type(talking))
        await handle.rpc(Talking.occupy, 2)

        async def all_busy() -> bool:
            steps = (await handle.describe())["open_steps"]
            return [step["state"] for step in steps].count("running") == 2

        await eventually(all_busy)
        with trio.fail_after(PATIENCE):
            assert await handle.rpc(Talking.say, ["still here"]) == 1
        talking.release.set()
        await handle.stop("terminate")


async def test_clients_get_typed_errors(cluster: Cluster, queue: str) -> None:
    flow = named(Talking, queue)
    async with Client(["http://127.0.0.1:1", cluster.url]) as client:
        handle = await client.start(flow, flow_id=queue, request_id="once")
        again = await client.start(flow, flow_id=queue, request_id="once", ignore_already_started=True)
        assert again.run_id == handle.run_id
        with pytest.raises(FlowAlreadyStarted) as started:
            await client.start(flow, flow_id=queue)
        assert started.value.run_id == handle.run_id
        with pytest.raises(FlowStillRunning):
            await handle.wait(timeout_seconds=0.1)
        assert await handle.publish("end", request_id="p1")
        assert not await handle.publish("end", request_id="p1")
        await handle.stop("terminate", reason="enough")
        outcome = await handle.wait(timeout_seconds=60)
        assert (outcome.status, outcome.completed) == ("terminated", False)
        with pytest.raises(FlowNotActive):
            await handle.publish("end")
        with pytest.raises(FlowNotFound):
            await client.describe("nobody")


# -- attempts ---------------------------------------------------------------------------------


class Slow(Flow):
    """``began`` tells of attempts; they end when ``release`` is set."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.cancelled: list[str] = []
        self.release = trio.Event()

    @step(options=StepOptions(execute=SOON))
    async def work(self, ctx: StepContext) -> Decision:
        self.began.append(ctx.attempt)
        try:
            await self.release.wait()
        except trio.Cancelled:
            self.cancelled.append(ctx.cancel_reason)
            raise
        return complete({"attempt": ctx.attempt, "worker": ctx.worker_id})

    async def running(self, number: int = 1) -> None:
        await eventually(lambda: len(self.began) >= number, 20)


async def started(client: Client, slow: Slow) -> FlowHandle:
    handle = await client.start(type(slow))
    await slow.running()
    return handle


async def test_a_stopped_flow_cancels_its_handlers(cluster: Cluster, queue: str) -> None:
    slow = named(Slow, queue)()
    async with working(cluster.url, [slow]), Client(cluster.url) as client:
        handle = await started(client, slow)
        await handle.stop("terminate", reason="enough")
        await eventually(lambda: bool(slow.cancelled), 20)


async def test_r76_r81_a_stop_lets_the_attempt_finish(cluster: Cluster, queue: str) -> None:
    slow = named(Slow, queue)()
    async with Client(cluster.url) as client:
        async with working(cluster.url, [slow]) as worker:
            handle = await started(client, slow)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.stop)
                await eventually(lambda: worker.stopping)
                slow.release.set()
        result = await handle.result(timeout_seconds=60)
        assert result == {"attempt": 1, "worker": worker.worker_id}


async def test_r79_the_drain_deadline_loses_the_attempt(cluster: Cluster, queue: str) -> None:
    slow, other = named(Slow, queue)(), named(Slow, queue)()
    other.release.set()
    async with Client(cluster.url) as client:
        async with working(cluster.url, [slow], stop_drain_timeout=0.2):
            handle = await started(client, slow)
        assert slow.cancelled == ["the worker is stopping"]
        async with working(cluster.url, [other]):
            assert (await handle.result(timeout_seconds=60))["attempt"] == 2


async def test_r53_half_closing_returns_nothing_that_ran(cluster: Cluster, queue: str) -> None:
    """A worker that comes and goes while work waits consumes no attempt."""
    flow = named(Slow, queue)
    async with Client(cluster.url) as client:
        handles = [await client.start(flow) for _ in range(5)]
        for _ in range(3):
            slow = flow()
            slow.release.set()
            async with Worker(cluster.url, [slow], max_concurrent_tasks=8) as worker:
                await worker.wait_pull_registered()
        last = flow()
        last.release.set()
        async with working(cluster.url, [last]):
            for handle in handles:
                assert (await handle.result(timeout_seconds=60))["attempt"] == 1


class Old(Flow):
    @step
    async def work(self, ctx: StepContext) -> Decision:
        return complete("old")


class New(Flow):
    @step
    async def work(self, ctx: StepContext) -> Decision:
        return complete("new")

    @work.wait_for
    def soon(self, ctx: StepContext) -> Wait:
        return wait_all()


async def test_r40_r41_what_a_worker_lacks_goes_to_another_as_the_same_attempt(
    cluster: Cluster, queue: str
) -> None:
    async with Client(cluster.url) as client:
        async with working(cluster.url, [named(Old, queue)]):
            handle = await client.start(named(New, queue))
            with pytest.raises(FlowStillRunning):
                await handle.wait(timeout_seconds=1)
            async with working(cluster.url, [named(New, queue)]):
                while (await handle.wait(timeout_seconds=60)).status == "running":
                    pass
        steps = (await handle.steps())["steps"]
        assert [(s["method"], s["attempt"]) for s in steps] == [("wait_for", 1), ("execute", 1)]


async def test_a_plain_handler_notices_its_cancellation_in_a_heartbeat(cluster: Cluster, queue: str) -> None:
    ended: list[bool] = []
    began = trio.Event()
    token = trio.lowlevel.current_trio_token()

    class Plain(Flow, name=queue):
        @step
        def work(self, ctx: StepContext) -> Decision:
            token.run_sync_soon(began.set)
            try:
                while not ctx.cancelled:
                    ctx.heartbeat()
                return complete("cancelled in time")
            finally:
                ended.append(ctx.cancelled)

    async with working(cluster.url, [Plain]), Client(cluster.url) as client:
        handle = await client.start(Plain)
        await began.wait()
        await handle.stop("terminate")
        await eventually(lambda: bool(ended), 20)
    assert ended == [True]


def test_a_worker_needs_nothing_of_the_server() -> None:
    names = ("redis", "quart", "hypercorn", "structlog")
    program = f"import headrace, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        cwd=Path("/"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
