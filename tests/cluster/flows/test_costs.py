"""What a step costs the store: the commands that its scripts run, which do not depend on the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import pytest

from cluster.flows.engine import ResultKind, StepResult
from cluster.store.keys import QueueName
from cluster.store.store import Store, open_store
from cluster.store.transaction import OpenSlot
from tests.cluster.flows.lab import SESSION, HandOut, Lab, complete, go_to

STEPS = 20
CHAIN_COMMANDS = 22
"""Of the end of a step with the hand-out of the next, the round trip and the clock included."""
SHORT_COMMANDS = 52
"""Of a flow of one step: its start, the claim, its end."""
OCCASIONAL = ("info", "script|load", "pexpire")
"""Looking, the first use of a script, the first count in 10 s."""


@pytest.fixture
async def lab(redis_url: str, prefix: str) -> AsyncIterator[Lab]:
    """All flows in one partition, so that it makes no difference where a claim looks."""
    async with open_store(redis_url, prefix=prefix, partitions=1) as store:
        yield Lab(store)


async def commands(store: Store) -> Counter[str]:
    """Commands the server ran so far, those inside scripts too; without what only some scripts do."""
    lines = (await store.call("INFO", "commandstats")).decode().splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        name, _, figures = line.removeprefix("cmdstat_").partition(":calls=")
        if figures and name not in OCCASIONAL:
            found[name] = int(figures.partition(",")[0])
    return found


def each(ran: Counter[str]) -> int:
    """Commands of one step; what came up less often than the steps is not theirs."""
    return sum(number // STEPS for number in ran.values())


@dataclass
class Slot:
    """A slot that is free for whatever comes."""

    worker: str = "w1"

    def takes(self, _queue: QueueName, _step_type: str) -> OpenSlot:
        return OpenSlot(self.worker, SESSION, 0)


async def test_a_step_of_a_chain_costs_few_commands(lab: Lab) -> None:
    await lab.start("a")
    taken: HandOut = await lab.take_one()
    last: StepResult = taken.result(output=go_to("b"), taker=Slot())
    await lab.engine.finish([last])  # the script is known from here on
    last = msgspec.structs.replace(last, task_id=last.task_id.replace("-s1", "-s2"))
    before = await commands(lab.store)
    for number in range(2, STEPS + 2):
        task_id = last.task_id.rpartition("s")[0] + f"s{number}"
        (verdict,) = await lab.engine.finish([msgspec.structs.replace(last, task_id=task_id)])
        assert verdict.handed_out is not None
    ran = await commands(lab.store) - before
    assert ran["evalsha"] == STEPS
    assert each(ran) <= CHAIN_COMMANDS, ran


async def test_a_flow_of_one_step_costs_few_commands(lab: Lab) -> None:
    await lab.start("a", "warm")
    await lab.do(complete())
    before = await commands(lab.store)
    for number in range(STEPS):
        await lab.start("a", f"flow-{number}")
        taken = await lab.take_one()
        assert (await lab.finish(taken, complete(), kind=ResultKind.COMPLETED)).accepted
    ran = await commands(lab.store) - before
    assert each(ran) <= SHORT_COMMANDS, ran
