"""Every workflow command, signal, update and end of the public SDK.

Client and worker talk to different nodes, a third one is asked for results, and a history page holds
two events, so every replay crosses pages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from durable_workflow import (
    Client,
    SignalFailed,
    UpdateFailed,
    UpdateRejected,
    WorkflowCancelled,
    WorkflowTerminated,
)

from nodes.cli.processes import Child
from tests.cluster_processes import Cluster, kill, worker_ready
from tests.sdk_client import with_client
from tests.waiting import eventually
from tests.wire import check_history, open_wire

Job = Callable[[Client], Awaitable[Any]]


class Bench:
    """A worker on one node and clients on the others."""

    def __init__(self, cluster: Cluster, queue: str, worker: Child) -> None:
        self.cluster = cluster
        self.queue = queue
        self.worker = worker

    async def start(self, workflow_type: str, *arguments: Any, **options: Any) -> None:
        async def job(client: Client) -> None:
            await client.start_workflow(
                workflow_type=workflow_type,
                task_queue=self.queue,
                workflow_id=self.queue,
                input=list(arguments),
                **options,
            )

        await self.ask(job)

    async def ask(self, job: Job) -> Any:
        return await with_client(self.cluster.nodes[0].url, job)

    async def signal(self, name: str, *arguments: Any) -> None:
        await self.ask(lambda client: client.signal_workflow(self.queue, name, args=list(arguments)))

    async def result(self, within: float = 120.0) -> Any:
        async def job(client: Client) -> Any:
            handle = client.get_workflow_handle(self.queue)
            return await client.get_result(handle, poll_interval=0.05, timeout=within)

        try:
            return await with_client(self.cluster.nodes[2].url, job, within + 5)
        except TimeoutError:
            raise AssertionError(self.worker.log.read_text()[-3000:]) from None

    async def run(self, workflow_type: str, *arguments: Any) -> Any:
        await self.start(workflow_type, *arguments)
        result = await self.result()
        check_history(await self.history())
        return result

    async def history(self, run_id: str | None = None) -> list[dict[str, Any]]:
        async with open_wire(self.cluster.nodes[2].url) as wire:
            return await wire.history(self.queue, run_id)

    async def types(self) -> list[str]:
        return [event["event_type"] for event in await self.history()]

    async def happened(self, event_type: str, count: int = 1) -> None:
        """Wait until the history has ``count`` events of a type."""

        async def look() -> bool:
            return (await self.types()).count(event_type) >= count

        await eventually(look, 20)

    async def describe(self, workflow_id: str | None = None) -> dict[str, Any]:
        async with open_wire(self.cluster.nodes[1].url) as wire:
            return await wire.describe(workflow_id or self.queue)


@pytest.fixture
async def bench(cluster: Cluster, queue: str) -> AsyncIterator[Bench]:
    worker = cluster.start_worker(queue, url=cluster.nodes[1].url)
    await worker_ready(worker)
    yield Bench(cluster, queue, worker)
    kill(worker)


async def test_signals_while_an_activity_runs(bench: Bench) -> None:
    await bench.start("inbox", 5, 1.0)
    for number in range(5):
        await bench.signal("add", number)
    assert await bench.result() == list(range(5))
    check_history(await bench.history())


async def test_activities_of_a_session_stay_on_one_worker(bench: Bench) -> None:
    second = bench.cluster.start_worker(bench.queue, url=bench.cluster.nodes[0].url)
    await worker_ready(second)
    pinned = await bench.run("pinned", f"session of {bench.queue}", 12)
    assert len(set(pinned)) == 1
    kill(second)


async def test_signals_before_the_first_poll(cluster: Cluster, queue: str) -> None:
    bench = Bench(cluster, queue, None)  # type: ignore[arg-type]
    await bench.start("inbox", 3, 0.0)
    for number in range(3):
        await bench.signal("add", number)
    types = await bench.types()
    assert types == ["StartAccepted", "WorkflowStarted", *["SignalReceived"] * 3]
    worker = bench.worker = cluster.start_worker(queue, url=cluster.nodes[1].url)
    try:
        assert await bench.result() == [0, 1, 2]
    finally:
        kill(worker)


async def test_a_signal_through_a_started_handle_names_its_run(bench: Bench) -> None:
    async def job(client: Client) -> Any:
        handle = await client.start_workflow(
            workflow_type="inbox", task_queue=bench.queue, workflow_id=bench.queue, input=[1, 0.0]
        )
        await handle.signal("add", ["run"])
        return await handle.result(poll_interval=0.05, timeout=120)

    assert await bench.ask(job) == ["run"]


async def test_an_undeclared_signal_is_refused(bench: Bench) -> None:
    await bench.start("patience", 20)
    with pytest.raises(SignalFailed, match="no signal"):
        await bench.signal("no such")


async def test_a_wait_times_out_and_the_next_one_is_satisfied(bench: Bench) -> None:
    await bench.start("patience", 1)
    await bench.happened("ConditionWaitTimedOut")
    await bench.signal("nudge")
    await bench.happened("ConditionWaitOpened", 3)
    await bench.signal("nudge")
    assert await bench.result() == [False, True, 2]
    check_history(await bench.history())


async def test_a_timer_that_lost_fires_during_a_later_wait(bench: Bench) -> None:
    await bench.start("loser")
    await bench.happened("SelectionResolved")
    await bench.happened("TimerFired")
    await bench.signal("finish")
    assert await bench.result() == ["a", "fast", True]


async def test_updates_apply_once_and_wake_conditions(bench: Bench) -> None:
    await bench.start("counter", 12)

    async def add(client: Client) -> list[Any]:
        first = await client.update_workflow(bench.queue, "add", args=[5], wait_for="completed")
        second = await client.update_workflow(bench.queue, "add", args=[5], wait_for="accepted")
        third = await client.update_workflow(bench.queue, "add", args=[2], wait_for="completed")
        return [first["result"], second["update_status"], third["result"]]

    assert await bench.ask(add) == [5, "accepted", 12]
    assert await bench.result() == [12, 24]
    types = await bench.types()
    assert types.count("UpdateApplied") == types.count("UpdateCompleted") == 3


async def test_an_update_that_fails_tells_its_caller_and_changes_nothing(bench: Bench) -> None:
    await bench.start("counter", 1)

    async def add(client: Client) -> None:
        await client.update_workflow(bench.queue, "add", args=[-1], wait_for="completed")

    with pytest.raises(UpdateFailed, match="only up"):
        await bench.ask(add)
    assert "UpdateApplied" not in await bench.types()
    await bench.signal("stop")
    assert await bench.result() == [0, 0]


async def test_validators_approve_before_an_update_is_accepted(bench: Bench) -> None:
    await bench.start("guarded")

    async def add(client: Client, amount: int) -> Any:
        return (await client.update_workflow(bench.queue, "add", args=[amount], wait_for="completed"))[
            "result"
        ]

    assert await bench.ask(lambda client: add(client, 6)) == 6
    for refused in (3, 6):
        with pytest.raises(UpdateRejected, match=f"6 and {refused} do not go together"):
            await bench.ask(partial(add, amount=refused))
    assert await bench.ask(lambda client: add(client, 4)) == 10
    assert await bench.result() == 10
    assert (await bench.types()).count("UpdateAccepted") == 2


async def test_children_side_by_side_and_one_that_fails(bench: Bench) -> None:
    results, failure = await bench.run("parent", 4)
    assert results == [0, 1, 2, 3]
    assert "no" in failure
    types = await bench.types()
    assert types.count("ChildRunCompleted") == 4
    assert types.count("ChildRunFailed") == 1


@pytest.mark.parametrize(
    ("policy", "status"),
    [("request_cancel", "cancelled"), ("terminate", "terminated"), ("abandon", "waiting")],
)
async def test_what_becomes_of_children(bench: Bench, policy: str, status: str) -> None:
    await bench.start("guardian", policy)
    await bench.happened("ChildRunStarted")
    await bench.signal("leave")
    assert await bench.result() == "left"
    started = next(e for e in await bench.history() if e["event_type"] == "ChildRunStarted")
    child = started["payload"]["child_workflow_instance_id"]

    async def over() -> bool:
        return str((await bench.describe(child))["status"]) == status

    await eventually(over, 20)
    assert ("ParentClosePolicyApplied" in await bench.types()) == (policy != "abandon")


@pytest.mark.parametrize(
    ("verb", "name"), [("cancel", "ChildWorkflowCancelled"), ("terminate", "ChildWorkflowTerminated")]
)
async def test_a_stopped_child_is_reported(bench: Bench, verb: str, name: str) -> None:
    await bench.start("waiter")
    await bench.happened("ChildRunStarted")
    started = next(e for e in await bench.history() if e["event_type"] == "ChildRunStarted")
    child = started["payload"]["child_workflow_instance_id"]
    await bench.ask(lambda client: getattr(client, f"{verb}_workflow")(child, reason="enough"))
    kind, text = await bench.result()
    assert kind in (name, "ChildWorkflowFailed")
    assert "enough" in text


async def test_a_child_is_tried_again(bench: Bench) -> None:
    assert "again" in await bench.run("stubborn", 3)
    history = await bench.history()
    started = next(event for event in history if event["event_type"] == "ChildRunStarted")
    child = started["payload"]["child_workflow_instance_id"]
    description = await bench.describe(child)
    assert description["run_count"] == 3
    assert description["status"] == "failed"
    assert [event["event_type"] for event in history].count("ChildRunFailed") == 1


async def test_a_chain_of_twenty_runs(bench: Bench) -> None:
    await bench.start("chain", 20, memo={"kept": True})
    assert await bench.result() == "end of chain"
    description = await bench.describe()
    assert description["run_count"] == description["run_number"] == 21
    assert description["memo"] == {"kept": True, "left": 0}


async def test_a_child_that_goes_on_in_further_runs_reports_from_the_last(bench: Bench) -> None:
    assert await bench.run("chained_parent", 5) == "end of chain"


async def test_side_effects_versions_memo_and_search_attributes(bench: Bench) -> None:
    assert await bench.run("notes") == [7, 2, True]
    description = await bench.describe()
    assert description["memo"] == {"b": {"x": [1, None], "y": 1}, "c": 2}
    assert description["search_attributes"] == {"Customer": "x"}


@pytest.mark.parametrize(
    ("seconds", "timer", "expected"),
    [(0.0, 30, [0, "activity", "after"]), (20.0, 1, [1, "timer", "after"])],
)
async def test_a_race_of_activity_and_timer(
    bench: Bench, seconds: float, timer: int, expected: list[Any]
) -> None:
    assert await bench.run("race", seconds, timer) == expected
    assert "SelectionOperationCancelled" in await bench.types()


async def test_a_race_with_a_list_in_it(bench: Bench) -> None:
    assert await bench.run("nested_race") == ["both", [1, 2], 3]


async def test_local_activities(bench: Bench) -> None:
    first, failed, remote = await bench.run("local")
    assert [first, remote] == ["here", "there"]
    assert "bad" in failed


async def test_cancel_reaches_a_running_activity_at_its_heartbeat(bench: Bench) -> None:
    await bench.start("cancel_me")
    async with open_wire(bench.cluster.nodes[0].url) as wire:

        async def working() -> bool:
            return "activity" in ((await wire.describe(bench.queue))["wait_kind"] or "")

        await eventually(working, 20)
    await bench.ask(lambda client: client.cancel_workflow(bench.queue, reason="enough"))
    with pytest.raises(WorkflowCancelled):
        await bench.result()
    check_history(await bench.history())
    await eventually(lambda: _says(bench.worker, "ancel"), 20)


async def _says(worker: Child, text: str) -> bool:
    return text in worker.log.read_text()


async def test_terminate(bench: Bench) -> None:
    await bench.start("patience", 30)
    await bench.ask(lambda client: client.terminate_workflow(bench.queue, reason="enough"))
    with pytest.raises(WorkflowTerminated):
        await bench.result()
    check_history(await bench.history())
