"""Many workers, nodes, accidents and duplicates on one store: every step ends exactly once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import orjson
import trio

from cluster.flows.engine import FlowEngine, ResultKind, StepResult
from cluster.flows.machine import StopType
from cluster.flows.records import FlowStatus
from tests.cluster.flows.lab import NAMESPACE, HandOut, Lab
from tests.store_time import store_ms
from tests.waiting import eventually

FLOWS = 24
WORKERS = 4
DEPTH = 3
QUICK = {"execute": {"retry": {"initial_interval_seconds": 0.01}}}
WAITING = {**QUICK, "wait_for": QUICK["execute"]}
LOCKING = {**QUICK, "lock_attributes": ["seen"]}


def output(random: Random, one: HandOut) -> dict[str, Any]:
    """What the step decides: fewer and fewer followers, some of which wait or lock."""
    if one.body["method"] == "wait_for":
        return {
            "conditions": {
                "mode": "any",
                "items": [{"id": "t", "timer_seconds": 0.01}, {"id": "m", "channel": "c"}],
            }
        }
    depth = one.body["input"]["depth"]
    following = [
        {
            "step_type": random.choice("abc"),
            "input": {"depth": depth + 1},
            "options": random.choice((QUICK, WAITING, LOCKING)),
        }
        for _ in range(random.randrange(1, 4) if depth < DEPTH else 0)
    ]
    decision: dict[str, Any] = {"next": following} if following else {"dead_end": True}
    said = [{"channel": "c", "value": depth}] if random.random() < 0.3 else []
    return {"decision": decision, "publish": said, "attributes": {"seen": one.step}}


class Hammer:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.engines = [lab.new_engine() for _ in range(3)]
        self.hand_outs: Counter[tuple[str, str, int, int]] = Counter()
        self.done = False

    def engine(self, random: Random) -> FlowEngine:
        return random.choice(self.engines)

    async def work(self, number: int) -> None:
        random = Random(number)
        while not self.done:
            taken = await self.lab.take(worker=f"w{number}", most=8)
            results: list[StepResult] = []
            for one in taken:
                claim = one.claim
                self.hand_outs[claim.task_id, one.body["method"], claim.attempt, claim.delivery] += 1
                chance = random.random()
                if chance < 0.1:
                    results.append(one.result(random.choice((ResultKind.LOST, ResultKind.FAILED))))
                elif chance < 0.2:
                    results.append(one.result(ResultKind.RETURNED))
                else:
                    results.append(one.result(output=output(random, one)))
            again = random.sample(results, len(results) // 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.engine(random).finish, results)
                nursery.start_soon(self.engine(random).finish, again)
            verdicts = await self.engine(random).finish(results)
            for result, verdict in zip(results, verdicts, strict=True):
                assert (
                    verdict.accepted or result.kind is ResultKind.RETURNED or verdict.reason == "flow_closed"
                )
            if not taken:
                await trio.sleep(0.005)

    async def keep_time(self, number: int) -> None:
        while not self.done:
            now_ms = await store_ms(self.lab.store)
            async with trio.open_nursery() as nursery:
                for timer, due_ms in (await self.lab.timers()).items():
                    if due_ms <= now_ms and timer.startswith("flow "):
                        nursery.start_soon(self.engines[number].timer_due, timer, due_ms)
            await trio.sleep(0.01)

    async def run(self) -> None:
        with trio.fail_after(200):
            async with trio.open_nursery() as nursery:
                for number in range(WORKERS):
                    nursery.start_soon(self.work, number)
                for number in range(2):
                    nursery.start_soon(self.keep_time, number)
                for number in range(FLOWS):
                    await eventually(partial(self.closed, f"f{number}"), within=200)
                self.done = True

    async def closed(self, flow_id: str) -> bool:
        return (await self.lab.engine.read(NAMESPACE, flow_id)).state.status.closed


async def test_every_step_ends_once_whatever_happens(lab: Lab) -> None:
    for number in range(FLOWS):
        options = {**QUICK, "wait_for": {}} if number % 3 == 0 else QUICK
        await lab.start("a", flow_id=f"f{number}", input=b'{"depth": 0}', options=options)
    hammer = Hammer(lab)
    hammer.lab.engine = hammer.engines[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hammer.run)
        for number in range(0, FLOWS, 8):
            kind = (StopType.CANCEL, StopType.TERMINATE, StopType.FAIL)[number // 8]
            nursery.start_soon(lab.new_engine().stop, NAMESPACE, f"f{number}", kind, "", number % 16 == 0)

    assert set(hammer.hand_outs.values()) == {1}
    for number in range(FLOWS):
        run = await lab.engine.read(NAMESPACE, f"f{number}")
        page = await lab.engine.steps(NAMESPACE, f"f{number}", page_size=1000, token=None)
        entries = [orjson.loads(entry) for entry in page.entries]
        ends = Counter((e["step_execution_id"], e["method"]) for e in entries if e["event"] == "completed")
        assert set(ends.values()) <= {1}
        if number % 8:
            executed = {name for name, method in ends if method == "execute"}
            opened = {"a-1"} | {name for e in entries for name in e.get("next", [])}
            assert run.state.status is FlowStatus.COMPLETED
            assert executed == opened
            spent = Counter(
                (e["step_execution_id"], e["method"]) for e in entries if e["event"] != "completed"
            )
            for entry in entries:
                if entry["event"] == "completed":
                    assert entry["attempt"] == spent[entry["step_execution_id"], entry["method"]] + 1
        else:
            assert run.state.status is not FlowStatus.RUNNING
    await lab.work_off()
    while await lab.take(most=50):
        raise AssertionError("a step of a closed flow was handed out")
    assert await lab.timers() == {}
    assert not await lab.remains() & {"task", "ch", "t"}
