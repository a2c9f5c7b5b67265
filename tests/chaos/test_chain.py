"""A chain of activities goes on whatever becomes of one of them, and its worker always has an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

from cluster.workflows.retry import MAX_LAPSES
from tests.chaos.chain import NOTHING_TO_DO, chain_of
from tests.chaos.checker import check
from tests.chaos.clients import Clients
from tests.chaos.record import Answered, Outcome, Recorder, read_lines
from tests.chaos.recorded_worker import RecordedWorker, open_client
from tests.cluster_processes import make_cluster
from tests.unit.workflows.simulation import Simulation, activity
from tests.wire import Wire

TENANT = "default"


def complete(sim: Simulation) -> None:
    sim.claim_activity(1)
    sim.finish_activity(1)


def fail(sim: Simulation) -> None:
    sim.claim_activity(1)
    sim.fail_activity(1, non_retryable=True)


def leave_alone(sim: Simulation) -> None:
    for _ in range(MAX_LAPSES + 1):
        sim.claim_activity(1)
        sim.lapse_activity(1)


@pytest.mark.parametrize(("end", "results"), [(complete, 1), (fail, 0), (leave_alone, 0)])
def test_an_activity_that_is_over_is_not_open(end: Callable[[Simulation], None], results: int) -> None:
    sim = Simulation()
    assert chain_of(sim.history).open == 0
    sim.complete(activity())
    assert (chain_of(sim.history).done, chain_of(sim.history).open) == ([], 1)
    end(sim)
    chain = chain_of(sim.history)
    assert (len(chain.done), chain.open) == (results, 0)


def test_who_has_nothing_to_do_gives_the_task_back() -> None:
    """No completion without a command is accepted, so that its task would come again and again."""
    sim = Simulation()
    sim.complete(activity())
    sim.signal()
    assert chain_of(sim.history).open == 1
    sim.fail_task(NOTHING_TO_DO)
    assert not sim.state.task_open
    complete(sim)
    assert sim.task_lease().state == "r"


class Unlucky(Random):
    """Leaves alone the first attempts of whatever it draws for, as often as makes the server give one up."""

    drawn = 0

    def random(self) -> float:
        self.drawn += 1
        return 0.0 if self.drawn <= MAX_LAPSES + 1 else 0.5


async def test_a_workflow_ends_though_an_activity_was_given_up(
    valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    environ = {
        "HEADRACE_KEY_PREFIX": prefix,
        "DW_ACTIVITY_TASK_TIMEOUT": "1",
        "DW_WORKFLOW_TASK_TIMEOUT": "1",
    }
    record = tmp_path / "all.events"
    with make_cluster(1, valkey_url, tmp_path, environ) as cluster, Recorder(record, "all") as recorder:
        await cluster.start()
        async with open_client(cluster.url, TENANT) as client, trio.open_nursery() as nursery:
            wire = Wire(client)
            worker = RecordedWorker(wire, recorder, TENANT, "unlucky", 1.0, Unlucky())
            nursery.start_soon(worker.run)
            clients = Clients(cluster.url, TENANT, recorder, Random(1))
            await clients.start_workflow(wire, "w", 2, 0.0)
            await wire.until_completed("w", 30)
            types = [event["event_type"] for event in await wire.history("w")]
            assert types.count("ActivityTimedOut") == 1
            await clients.look_back()
            nursery.cancel_scope.cancel()
    lines = read_lines([record])
    assert check(lines) == []
    assert not [line for line in lines if isinstance(line, Answered) and line.outcome is Outcome.REFUSED]
