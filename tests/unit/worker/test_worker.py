"""A worker against a node that a test plays: registration, limits, reconnects, stops (R1 to R100)."""

# ruff: noqa: SIM117, PT012 (a node first, then what runs against it)

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from headrace import (
    Decision,
    Flow,
    ProtocolVersionError,
    PullRegistrationError,
    StepContext,
    TaskLimitTooHigh,
    Worker,
    WorkerStopped,
    complete,
    readiness_answer,
    readiness_probe,
    step,
)
from tests.unit.worker.fake_node import FakeConnection, FakeNode, fake_node
from tests.waiting import PATIENCE


class Shop(Flow, name="shop"):
    """Its steps go on when the test says so."""

    def __init__(self) -> None:
        self.go_on = trio.Event()
        self.began: list[str] = []
        self.ended: list[str] = []

    @step
    async def work(self, ctx: StepContext) -> Decision:
        self.began.append(ctx.attempt_id)
        try:
            await self.go_on.wait()
        finally:
            self.ended.append(ctx.cancel_reason)
        return complete("done")

    @step
    async def stubborn(self, ctx: StepContext) -> Decision:
        """Ignores its cancellation."""
        self.began.append(ctx.attempt_id)
        with trio.CancelScope(shield=True):
            await self.go_on.wait()
        self.ended.append(ctx.cancel_reason)
        return complete("done")

    @step
    async def beat(self, ctx: StepContext) -> Decision:
        for page in range(1_000):
            ctx.heartbeat({"page": page})
        await self.go_on.wait()
        ctx.heartbeat({"page": -1})
        ctx.heartbeat()
        return complete(None)

    @step
    async def huge(self, ctx: StepContext) -> Decision:
        return complete("x" * 10_000)


@asynccontextmanager
async def running(node: FakeNode | str, shop: Shop | None = None, **options: Any) -> AsyncIterator[Worker]:
    """A worker with four slots, one reserved."""
    url = node if isinstance(node, str) else node.url
    fields: dict[str, Any] = {"max_concurrent_tasks": 4, **options}
    async with Worker(url, [shop or Shop()], **fields) as worker:
        yield worker


async def test_hello_says_who_the_worker_is_and_all_it_has() -> None:
    async with fake_node() as node, running(node, worker_id="w1", build="b7") as worker:
        await worker.wait_pull_registered()
        (hello,) = [f for f in node.connections[0].frames if f["type"] == "hello"]
        assert hello["worker_id"] == "w1"
        assert hello["build"] == "b7"
        assert hello["flow_types"] == [
            {"name": "shop", "step_types": ["work", "stubborn", "beat", "huge"], "rpc_names": []}
        ]
        assert (hello["task_limit"], hello["reserved_rpc_slots"]) == (4, 1)
        assert node.connections[0].headers["x-headrace-stream-versions"] == "1-1"
        assert node.connections[0].headers["x-namespace"] == "default"


async def test_r18_as_many_slots_as_tasks_16_to_a_connection_all_in_one_message() -> None:
    async with fake_node() as node, running(node, max_concurrent_tasks=40, reserved_rpc_slots=5) as worker:
        await node.until(lambda: sum(c.count("open") for c in node.connections) == 40)
        await worker.wait_pull_registered()
        assert len(node.connections) == 3
        assert all(connection.count("open") <= 16 for connection in node.connections)
        assert sum(connection.count("open", kind="rpc_only") for connection in node.connections) == 5
        assert all(
            len(connection.messages[0]) == 1 + connection.count("open") for connection in node.connections
        )


async def test_r3_waiting_before_the_start() -> None:
    async with fake_node() as node:
        worker = Worker(node.url, [Shop()], max_concurrent_tasks=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.wait_pull_registered)
            async with worker:
                await worker.wait_pull_registered()
        await worker.wait_pull_registered()


async def test_r2_busy_slots_count() -> None:
    shop = Shop()
    async with fake_node(rejects={"rpc_only": ("worker_streams_exhausted", False)}) as node:
        async with running(node, shop, max_concurrent_tasks=2) as worker:
            connection = await node.connection()
            await connection.next("open", kind="step_and_rpc")
            await connection.give(1)
            await node.until(lambda: bool(shop.began))
            assert not worker.is_ready
            node.rejects.clear()
            with trio.fail_after(PATIENCE):
                await worker.wait_pull_registered()
            shop.go_on.set()


async def test_r4_r15_a_permanent_rejection_fails_the_wait_and_the_worker_goes_on_trying() -> None:
    async with fake_node(refusal=(401, "unauthorized")) as node, running(node) as worker:
        with pytest.raises(PullRegistrationError) as caught:
            await worker.wait_pull_registered()
        assert caught.value.queue in ("step_and_rpc", "rpc_only")
        assert caught.value.cause.reason == "unauthorized"  # type: ignore[attr-defined]
        await node.until(lambda: node.refused >= 3)
        node.refusal = None
        await node.connection()
        await node.until(lambda: worker.is_ready)
        await worker.wait_pull_registered()


async def test_r16_r17_a_worker_that_shall_stop_on_it_stops_also_later() -> None:
    shop = Shop()
    async with fake_node() as node:
        with pytest.raises(PullRegistrationError) as caught:
            async with running(node, shop, stop_on_permanent_stream_rejection=True) as worker:
                await worker.wait_pull_registered()
                node.refusal = (403, "forbidden")
                await node.connections[0].abort()
                await trio.sleep_forever()
        assert caught.value.cause.status == 403  # type: ignore[attr-defined]
        await worker.stop()
        await worker.wait_pull_registered()
        assert not worker.is_ready


async def test_503_is_no_permanent_rejection() -> None:
    async with fake_node(refusal=(503, "node_leaving")) as node:
        async with running(node, stop_on_permanent_stream_rejection=True) as worker:
            await node.until(lambda: node.refused >= 2)
            node.refusal = None
            with trio.fail_after(PATIENCE):
                await worker.wait_pull_registered()


@pytest.mark.parametrize("refusal", [(404, ""), (400, "unsupported_protocol_version")])
async def test_r6_r99_no_common_version_ends_the_start(refusal: tuple[int, str]) -> None:
    async with fake_node(refusal=refusal) as node:
        worker = Worker(node.url, [Shop()], max_concurrent_tasks=2)
        with pytest.raises(ProtocolVersionError, match="1-1"):
            await worker.run()
        with pytest.raises(ProtocolVersionError):
            await worker.wait_pull_registered()


async def test_r8_stopped_before_it_was_ready() -> None:
    async with fake_node(registers=False) as node, running(node) as worker:
        await node.connection()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.stop)
            with pytest.raises(WorkerStopped):
                await worker.wait_pull_registered()
    never = Worker("http://127.0.0.1:1", [Shop()])
    await never.stop()
    with pytest.raises(WorkerStopped):
        await never.wait_pull_registered()


async def test_r10_r12_probe_answers_200_or_503() -> None:
    async with fake_node() as node, running(node, max_concurrent_tasks=1) as worker:
        sent: list[dict[str, Any]] = []

        async def send(event: dict[str, Any]) -> None:
            sent.append(event)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        assert readiness_answer(worker)[0] == 503
        await worker.wait_pull_registered()
        await readiness_probe(worker)({"type": "http", "method": "GET"}, receive, send)
        assert sent[0]["status"] == 200
        assert b'"step_and_rpc"' in sent[1]["body"]
        node.refusal = (401, "unauthorized")
        await node.connections[0].abort()
        await node.until(lambda: readiness_answer(worker)[0] == 503)
        node.refusal = None
        await node.until(lambda: readiness_answer(worker)[0] == 200)


async def test_r25_r26_a_lower_cap_at_the_start_fails_it_and_returns_the_task() -> None:
    shop = Shop()
    async with fake_node(cap=3) as node:
        original = node.answers

        def with_task(frame: dict[str, Any]) -> list[dict[str, Any]]:
            answers = original(frame)
            if frame["type"] == "open" and frame["slot"] == 1:
                task = {"attempt_id": "a", "kind": "step", "flow_type": "shop", "flow_id": "f", "run_id": "r"}
                answers.append(
                    {"type": "task", "slot": 1, "task": {**task, "step_type": "work", "method": "execute"}}
                )
            return answers

        node.answers = with_task  # type: ignore[method-assign]
        with pytest.raises(TaskLimitTooHigh, match=r"4.*3"):
            async with running(node, shop):
                await trio.sleep_forever()
        assert shop.began == []
        assert node.connections[0].count("half_close", slot=1) == 1
        assert node.connections[0].count("output") == 0


async def test_r27_a_lower_cap_later_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_node() as node, running(node) as worker:
        await worker.wait_pull_registered()
        node.cap = 3
        with caplog.at_level(logging.WARNING, "headrace.worker"):
            await node.connections[0].abort()
            await (await node.connection(1)).next("open")
            await node.until(lambda: "allows 3" in caplog.text)
        assert worker.is_ready


async def test_r71_one_warning_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_node() as node:
        with caplog.at_level(logging.WARNING, "headrace.worker"):
            async with running(node, max_concurrent_tasks=1) as worker:
                await worker.wait_pull_registered()
    assert caplog.text.count("RPCs wait behind") == 1


async def test_r40_unknown_names_are_declined_before_anything_runs() -> None:
    async with fake_node() as node, running(node) as worker:
        await worker.wait_pull_registered()
        connection = node.connections[0]
        for more in (
            {"name": "elsewhere"},
            {"flow_type": "bank"},
            {"kind": "rpc", "rpc_name": "state"},
            {"method": "wait_for"},
        ):
            attempt_id = await connection.give(1, **more)
            await connection.next("decline", attempt_id=attempt_id, reason="unsupported", slot=1)
        assert connection.count("output") == 0


async def test_outputs_of_one_turn_go_in_one_message() -> None:
    shop = Shop()
    async with fake_node() as node, running(node, shop) as worker:
        await worker.wait_pull_registered()
        connection = node.connections[0]
        for slot in (1, 2, 3):
            await connection.give(slot)
        await node.until(lambda: len(shop.began) == 3)
        shop.go_on.set()
        await node.until(lambda: connection.count("output") == 3)
        (message,) = [m for m in connection.messages if any(f["type"] == "output" for f in m)]
        assert len(message) == 3
        assert message[0]["output"] == {"decision": {"complete": "done"}}


async def test_heartbeats_carry_the_checkpoint_or_none_and_do_not_flood_the_node() -> None:
    shop = Shop()
    async with fake_node() as node, running(node, shop) as worker:
        await worker.wait_pull_registered()
        connection = node.connections[0]
        attempt_id = await connection.give(2, "beat")
        await connection.next("heartbeat", slot=2, attempt_id=attempt_id, checkpoint={"page": 0})
        await connection.next("heartbeat", checkpoint={"page": 999})
        shop.go_on.set()
        await connection.next("output")
        beats = [frame for frame in connection.frames if frame["type"] == "heartbeat"]
        assert len(beats) <= 4
        assert "checkpoint" not in beats[-1]


async def test_an_output_the_node_could_not_take_becomes_a_failure() -> None:
    async with fake_node(max_message_bytes=8_000) as node, running(node) as worker:
        await worker.wait_pull_registered()
        await node.connections[0].give(1, "huge")
        frame = await node.connections[0].next("output")
        assert frame["failure"]["type"] == "OutputTooLarge"
        assert frame["failure"]["non_retryable"]


async def test_cancel_stops_the_handler_and_still_ends_the_task() -> None:
    shop = Shop()
    async with fake_node() as node, running(node, shop) as worker:
        await worker.wait_pull_registered()
        connection = node.connections[0]
        attempt_id = await connection.give(1)
        await node.until(lambda: bool(shop.began))
        await connection.send(
            {"type": "cancel", "slot": 1, "attempt_id": attempt_id, "reason": "flow_closed"}
        )
        frame = await connection.next("output", attempt_id=attempt_id)
        assert frame["failure"]["type"] == "Cancelled"
        assert shop.ended == ["flow_closed"]


async def test_pings_are_answered_and_r82_pongs_come_while_a_task_runs() -> None:
    shop = Shop()
    async with fake_node(ping_ms=200) as node, running(node, shop) as worker:
        await worker.wait_pull_registered()
        connection = node.connections[0]
        await connection.send({"type": "ping", "nonce": "n1"})
        await connection.next("pong", nonce="n1")
        assert connection.count("pong") == 1
        await connection.give(1)
        for number in range(1, 4):
            await connection.send({"type": "ping", "nonce": "again"})
            await node.until(partial(_has_pongs_of_its_own, connection, number))
        shop.go_on.set()


def _has_pongs_of_its_own(connection: FakeConnection, number: int) -> bool:
    return connection.frames.count({"type": "pong"}) >= number


async def test_a_silent_node_is_given_up() -> None:
    async with fake_node(ping_ms=40) as node, running(node) as worker:
        await worker.wait_pull_registered()
        connection = await node.connection(1)
        await connection.next("hello")
        assert node.connections[0].ended


async def test_r54_a_lost_connection_cancels_what_ran_and_the_lanes_come_back_elsewhere() -> None:
    shop = Shop()
    async with fake_node() as first, fake_node() as second:
        async with Worker([first.url, second.url], [shop], max_concurrent_tasks=4) as worker:
            await worker.wait_pull_registered()
            await first.connections[0].give(1)
            await first.until(lambda: bool(shop.began))
            await first.connections[0].abort()
            connection = await second.connection()
            await second.until(lambda: connection.count("open") == 4)
            assert shop.ended == ["the connection was lost"]
            assert worker.is_ready


async def test_r68_a_lane_takes_no_task_before_its_old_handler_has_returned() -> None:
    shop = Shop()
    async with fake_node() as node, running(node, shop) as worker:
        await worker.wait_pull_registered()
        await node.connections[0].give(1, "stubborn")
        await node.until(lambda: bool(shop.began))
        await node.connections[0].abort()
        connection = await node.connection(1)
        await node.until(lambda: connection.count("open") == 3)
        shop.go_on.set()
        await node.until(lambda: connection.count("open") == 4)
        assert connection.count("output") == 0


async def test_r78_a_directed_reconnect_lets_the_running_task_finish() -> None:
    shop = Shop()
    async with fake_node() as first, fake_node() as second:
        async with Worker([first.url, second.url], [shop], max_concurrent_tasks=3) as worker:
            await worker.wait_pull_registered()
            old = first.connections[0]
            attempt_id = await old.give(1)
            await first.until(lambda: bool(shop.began))
            idle = [{"type": "closed", "slot": slot, "reason": "reconnect"} for slot in (2, 3)]
            await old.send({"type": "reconnect", "reason": "node_leaving"}, *idle)
            new = await second.connection()
            await second.until(lambda: new.count("open") == 2)
            shop.go_on.set()
            await old.next("output", attempt_id=attempt_id)
            await old.send({"type": "closed", "slot": 1, "reason": "reconnect"})
            await second.until(lambda: new.count("open") == 3)
            await first.until(lambda: old.ended)
            assert shop.ended == [""]


async def test_r76_idle_slots_half_close_at_once_and_busy_ones_finish() -> None:
    shop = Shop()
    async with fake_node() as node:
        async with running(node, shop) as worker:
            await worker.wait_pull_registered()
            connection = node.connections[0]
            attempt_id = await connection.give(1)
            await node.until(lambda: bool(shop.began))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.stop)
                await node.until(lambda: connection.count("half_close") == 3)
                assert connection.count("half_close", slot=1) == 0
                shop.go_on.set()
                await connection.next("half_close", slot=1)
        kinds = [(f["type"], f.get("slot")) for f in connection.frames]
        assert kinds.index(("output", 1)) < kinds.index(("half_close", 1))
        assert connection.count("output", attempt_id=attempt_id) == 1
        assert connection.ended


async def test_r77_a_task_that_crosses_the_half_close_is_not_run() -> None:
    shop = Shop()
    async with fake_node(closes=False) as node:
        async with running(node, shop) as worker:
            await worker.wait_pull_registered()
            connection = node.connections[0]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.stop)
                await connection.next("half_close", slot=1)
                await connection.give(1)
                closed = [{"type": "closed", "slot": slot, "reason": "half_closed"} for slot in (1, 2, 3, 4)]
                await connection.send(*closed)
        assert shop.began == []
        assert connection.count("output") == 0


async def test_r79_the_drain_deadline_resets_cancels_and_waits() -> None:
    shop = Shop()
    async with fake_node() as node:
        async with running(node, shop, stop_drain_timeout=0.2) as worker:
            await worker.wait_pull_registered()
            connection = node.connections[0]
            await connection.give(1)
            await connection.give(2, "stubborn")
            await node.until(lambda: len(shop.began) == 2)
            stopped = trio.Event()

            async def stop() -> None:
                await worker.stop()
                stopped.set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop)
                await connection.next("reset", slot=1)
                await connection.next("reset", slot=2)
                await node.until(lambda: len(shop.ended) == 1)
                assert not stopped.is_set()
                shop.go_on.set()
        assert connection.count("output") == 0


async def test_r80_an_unconfirmed_output_gets_a_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.worker.worker.FLUSH_SECONDS", 0.3)
    shop = Shop()
    shop.go_on.set()
    async with fake_node(confirms=False) as node, running(node, shop) as worker:
        await worker.wait_pull_registered()
        await node.connections[0].give(1)
        await node.connections[0].next("output")
        began = trio.current_time()
        await worker.stop()
        assert 0.3 <= trio.current_time() - began < PATIENCE


async def test_stop_is_safe_at_any_time_and_more_than_once() -> None:
    async with fake_node() as node:
        async with running(node) as worker:
            await worker.wait_pull_registered()
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(worker.stop)
            await worker.stop()
        await worker.stop()


async def test_r100_a_rotated_token_is_read_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with fake_node() as node, running(node, token_file=str(file)) as worker:
        await worker.wait_pull_registered()
        assert node.connections[0].headers["authorization"] == "Bearer first"
        file.write_text("")
        await trio.lowlevel.checkpoint()
        await node.connections[0].abort()
        file.write_text("second\n")
        connection = await node.connection(1)
        assert connection.headers["authorization"] in ("Bearer second", "Bearer first")


async def test_a_slot_that_was_refused_is_asked_for_again() -> None:
    async with fake_node(rejects={"rpc_only": ("worker_streams_exhausted", False)}) as node:
        async with running(node) as worker:
            connection = await node.connection()
            await node.until(lambda: connection.count("open", kind="rpc_only") >= 2)
            node.rejects.clear()
            with trio.fail_after(PATIENCE):
                await worker.wait_pull_registered()
            numbers = [f["slot"] for f in connection.frames if f["type"] == "open"]
            assert numbers == sorted(set(numbers))


async def test_exceptions_of_the_block_come_out_as_they_are() -> None:
    async with fake_node() as node:
        with pytest.raises(ZeroDivisionError):
            async with running(node):
                raise ZeroDivisionError
        assert all(connection.ended for connection in node.connections) or not node.connections


async def test_a_worker_runs_once() -> None:
    async with fake_node() as node:
        async with running(node) as worker:
            await worker.wait_pull_registered()
        with pytest.raises(RuntimeError):
            await worker.run()
