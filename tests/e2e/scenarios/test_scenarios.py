"""Every feature of the workflow plane with the public SDK, unmodified, in small scenarios.

The scenarios of a group run side by side, in each of three modes. ``plain``: clients and worker talk to
different nodes. ``sticky``: so they do, and the worker keeps histories between workflow tasks.
``killed``: all go through HAProxy while random nodes are killed and started again, one after the other,
and the worker keeps histories; a group is played again until some nodes have been killed. In all of them
a history page holds two events, so that every replay crosses pages.

``HEADRACE_SEED`` repeats the moments of the killing, ``HEADRACE_SCENARIOS`` (names, separated by commas)
runs some scenarios only.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

import pytest
import trio
from durable_workflow import Client

from tests.cluster_processes import Cluster
from tests.e2e.scenarios import basics, families, operations, waits
from tests.e2e.scenarios.conftest import Theatre
from tests.e2e.scenarios.stage import Scenario, Stage
from tests.e2e.scenarios.worker import PATIENT

GROUPS = {
    "starts": basics.STARTS,
    "activities": basics.ACTIVITIES,
    "timers_and_lists": basics.TIMERS_AND_LISTS,
    "races": waits.RACES,
    "signals_and_conditions": waits.SIGNALS_AND_CONDITIONS,
    "queries": waits.QUERIES,
    "updates": waits.UPDATES,
    "records_and_chains": families.RECORDS + families.CHAINS,
    "children": families.CHILDREN,
    "ends": families.ENDS,
    "schedules": operations.SCHEDULES,
    "standalone": operations.STANDALONE,
    "operations": operations.OPERATIONS,
}

KILLS = 2
"""Nodes that die at least while a group is played."""


async def play_all(theatre: Theatre, scenarios: Sequence[Scenario]) -> dict[str, str]:
    """Play the scenarios side by side; what went wrong, by name."""
    wrong: dict[str, str] = {}
    async with (
        Client(theatre.here, retry_policy=PATIENT) as here,
        Client(theatre.there, retry_policy=PATIENT) as there,
    ):

        async def play(scenario: Scenario) -> None:
            name = "".join(letter if letter.isalnum() else "-" for letter in scenario.name)
            workflow_id = f"{name}-{uuid4().hex[:8]}"
            stage = Stage(here, there, theatre.queue, workflow_id, theatre.attempts_file, theatre.dying)
            began = time.monotonic()
            try:
                await scenario.play(stage)
            except Exception:
                wrong[scenario.name] = f"{workflow_id}\n{traceback.format_exc()}"
            print(f"{time.monotonic() - began:5.1f} s  {scenario.name}")

        await asyncio.gather(*map(play, scenarios))
    return wrong


class Killer:
    """Kills one node after the other at random; each is back before the next one dies."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self.kills = 0

    async def run(self) -> None:
        while True:
            await trio.sleep(self._chance.uniform(0.1, 1.5))
            node = self._chance.choice(self._cluster.nodes)
            log = node.log
            assert "Traceback" not in log, log
            self.kills += 1
            with trio.CancelScope(shield=True):
                await node.restart()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["plain", "sticky", "killed"])
@pytest.mark.parametrize("group", GROUPS)
def test_scenarios(theatre: Callable[[str], Theatre], group: str, mode: str) -> None:
    stage = theatre(mode)
    only = os.environ.get("HEADRACE_SCENARIOS", "").split(",")
    scenarios = [scenario for scenario in GROUPS[group] if only == [""] or scenario.name in only]
    if not scenarios:
        pytest.skip("none of this group was asked for")
    seed = os.environ.get("HEADRACE_SEED") or str(random.randrange(10**6))
    print(f"HEADRACE_SEED={seed}")
    killer = Killer(stage.cluster, random.Random(f"{seed}-{group}"))
    least = KILLS if stage.dying else 0

    async def run() -> dict[str, str]:
        wrong: dict[str, str] = {}
        await stage.cluster.revive()
        async with trio.open_nursery() as nursery:
            if stage.dying:
                nursery.start_soon(killer.run)
            played = False
            while not wrong and (not played or killer.kills < least):
                job = partial(asyncio.run, play_all(stage, scenarios))
                wrong = await trio.to_thread.run_sync(job, abandon_on_cancel=True)
                played = True
            nursery.cancel_scope.cancel()
        return wrong

    wrong = trio.run(run)
    assert not wrong, "\n\n".join(f"=== {name}: {text}" for name, text in wrong.items())


def test_names_are_used_once() -> None:
    names = [scenario.name for group in GROUPS.values() for scenario in group]
    assert len(set(names)) == len(names) >= 60
