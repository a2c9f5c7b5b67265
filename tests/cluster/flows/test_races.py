"""Many at once, lost replies, full memory, one slot: what happens twice counts once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest
import trio

from cluster.errors import OutcomeUnknown, Refused, StoreFull, StoreUnavailable
from cluster.flows.engine import (
    FlowEngine,
    FlowStarted,
    IdReuse,
    ResultKind,
    StartFlow,
    StepResult,
    Verdict,
)
from cluster.flows.machine import StopType
from cluster.store import store as store_module
from cluster.store.aggregator import GROUP_TRANSACTIONS
from cluster.store.store import Store, open_store
from tests.cluster.flows.lab import DEAD_END, FLOW_TYPE, NAMESPACE, HandOut, Lab, complete, go_to, wait_for
from tests.servers import KINDS, Server, run_cluster, run_server
from tests.store_time import store_ms
from tests.waiting import eventually


async def test_nodes_that_finish_steps_of_one_flow_at_once(lab: Lab) -> None:
    await lab.start()
    await lab.do(go_to(*["part"] * 60))
    taken = await lab.take(most=60)
    assert len(taken) == 60
    engines = [lab.engine, lab.new_engine(), lab.new_engine()]
    verdicts: list[Verdict] = []

    async def finish(engine: FlowEngine, results: Sequence[StepResult]) -> None:
        verdicts.extend(await engine.finish(results))

    async with trio.open_nursery() as nursery:
        for number, engine in enumerate(engines):
            for start in range(0, 20, 5):
                part = taken[number * 20 + start : number * 20 + start + 5]
                nursery.start_soon(finish, engine, [one.result(output=go_to("next")) for one in part])

    assert [verdict.accepted for verdict in verdicts] == [True] * 60
    following = await lab.take("next", most=100)
    assert len({one.step for one in following}) == 60
    page = await lab.engine.steps(NAMESPACE, "f1", page_size=100, token=None)
    assert [orjson.loads(entry)["sequence"] for entry in page.entries] == list(range(1, 62))


async def test_batches_of_one_flow_that_start_from_the_same_picture(lab: Lab) -> None:
    """The last of a longer batch must not take the version that another batch reached for its own."""
    await lab.start()
    await lab.do(go_to(*["part"] * 14))
    taken = await lab.take(most=14)
    verdicts: list[Verdict] = []

    async def finish(results: Sequence[HandOut]) -> None:
        verdicts.extend(await lab.engine.finish([one.result(output=go_to("next")) for one in results]))

    async with trio.open_nursery() as nursery:
        for start, size in ((0, 2), (2, 3), (5, 4), (9, 5)):
            nursery.start_soon(finish, taken[start : start + size])

    assert [verdict.accepted for verdict in verdicts] == [True] * 14
    view = await lab.engine.describe(NAMESPACE, "f1")
    assert sorted(view.run.state.open) == sorted(view.run.steps)
    assert [step.step_type for step in view.run.steps.values()] == ["next"] * 14


async def test_many_losses_of_one_flow_are_taken_at_once(lab: Lab) -> None:
    """A node dies with many steps of one flow in its hands."""
    await lab.start()
    await lab.do(go_to(*["part"] * 200))
    taken = await lab.take(most=200)
    lab.engine = lab.new_engine()
    before = lab.store.statistics().commit_calls

    verdicts = await lab.engine.finish([one.result(ResultKind.LOST) for one in taken])

    assert [verdict.accepted for verdict in verdicts] == [True] * 200
    assert lab.store.statistics().commit_calls - before <= 10
    assert len(await lab.timers()) == 200


async def test_the_same_result_through_two_nodes_at_once(lab: Lab) -> None:
    await lab.start()
    taken = await lab.take_one()
    engines = [lab.engine, lab.new_engine(), lab.new_engine()]
    verdicts: list[Verdict] = []

    async def finish(engine: FlowEngine) -> None:
        verdicts.extend(await engine.finish([taken.result(output=go_to("next"))]))

    async with trio.open_nursery() as nursery:
        for engine in engines:
            nursery.start_soon(finish, engine)

    assert [verdict.accepted for verdict in verdicts] == [True] * 3
    assert len(await lab.take(most=10)) == 1


async def test_one_of_two_contrary_ends_wins(lab: Lab) -> None:
    for number in range(10):
        await lab.start(flow_id=f"f{number}")
    taken = await lab.take(most=10)
    verdicts: dict[tuple[str, ResultKind], bool] = {}

    async def finish(engine: FlowEngine, one: HandOut, kind: ResultKind) -> None:
        (verdict,) = await engine.finish(
            [one.result(kind, output=complete() if kind == "completed" else None)]
        )
        verdicts[one.claim.task_id, kind] = verdict.accepted

    async with trio.open_nursery() as nursery:
        for one in taken:
            nursery.start_soon(finish, lab.engine, one, ResultKind.COMPLETED)
            nursery.start_soon(finish, lab.new_engine(), one, ResultKind.LOST)

    for one in taken:
        completed = verdicts[one.claim.task_id, ResultKind.COMPLETED]
        lost = verdicts[one.claim.task_id, ResultKind.LOST]
        assert completed != lost
        assert await lab.status(one.body["flow_id"]) == ("completed" if completed else "running")


async def test_messages_published_at_once_are_all_kept(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}})
    await lab.do(wait_for("all", {"id": "m", "channel": "c", "count": 40}))
    engines = [lab.engine, lab.new_engine()]

    async def publish(engine: FlowEngine, value: int) -> None:
        other = Lab(lab.store)
        other.engine = engine
        assert await other.publish("c", value, request_id=f"r{value}")
        assert not await other.publish("c", value, request_id=f"r{value}")

    async with trio.open_nursery() as nursery:
        for value in range(40):
            nursery.start_soon(publish, engines[value % 2], value)

    heard = (await lab.take_one()).body["conditions"]["m"]["values"]
    assert sorted(heard) == list(range(40))


async def test_a_timer_fired_by_all_nodes_fires_once(lab: Lab) -> None:
    await lab.start(options={"wait_for": {}})
    await lab.do(wait_for("all", {"id": "t", "timer_seconds": 0.01}))
    ((timer, due_ms),) = (await lab.timers()).items()

    async def due() -> bool:
        return await store_ms(lab.store) > due_ms

    await eventually(due)
    async with trio.open_nursery() as nursery:
        for engine in (lab.engine, lab.new_engine(), lab.new_engine()):
            nursery.start_soon(engine.timer_due, timer, due_ms)

    assert len(await lab.take(most=5)) == 1
    await lab.engine.timer_due(timer, due_ms)
    assert await lab.take(most=5) == []


async def test_timers_of_runs_that_are_gone_go_too(lab: Lab) -> None:
    await lab.start(timeout_ms=1)
    ((timer, due_ms),) = (await lab.timers()).items()
    for key in await lab.store.call("KEYS", f"{lab.store.keys.prefix}:*:run:*"):
        await lab.store.call("DEL", key)
    await lab.new_engine().timer_due(timer, due_ms)
    assert await lab.timers() == {}


async def test_what_is_handed_out_while_a_cancel_begins_may_answer(lab: Lab) -> None:
    for number in range(20):
        await lab.start(flow_id=f"f{number}")
    taken: list[HandOut] = []

    async def work() -> None:
        for _ in range(10):
            taken.extend(await lab.take(most=2))

    async def cancel(flow_id: str) -> None:
        await lab.new_engine().stop(NAMESPACE, flow_id, StopType.CANCEL, "", True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        for number in range(20):
            nursery.start_soon(cancel, f"f{number}")
    running = {one.body["flow_id"] for one in taken}
    for number in range(20):
        wanted = "running" if f"f{number}" in running else "canceled"
        assert await lab.status(f"f{number}") == wanted
    verdicts = await lab.engine.finish([one.result(output=go_to("next")) for one in taken])
    assert all(verdict.accepted for verdict in verdicts)
    assert {await lab.status(f"f{number}") for number in range(20)} == {"canceled"}
    assert await lab.take(most=50) == []


@pytest.mark.parametrize("call", [1, 2])
async def test_a_lost_reply_is_no_lost_result(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    monkeypatch.setattr(store_module, "ASK_AGAIN_PAUSE", 0.001)
    lab = Lab(valkey_store)
    await lab.start()
    taken = await lab.take_one()
    run, calls = valkey_store.run, 0

    async def losing(script: str, keys: Sequence[str], args: Sequence[Any], **options: bool) -> Any:
        nonlocal calls
        reply = await run(script, keys, args, **options)
        if script == "commit":
            calls += 1
            if calls <= call:
                raise OutcomeUnknown("lost")
        return reply

    monkeypatch.setattr(valkey_store, "run", losing)
    assert (await lab.finish(taken, go_to("next"))).accepted
    assert (await lab.finish(taken, go_to("next"))).accepted
    (following,) = await lab.take(most=5)
    assert (await lab.finish(following, complete())).accepted


async def test_results_given_again_after_an_outage(
    valkey_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes away with some of a batch done: the whole batch is given again."""
    lab, flows = Lab(valkey_store), GROUP_TRANSACTIONS + 8
    for number in range(flows):
        await lab.start(flow_id=f"f{number}")
    results = [one.result(output=go_to("next")) for one in await lab.take(most=flows)]
    run = valkey_store.run
    commits = 0

    async def breaking(script: str, keys: Sequence[str], args: Sequence[Any], **options: bool) -> Any:
        nonlocal commits
        if script == "commit":
            commits += 1
            if commits > 1:
                raise StoreUnavailable("away")
        return await run(script, keys, args, **options)

    monkeypatch.setattr(valkey_store, "run", breaking)
    with pytest.raises(StoreUnavailable):
        await lab.engine.finish(results)
    monkeypatch.setattr(valkey_store, "run", run)
    assert all(verdict.accepted for verdict in await lab.engine.finish(results))
    assert len(await lab.take("next", most=2 * flows)) == flows


@pytest.fixture(scope="module", params=KINDS)
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


async def test_a_full_store_ends_what_runs_and_begins_nothing(own_server: Server, prefix: str) -> None:
    async with open_store(own_server.url, prefix=prefix) as store:
        lab = Lab(store)
        await lab.start()
        await lab.do(go_to("a", "b", "c"))
        a, b, c = await lab.take(most=3)
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                for begins in (lab.start(flow_id="f2"), lab.publish("c", 1), lab.finish(a, go_to("more"))):
                    with pytest.raises(StoreFull):
                        await begins
                assert (await lab.finish(a, DEAD_END)).accepted
                assert (await lab.finish(b, kind=ResultKind.RETURNED)).accepted
                assert (await lab.fail(c)).accepted
                await lab.engine.stop(NAMESPACE, "f1", StopType.TERMINATE, "", False)
            finally:
                client.config_set("maxmemory", 0)
        assert await lab.status() == "terminated"
        assert await lab.timers() == {}


@pytest.fixture(scope="module", params=KINDS)
def cluster_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with run_cluster(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


async def test_a_whole_life_on_a_cluster(cluster_server: Server, prefix: str) -> None:
    async with open_store(f"redis+cluster://127.0.0.1:{cluster_server.port}", prefix=prefix) as store:
        lab = Lab(store)
        assert store.clustered
        await lab.start(options={"wait_for": {}, "lock_attributes": ["a"]}, timeout_ms=60_000)
        await lab.do(wait_for("all", {"id": "m", "channel": "c"}))
        await lab.publish("c", 1, request_id="r")
        lab.engine = lab.new_engine()
        await lab.publish("c", 2)
        await lab.fail(await lab.take_one())
        await lab.skip_to("s1")
        await lab.do(go_to("second", attributes={"a": 1}))
        view = await lab.engine.describe(NAMESPACE, "f1")
        assert [step.execution_id for step in view.run.steps.values()] == ["second-1"]
        rpc = await lab.engine.begin_rpc(NAMESPACE, "f1", "look", b"1", locks=["a"])
        await lab.engine.apply_rpc(rpc, "w1", {"result": 1, "attributes": {"a": 2}})
        await lab.do(complete())
        rows, _ = await lab.engine.list_flows(NAMESPACE, status=None, flow_type=None, page_size=9, token=None)
        assert [row.state.status for row in rows] == ["completed"]


async def _start_at_once(lab: Lab, number: int, **fields: Any) -> list[FlowStarted | str]:
    """Start flow ``f1`` on as many nodes at once; what each answers, or the reason of its refusal."""
    answers: list[FlowStarted | str] = []

    async def start(engine: FlowEngine) -> None:
        request = StartFlow(NAMESPACE, FLOW_TYPE, "first", flow_id="f1", **fields)
        try:
            answers.append(await engine.start(request))
        except Refused as refused:
            answers.append(refused.reason)

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(start, lab.new_engine())
    return answers


@pytest.mark.parametrize("ignores", [True, False])
async def test_one_request_on_many_nodes_starts_one_run(lab: Lab, ignores: bool) -> None:
    answers = await _start_at_once(lab, 6, request_id="r", ignore_already_started=ignores)
    started = [one for one in answers if not isinstance(one, str)]
    assert len({one.info.run_id for one in started}) == 1
    assert sum(one.outcome == "started_new" for one in started) == 1
    assert answers.count("flow_already_started") == (0 if ignores else 5)
    assert len(await lab.take(most=9)) == 1


async def test_starts_that_replace_each_other_leave_one_running(lab: Lab) -> None:
    answers = await _start_at_once(lab, 5, id_reuse=IdReuse.TERMINATE_RUNNING)
    runs = [one.info for one in answers if not isinstance(one, str)]
    assert sorted(info.run_number for info in runs) == [1, 2, 3, 4, 5]
    statuses = [(await lab.engine.read(NAMESPACE, "f1", info.run_id)).state.status.value for info in runs]
    assert sorted(statuses) == ["running", *["terminated"] * 4]
    assert len(await lab.take(most=9)) == 1
