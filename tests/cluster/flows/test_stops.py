"""Ends of flows that are not over: stops, timeouts, heartbeats, waits."""

from __future__ import annotations

import orjson
import pytest
import trio

from cluster.errors import Refused
from cluster.flows.engine import ResultKind
from cluster.flows.limits import FlowLimits
from cluster.flows.machine import StopType
from cluster.flows.records import FlowStatus, TimeoutHandler, TimeoutPolicy
from cluster.queues.sticky import StickyTimers
from cluster.store.store import Store
from tests.cluster.flows.lab import DEAD_END, NAMESPACE, HandOut, Lab, complete, go_to, wait_for
from tests.waiting import PATIENCE, eventually


async def stop(lab: Lab, kind: StopType, *, wait: bool = False, flow_id: str = "f1") -> FlowStatus:
    run = await lab.engine.stop(NAMESPACE, flow_id, kind, "why", wait)
    return run.state.status


async def test_queued_steps_of_a_stopped_flow_are_never_handed_out(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to(*["many"] * 300))
    await lab.start("other", flow_id="f2")
    assert await stop(lab, StopType.TERMINATE) is FlowStatus.TERMINATED

    taken: list[HandOut] = []
    with trio.fail_after(PATIENCE):
        while not taken:  # a claim passes over a few dead entries only
            taken = await lab.take(most=10)
    assert [one.step for one in taken] == ["other-1"]
    await lab.work_off()
    await lab.finish(taken[0], complete())
    await lab.take()
    assert "task" not in await lab.remains()


async def test_a_cooperative_cancel(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to("a", "b", "c"))
    a = await lab.take_one("a")
    b = await lab.take_one("b")
    assert await stop(lab, StopType.CANCEL, wait=True) is FlowStatus.RUNNING
    assert await lab.take(most=5) == []
    beat = await lab.engine.heartbeat(a.claim.task_id, 1, 0, "w1", None)
    assert (beat.continue_, beat.cancel_requested) == (True, True)

    assert (await lab.finish(a, go_to("more"))).accepted
    assert await lab.status() == "running"
    assert (await lab.finish(b, kind=ResultKind.RETURNED)).accepted
    assert await lab.status() == "canceled"
    assert await lab.take(most=5) == []


async def test_a_node_that_dies_amid_a_stop(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.start()
    engine = lab.new_engine()

    async def dies(*_: object) -> None:
        raise trio.BrokenResourceError

    decide = engine.decide
    calls = 0

    async def decide_once(job: object) -> object:
        nonlocal calls
        calls += 1
        if calls > 1:
            await dies()
        return await decide(job)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "decide", decide_once)
    with pytest.raises(trio.BrokenResourceError):
        await engine.stop(NAMESPACE, "f1", StopType.CANCEL, "why", True)
    assert await lab.status() == "running"
    assert await lab.take() == []
    await lab.skip_to("z")
    assert await lab.status() == "canceled"


async def test_the_timeout_of_a_flow(lab: Lab) -> None:
    await lab.start(timeout_ms=60_000)
    taken = await lab.take_one()
    await lab.skip_to("r")
    run = await lab.engine.read(NAMESPACE, "f1")
    assert run.state.failure is not None
    assert (run.state.status, run.state.failure["type"]) == ("failed", "FlowTimeout")
    assert (await lab.finish(taken, complete())).reason == "flow_closed"

    await lab.start(timeout_ms=60_000, timeout_policy=TimeoutPolicy.CANCEL)
    await lab.skip_to("r")
    await lab.skip_to("z")
    assert await lab.status() == "canceled"
    assert await lab.timers() == {}


async def test_a_timeout_handler(lab: Lab) -> None:
    """HANDLER: whatever is open is cancelled, one step decides; fired by all nodes it begins once."""
    handler = TimeoutHandler(step_type="late", input=b"7")
    await lab.start(timeout_ms=60_000, timeout_policy=TimeoutPolicy.HANDLER, timeout_handler=handler)
    await lab.do(go_to("a", "b"))
    a = await lab.take_one("a")
    await lab.skip_to("r")
    assert (await lab.finish(a, complete())).reason == "stale"
    (late,) = await lab.take(most=5)
    assert (late.step, late.body["input"], late.body["failure"]["type"]) == ("late-1", 7, "FlowTimeout")
    view = await lab.engine.describe(NAMESPACE, "f1")
    assert (view.run.state.timed_out, view.run.state.status) == (True, "running")
    assert (await lab.finish(late, complete("sorry"))).accepted
    assert await lab.status() == "completed"
    assert await lab.timers() == {}


async def test_d11_returns_slow_down_and_consume_no_attempt(lab: Lab) -> None:
    await lab.start()
    for delivery in range(6):
        taken = await lab.take_one()
        assert (taken.claim.attempt, taken.claim.delivery) == (1, delivery)
        assert (await lab.finish(taken, kind=ResultKind.RETURNED)).accepted
    assert await lab.take() == []
    (timer,) = await lab.timers()
    assert timer == f"sticky {taken.claim.task_id}"
    timers = StickyTimers(lab.store)

    async def is_back() -> bool:
        due_ms = (await lab.timers()).get(timer)
        if due_ms is not None:
            await timers.due(timer, due_ms)
        return due_ms is None

    await eventually(is_back)
    again = await lab.take_one()
    assert (again.claim.attempt, again.claim.delivery) == (1, 6)
    # A decline leaves its worker out as ever, however long the pause.
    assert (await lab.finish(again, kind=ResultKind.DECLINED)).accepted
    await eventually(is_back)
    assert await lab.take(worker="w1") == []
    assert (await lab.take_one(worker="w2")).claim.delivery == 7


async def test_what_waits_after_it_came_back_goes_with_its_flow(lab: Lab) -> None:
    await lab.start()
    for _ in range(6):
        await lab.finish(await lab.take_one(), kind=ResultKind.RETURNED)
    assert await stop(lab, StopType.TERMINATE) is FlowStatus.TERMINATED
    assert await lab.timers() == {}
    assert "task" not in await lab.remains()


async def test_method_and_heartbeat_timeouts(lab: Lab) -> None:
    await lab.start(options={"execute": {"timeout_seconds": 100, "heartbeat_timeout_seconds": 50}})
    assert await lab.timers() == {}
    taken = await lab.take_one()
    (due_ms,) = (await lab.timers()).values()
    await lab.engine.heartbeat(taken.claim.task_id, 1, 0, "w1", b'"half"')
    (moved_ms,) = (await lab.timers()).values()
    assert due_ms <= moved_ms <= due_ms + 5_000
    await lab.skip_to("s1")
    view = await lab.engine.describe(NAMESPACE, "f1")
    (step,) = view.run.steps.values()
    assert step.last_failure is not None
    assert (step.attempt, step.last_failure["type"]) == (2, "HeartbeatTimeout")
    late = await lab.engine.heartbeat(taken.claim.task_id, 1, 0, "w1", None)
    assert (late.continue_, late.reason) == (False, "stale")
    await lab.skip_to("s1")
    assert (await lab.take_one()).body["checkpoint"] == "half"


async def test_a_heartbeat_without_a_checkpoint_clears_it(lab: Lab) -> None:
    await lab.start()
    taken = await lab.take_one()
    task_id = taken.claim.task_id
    await lab.engine.heartbeat(task_id, 1, 0, "w1", b"1")
    await lab.engine.heartbeat(task_id, 1, 0, "w1", None, keep_checkpoint=True)
    view = await lab.engine.describe(NAMESPACE, "f1")
    assert view.tasks[1].checkpoint == b"1"
    await lab.engine.heartbeat(task_id, 1, 0, "w1", None)
    await lab.fail(taken, retry_after_seconds=0)
    assert "checkpoint" not in (await lab.take_one()).body
    for wrong in ((task_id, 1, 1, "w1"), (task_id, 1, 0, "w2"), ("nonsense", 1, 0, "w1")):
        assert not (await lab.engine.heartbeat(*wrong, None)).continue_


async def test_waiting_for_the_end(lab: Lab) -> None:
    await lab.start()
    taken = await lab.take_one()
    watcher = lab.new_engine()
    seen: list[FlowStatus] = []

    async def wait(seconds: float) -> None:
        seen.append((await watcher.wait_closed(NAMESPACE, "f1", seconds)).state.status)

    await wait(0)
    await wait(0.01)
    assert seen == [FlowStatus.RUNNING, FlowStatus.RUNNING]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait, 60)
            await eventually(lambda: watcher.waits == 3)
            await lab.finish(taken, complete())
    await wait(60)
    assert seen[2:] == [FlowStatus.COMPLETED] * 4


async def test_waits_end_with_their_node(lab: Lab) -> None:
    await lab.start()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lab.engine.wait_closed, NAMESPACE, "f1", 60)
            await eventually(lambda: lab.engine.waits == 1)
            lab.engine.close()


async def test_step_history_in_pages(lab: Lab) -> None:
    await lab.start("s")
    for _ in range(25):
        await lab.do(go_to("s"))
    sequences: list[int] = []
    token: str | None = ""
    while token is not None:
        page = await lab.engine.steps(NAMESPACE, "f1", page_size=10, token=token)
        sequences += [orjson.loads(entry)["sequence"] for entry in page.entries]
        token = page.next_page_token
    assert sequences == list(range(1, 26))


async def test_rpcs_read_and_change(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}})
    await lab.do(wait_for("all", {"id": "m", "channel": "c"}))
    rpc = await lab.engine.begin_rpc(NAMESPACE, "f1", "add", b'{"n": 1}', locks=["total"])
    body = orjson.loads(rpc.body)
    assert (rpc.last_worker, body["rpc_name"], body["input"], body["kind"]) == ("w1", "add", {"n": 1}, "rpc")
    with pytest.raises(Refused) as refused:
        await lab.new_engine().begin_rpc(NAMESPACE, "f1", "add", b"1", locks=["total"])
    assert refused.value.reason == "rpc_lock_conflict"
    output = {"result": [1], "attributes": {"total": 1}, "publish": [{"channel": "c", "value": 2}]}
    answer = await lab.engine.apply_rpc(rpc, "w9", output)
    assert orjson.loads(orjson.dumps(answer)) == {"result": [1]}
    taken = await lab.take_one(worker="w2")
    assert taken.body["attributes"] == {"total": 1}
    assert taken.body["conditions"]["m"]["values"] == [2]
    assert await lab.timers() != {}
    await lab.finish(taken, complete())

    closed = await lab.engine.begin_rpc(NAMESPACE, "f1", "look", b"1")
    assert orjson.loads(closed.body)["attributes"] == {"total": 1}
    await lab.engine.apply_rpc(closed, "w1", {"result": 1})
    with pytest.raises(Refused) as refused:
        await lab.engine.apply_rpc(closed, "w1", {"result": 1, "attributes": {"total": 2}})
    assert refused.value.reason == "flow_closed"


async def test_an_rpc_that_fails_gives_its_locks_back(lab: Lab) -> None:
    await lab.start()
    for bad in ({"nonsense": 1}, {"publish": [{"channel": "c", "value": "x" * 300_000}]}):
        rpc = await lab.engine.begin_rpc(NAMESPACE, "f1", "add", b"1", locks=["total"])
        with pytest.raises(Refused):
            await lab.engine.apply_rpc(rpc, "w1", bad)
    await lab.engine.begin_rpc(NAMESPACE, "f1", "add", b"1", locks=["total"])
    (name,) = (timer.split(" ")[2] for timer in await lab.timers())
    await lab.skip_to(name)
    assert (await lab.engine.read(NAMESPACE, "f1")).state.locks == {}


async def test_a_full_channel_refuses(valkey_store: Store) -> None:
    lab = Lab(valkey_store, limits=FlowLimits(channel_backlog=2))
    await lab.start()
    await lab.publish("c", 1)
    await lab.publish("c", 2)
    with pytest.raises(Refused) as refused:
        await lab.publish("c", 3)
    assert (refused.value.reason, refused.value.fields["limit_kind"]) == (
        "structural_limit_exceeded",
        "channel_backlog",
    )
    await lab.do({**DEAD_END})
    assert "ch" not in await lab.remains()
