"""Where a step goes: R28 to R39, rule C."""

from __future__ import annotations

import pytest
import trio
from msgspec import Raw

from cluster.flows.machine import StopType
from cluster.flows.wire import Publication
from cluster.store.keys import QueueName
from tests.cluster.streams.lab import (
    COMPLETE,
    NAMESPACE,
    StreamLab,
    attempt,
    go_to,
    next_task,
    open_stream_lab,
)
from tests.store_time import next_millisecond
from tests.stream_client import Frame
from tests.waiting import LONG_PATIENCE, PATIENCE

STICKY_WAIT = 0.6

ONCE = {"execute": {"retry": {"maximum_attempts": 1}}}
ONLY_A: Frame = {"name": "F", "step_types": ["a"]}
ONLY_B: Frame = {"name": "F", "step_types": ["b"]}
A_AND_B = {"decision": {"next": [{"step_type": "a"}, {"step_type": "b"}]}}
FAN = {"decision": {"next": [{"step_type": "b"}, {"step_type": "b"}]}}


def decline(task: Frame) -> Frame:
    identity = {"slot": task["slot"], "attempt_id": task["task"]["attempt_id"]}
    return {"type": "decline", **identity, "reason": "unsupported"}


async def test_r28_the_worker_that_served_the_flow_gets_its_next_step(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1, lab[1].worker("w2", "F", slots=8) as w2:
        for number in range(12):
            await lab[number % 2].start("F")
            first, task = await next_task(w1, w2)
            await first.complete(task, go_to("b"))
            again, task = await next_task(w1, w2)
            assert again is first
            await again.complete(task, COMPLETE)


async def test_r29_a_busy_worker_is_waited_for_so_long_and_no_longer(valkey_url: str, prefix: str) -> None:
    async with (
        open_stream_lab(valkey_url, prefix, sticky_wait=STICKY_WAIT) as lab,
        lab[0].worker("w1", "F") as w1,
    ):
        await lab[0].start("F")
        task = await w1.next("task")
        async with lab[1].worker("w2", "F") as w2:
            began = trio.current_time()
            await w1.complete(task, FAN)
            await w1.next("task")
            other = await w2.next("task")
            assert trio.current_time() - began > STICKY_WAIT - 0.1
            assert attempt(other) == (1, 0)


async def test_r29_a_worker_that_becomes_free_in_time_gets_the_step(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        async with lab[1].worker("w2", "F") as w2:
            await w1.complete(task, FAN)
            await w1.complete(await w1.next("task"), {"decision": {"dead_end": True}})
            await w1.next("task")
            await w2.quiet(1.0)


async def test_r30_steps_do_not_wait_for_a_worker_that_goes_meanwhile(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        async with lab[1].worker("w2", "F", slots=2) as w2:
            await w1.complete(task, FAN)
            await w1.next("task")
            await w2.quiet(0.1)
            await w1.drop()
            assert attempt(await w2.next("task")) == (1, 0)


async def test_r30_long_after_a_worker_has_gone(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        flow_id = await lab[0].start("F")
        task = await w1.next("task")
        wait = {"step_type": "b", "options": {"wait_for": {}}}
        await w1.complete(task, {"decision": {"next": [wait]}})
        task = await w1.next("task")
        await w1.complete(task, {"conditions": {"mode": "all", "items": [{"id": "c", "channel": "ch"}]}})
    async with lab[1].worker("w2", "F") as w2:
        await lab[1].engine.publish(NAMESPACE, flow_id, Publication("ch", Raw(b"1")))
        await w2.next("task")


async def test_r32_older_runnable_work_goes_first_and_nobody_is_waited_for(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        mine = await lab[0].start("F")
        task = await w1.next("task")
        for number in range(4):
            await lab[0].start("F", flow_id=f"old{number}")
            await next_millisecond(lab[0].store)
        await trio.sleep(0.25)  # matching.syncMatchWait makes them a backlog
        await w1.complete(task, go_to("a"))
        assert (await w1.next("task"))["task"]["flow_id"] == "old0"
        async with lab[1].worker("w2", "F", slots=4) as w2:
            flows = [(await w2.next("task"))["task"]["flow_id"] for _ in range(4)]
            assert flows == ["old1", "old2", "old3", mine]


async def test_r33_work_that_nobody_can_run_is_no_backlog(lab: StreamLab) -> None:
    """The step goes to a worker that can, at once, though the sticky one is connected."""
    only_a, both = {"name": "F", "step_types": ["a"]}, {"name": "F", "step_types": ["a", "b"]}
    async with lab[0].worker("w1", only_a) as w1:
        await lab[0].start("F", "b")
        await lab[0].start("F", "a")
        task = await w1.next("task")
        await w1.complete(task, go_to("b"))
        await w1.quiet(0.2)
        async with lab[1].worker("w2", both, slots=2) as w2:
            tasks = [await w2.next("task") for _ in range(2)]
            assert [t["task"]["step_type"] for t in tasks] == ["b", "b"]
            assert {attempt(t)[0] for t in tasks} == {1}


async def test_sticky_steps_are_offered_to_others_when_the_worker_lacks_the_type(lab: StreamLab) -> None:
    only_a, only_b = {"name": "F", "step_types": ["a"]}, {"name": "F", "step_types": ["b"]}
    async with lab[0].worker("w1", only_a) as w1, lab[1].worker("w2", only_b) as w2:
        await lab[0].start("F", "a")
        await w1.complete(await w1.next("task"), go_to("b"))
        assert attempt(await w2.next("task"))[0] == 1


async def test_nobody_waits_for_a_busy_worker_whose_list_lacks_the_step(lab: StreamLab) -> None:
    async with lab[0].worker("w1", ONLY_A) as w1, lab[1].worker("w2", ONLY_B) as w2:
        await lab[0].start("F", "a")
        await w1.complete(await w1.next("task"), A_AND_B)
        assert (await w1.next("task"))["task"]["step_type"] == "a"
        assert attempt(await w2.next("task")) == (1, 0)


async def test_nobody_waits_for_a_busy_worker_that_declined_the_step(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F", "b", flow_id="odd")
        odd = await w1.next("task")
        await w1.send(decline(odd))
        await w1.next("confirmed")
        async with lab[1].worker("w2", ONLY_B, slots=2) as w2:
            assert (await w2.next("task"))["task"]["flow_id"] == "odd"
            await lab[0].start("F", "a")
            task = await w1.next("task")
            await lab[0].hub.presence.settled()
            await w1.complete(task, A_AND_B)
            assert (await w1.next("task"))["task"]["step_type"] == "a"
            assert attempt(await w2.next("task")) == (1, 0)


async def test_what_a_worker_can_run_is_known_wherever_a_step_becomes_ready(lab: StreamLab) -> None:
    """The worker served the flow over a connection that is gone; the one it has left cannot run the step."""
    wait = {"step_type": "b", "options": {"wait_for": {}}}
    async with lab[1].worker("w1", ONLY_A) as left, lab[1].worker("w2", ONLY_B) as w2:
        await lab[1].start("F", "a", flow_id="other")
        await left.next("task")
        await lab[0].start("F", "go", flow_id="f")
        async with lab[0].worker("w1", {"name": "F", "step_types": ["go", "b"]}) as both:
            await both.complete(await both.next("task"), {"decision": {"next": [wait]}})
            conditions = {"mode": "all", "items": [{"id": "c", "channel": "ch"}]}
            await both.complete(await both.next("task"), {"conditions": conditions})
            await both.send({"type": "half_close", "slot": 1})
            await both.next("closed")
            await lab[0].hub.presence.settled()
            await lab[0].engine.publish(NAMESPACE, "f", Publication("ch", Raw(b"1")))
            assert attempt(await w2.next("task")) == (1, 0)


async def test_steps_do_not_wait_any_more_once_no_slot_of_the_worker_can_run_them(lab: StreamLab) -> None:
    async with lab[1].worker("w1", ONLY_A) as left, lab[0].worker("w1", "F") as w1:
        for flow_id in ("f", "other"):
            await lab[0].start("F", "a", flow_id=flow_id)
        await left.next("task")
        task = await w1.next("task")
        async with lab[1].worker("w2", ONLY_B) as w2:
            await w1.complete(task, A_AND_B)
            await w1.next("task")
            await w2.quiet(0.1)
            await w1.drop()
            assert attempt(await w2.next("task")) == (1, 0)


async def test_r35_queued_steps_of_stopped_flows_are_never_handed_out(lab: StreamLab) -> None:
    for number in range(5):
        flow_id = await lab[0].start("F", flow_id=f"f{number}")
        await lab[1].engine.stop(NAMESPACE, flow_id, StopType.TERMINATE, "", wait=False)
    async with lab[0].worker("w1", "F") as w1:
        await w1.quiet(0.3)


async def test_r36_steps_come_in_the_order_they_became_ready(lab: StreamLab) -> None:
    for number in range(30):
        await lab[number % 2].start("F", flow_id=f"f{number:02}")
        await next_millisecond(lab[0].store)
    async with lab[0].worker("w1", "F") as w1:
        seen: list[str] = []
        for _ in range(30):
            task = await w1.next("task")
            seen.append(task["task"]["flow_id"])
            await w1.complete(task, COMPLETE)
    assert seen == sorted(seen)


async def test_r37_a_type_nobody_supports_blocks_nobody(lab: StreamLab) -> None:
    for _ in range(70):  # more types than a claim reads at once
        await lab[0].start("F", f"unknown{_}")
    for _ in range(5):
        await lab[0].start("F", "a")
    async with lab[1].worker("w1", {"name": "F", "step_types": ["a", "c"]}, slots=8) as w1:
        for _ in range(5):
            assert (await w1.next("task"))["task"]["step_type"] == "a"
        await w1.quiet(0.2)


@pytest.mark.parametrize("knows_what_it_lacks", [True, False])
async def test_r37_five_thousand_steps_nobody_supports_hold_up_nothing(
    lab: StreamLab, knows_what_it_lacks: bool
) -> None:
    """All of them are older. A worker without a list declines once, then it is not asked again."""
    many = {"decision": {"next": [{"step_type": "odd"}] * 999}}
    async with lab[0].worker("w1", {"name": "F", "step_types": ["many"]}, slots=6) as w1:
        for _ in range(6):
            await lab[0].start("F", "many")
        for _ in range(6):
            await w1.complete(await w1.next("task"), many)
    await lab[0].start("F", "a")
    served: Frame = {"name": "F", "step_types": ["a"]} if knows_what_it_lacks else {"name": "F"}
    async with lab[1].worker("w2", served) as w2:
        if not knows_what_it_lacks:
            declined = await w2.next("task")
            assert declined["task"]["step_type"] == "odd"
            await w2.send(decline(declined))
        task = await w2.next("task")
        assert task["task"]["step_type"] == "a"
        # At once means: not by looking through the others.
        assert lab[1].hub.matcher.statistics().claims <= 6
        await w2.complete(task, COMPLETE)
        for _ in range(5):
            await lab[0].start("F", "a")
            await w2.complete(await w2.next("task"), COMPLETE)
        assert lab[1].hub.matcher.statistics().tasks <= 7


async def test_r38_time_in_the_queue_is_no_time_of_the_method(lab: StreamLab) -> None:
    options = {"execute": {"timeout_seconds": 0.5, "retry": {"maximum_attempts": 1}}}
    flow_id = await lab[0].start("F", options=options)
    await trio.sleep(1.0)
    async with lab[0].worker("w1", "F") as w1:
        task = await w1.next("task")
        assert attempt(task) == (1, 0)
        assert (await w1.complete(task, COMPLETE))["accepted"]
    run = await lab[1].engine.wait_closed(NAMESPACE, flow_id, PATIENCE)
    assert run.state.status == "completed"


async def test_r66_r74_a_step_waits_for_a_free_slot_and_consumes_no_attempt(lab: StreamLab) -> None:
    async with lab[0].worker("w1", "F", slots=2) as w1:
        for _ in range(5):
            await lab[0].start("F", options=ONCE)
        first, second = await w1.next("task"), await w1.next("task")
        assert first["slot"] != second["slot"]
        await w1.quiet(0.3)  # two slots, two tasks
        for _ in range(3):
            await w1.complete(first, COMPLETE)
            first = await w1.next("task")
            assert attempt(first) == (1, 0)
            await w1.quiet(0.05)


async def test_r85_without_workers_steps_wait_and_timeouts_of_flows_count(lab: StreamLab) -> None:
    waits = await lab[0].start("F", options=ONCE)
    ends = await lab[0].start("F", timeout_ms=200)
    run = await lab[1].engine.wait_closed(NAMESPACE, ends, PATIENCE)
    assert (run.state.status, run.state.close_reason) == ("failed", "timeout")
    assert await lab[1].steps(waits) == [("a", "r", 1)]
    async with lab[1].worker("w1", "F") as w1:
        task = await w1.next("task")
        assert (task["task"]["flow_id"], attempt(task)) == (waits, (1, 0))
        await w1.quiet(0.2)


async def test_r39_namespaces_do_not_see_each_other(lab: StreamLab) -> None:
    await lab[0].start("F")
    async with lab[0].connect("other") as stranger:
        await stranger.hello("w1", "F")
        await stranger.open(1)
        await stranger.quiet(0.3)


async def test_wakes_reach_idle_slots_on_every_node(lab: StreamLab) -> None:
    """B1: nobody peeks here."""
    async with lab[0].worker("w1", "F") as w1, lab[1].worker("w2", "G") as w2:
        await w1.quiet(0.1)
        for _ in range(5):
            await lab[1].start("F")
            await w1.complete(await w1.next("task"), COMPLETE)
            await lab[0].start("G")
            await w2.complete(await w2.next("task"), COMPLETE)


async def test_a_backlog_is_known_to_nodes_that_serve_it(lab: StreamLab) -> None:
    """R32 over partitions: the committing node's memory of heads counts."""
    queue = QueueName("s", NAMESPACE, "F")
    async with lab[0].worker("w1", "F") as w1:
        await lab[0].start("F")
        task = await w1.next("task")
        await lab[1].start("F")
        await trio.sleep(0.3)
        assert lab[0].hub.matcher.behind(queue, "a")
        assert not lab[0].hub.matcher.behind(queue, "b")
        assert not lab[1].hub.matcher.behind(queue, "a")
        await w1.complete(task, COMPLETE)


async def test_many_workers_and_flows_lose_and_double_nothing(valkey_url: str, prefix: str) -> None:
    async with open_stream_lab(valkey_url, prefix) as lab:
        seen: list[str] = []
        confirmed: list[str] = []

        async def serve(node: int, name: str) -> None:
            async with lab[node].worker(name, "F", slots=4) as worker:
                started.set()
                while True:
                    try:
                        task = await worker.next("task", within=LONG_PATIENCE)
                    except AssertionError:
                        # When all is done the connections end, one a moment before another.
                        assert len(confirmed) == 400
                        return
                    seen.append(task["task"]["attempt_id"])
                    step = task["task"]["step_type"]
                    output = go_to("b") if step == "a" else COMPLETE
                    assert (await worker.complete(task, output))["accepted"]
                    confirmed.append(task["task"]["attempt_id"])
                    if len(confirmed) == 400:
                        nursery.cancel_scope.cancel()

        started = trio.Event()
        with trio.fail_after(LONG_PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(serve, number % 2, f"w{number}")
                await started.wait()
                for number in range(200):
                    nursery.start_soon(lab[number % 2].start, "F", "a")
        assert len(set(seen)) == 400
        assert {name.rsplit("-", 1)[1] for name in seen} == {"1.0"}
