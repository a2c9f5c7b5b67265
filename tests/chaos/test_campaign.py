"""Campaigns: a short one always, the long ones with ``make chaos`` or ``-m chaos``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.arrangements import Kind
from tests.chaos.campaign import run_campaign
from tests.chaos.injection import load_delay
from tests.chaos.plan import POSSIBLE, SECONDS, Fault, Planned, make_plan
from tests.chaos.record import Answered, FaultEnded, HandedOut, Outcome
from tests.chaos.reporting import rows, summarise
from tests.chaos.site import Layout
from tests.chaos.test_checker import good

SHORT = [
    Planned(1, Fault.KILL_NODE, 0.2, 0.2, 0),
    Planned(2, Fault.LOSE_REPLY, 0.2, 1.0, 0),
    Planned(3, Fault.KILL_WORKER, 0.2, 0.1, 1),
    Planned(4, Fault.CUT_NODE, 0.2, 1.5, 1),
    Planned(5, Fault.RESTART_REDIS, 0.2, 0.2, 0),
]


@pytest.mark.timeout(240)
async def test_a_short_campaign_breaks_no_promise(tmp_path: Path) -> None:
    verdict = await run_campaign(tmp_path, Layout(Kind.SINGLE, nodes=2), SHORT, seed=1, in_flight=2)
    assert not verdict.broken, verdict.broken
    assert not verdict.complaints, verdict.complaints
    assert sum(isinstance(line, FaultEnded) for line in verdict.lines) == len(SHORT)
    answers = [line for line in verdict.lines if isinstance(line, Answered)]
    assert sum(answer.outcome is Outcome.OK for answer in answers) > 50
    workers = {line.who.rsplit("-", 1)[0] for line in verdict.lines if isinstance(line, HandedOut)}
    assert workers == {"red-poll", "red-stream", "blue-poll", "blue-stream", "blue-sdk"}


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(Kind))
async def test_a_long_campaign_breaks_no_promise(kind: Kind, tmp_path: Path) -> None:
    plan = make_plan(1, POSSIBLE[kind], rounds=2)
    verdict = await run_campaign(tmp_path, Layout(kind), plan, seed=1)
    print(summarise(verdict.lines))
    assert not verdict.broken, verdict.broken
    assert not verdict.complaints, verdict.complaints


def test_a_plan_is_its_seed() -> None:
    faults = list(Fault)
    plan = make_plan(7, faults, rounds=2)
    assert plan == make_plan(7, faults, rounds=2) != make_plan(8, faults, rounds=2)
    assert sorted(planned.fault for planned in plan) == sorted(faults * 2)
    assert [planned.number for planned in plan] == list(range(1, len(plan) + 1))
    for planned in plan:
        shortest, longest = SECONDS[planned.fault]
        assert shortest <= planned.seconds <= longest


def test_a_file_of_any_size_loads_in_a_few_seconds() -> None:
    for size, delay in ((0, 300), (10_000, 300), (1_000_000, 240), (5_000_000, -1), (100_000_000, -20)):
        assert load_delay(size) == delay


def test_every_fault_is_possible_somewhere() -> None:
    assert {fault for faults in POSSIBLE.values() for fault in faults} == set(Fault)


def test_a_table_of_a_run_without_faults_has_no_rows() -> None:
    lines = good().lines
    assert rows(lines) == []
    assert summarise(lines).startswith("3 hand-outs; answers: 3 ok, 1 refused")
