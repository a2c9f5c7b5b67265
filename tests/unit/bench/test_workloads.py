"""What workloads make of their figures: rows, goals, sizes; nothing here takes a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.bench.figures import Goal
from tests.bench.measuring import Usage
from tests.bench.report import Section
from tests.bench.session import Session
from tests.bench.workloads import cold_queues, hand_out, idle, long_queue, scaling, workflows
from tests.bench.workloads.workflows import Ended


def verdicts(goals: list[Goal]) -> list[tuple[bool | None, str]]:
    return [(goal.reached, goal.measured) for goal in goals]


def test_flows_are_handed_out_in_three_ways_that_differ_by_their_addresses() -> None:
    main, listener, apart = hand_out.ways()
    assert [way.name for way in (main, listener, apart)] == ["flows", "flows-listener", "flows-apart"]
    assert "BENCH_START_URL" not in main.environ
    assert listener.environ["BENCH_START_URL"] == "{BENCH_WORKER_URL}"
    assert "BENCH_URL" not in listener.environ
    assert (main.nodes, listener.nodes, apart.nodes) == (1, 1, 2)
    assert apart.environ["BENCH_URL"] == "{BENCH_LAST_URL}"


def test_goals_of_hand_out_are_those_of_both_manners_at_each_rate() -> None:
    found: hand_out.Found = {
        ("flows-listener", 100): [(0.5, 2), (0.9, 4), (2, 5)],
        ("next-step", 1000): [(1.5, 2.5)],
    }
    missing = [(None, "-"), (None, "-")]
    between = [(False, "1.50 ms"), (True, "2.50 ms")]
    started = [(True, "0.90 ms"), (False, "4.00 ms")]
    assert verdicts(hand_out.goals(found)) == [*missing, *between, *started, *missing]


def test_goals_of_workflows_compare_cost_with_one_system_and_rates_with_all() -> None:
    ours = Ended([300.0, 290.0], [Usage(server=0.001, store=0.001, worker=9)] * 2)
    temporal = Ended([100.0], [Usage(server=0.004)])
    dbos = Ended([200.0], [Usage(server=0.004)])
    found = {
        ("lean-listener", (1, 40)): ours,
        ("temporal", (1, 40)): temporal,
        ("dbos", (1, 40)): dbos,
        ("lean-listener", (1, 1)): Ended([125.0, 80.0, 160.0]),
    }
    nothing = (None, "-")
    cost, rates = (
        [nothing, (True, "0.50 x")],
        [(True, "3.00 x"), nothing, (False, "1.50 x"), nothing, nothing],
    )
    assert verdicts(workflows.goals(found)) == [*cost, *rates, (True, "8.00 ms")]
    assert verdicts(workflows.goals({})) == [nothing] * 8
    assert ours.server() == [2, 2]
    assert ours.everything() == pytest.approx([9002, 9002])


def test_idle_goals_have_the_memory_of_streams_too() -> None:
    kind = idle.Idle("streams", 2000, idle.polls, 10.0, 12.5, [(0.01, 0.001, 49, 200)] * 2)
    assert verdicts(kind.goals()) == [(True, "1.0%"), (True, "49.0/s"), (False, "12.5 KiB")]
    assert kind.row()[:3] == ["2,000 streams", "12.5", "1.0 (1.0 to 1.0)"]
    kind.most_kib = None
    assert len(kind.goals()) == 2


def test_windows_of_idleness_hold_a_ping() -> None:
    assert idle.SECONDS * 5 > 20


async def test_a_long_queue_grows_in_portions_until_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    portions: list[int] = []

    async def queue_steps(_url: str, _flow_type: str, steps: int, _payload: str) -> None:
        portions.append(steps)
        await trio.sleep(steps / 1000)

    monkeypatch.setattr(long_queue, "queue_steps", queue_steps)
    assert await long_queue.fill("", 45_000, trio.current_time() + 1000) == 45_000
    assert portions == [20_000, 20_000, 5_000]
    assert await long_queue.fill("", 1_000_000, trio.current_time() + 50) == 60_000


def test_a_scaling_that_was_cut_has_rows_of_what_it_saw(tmp_path: Path) -> None:
    session = Session((), tmp_path, 100, 1, 100, frozenset())
    section = Section("W8", "title")
    one, same, more = scaling.ONE, scaling.SAME_LOAD, scaling.MORE_LOAD
    alone = [(2000.0, 100.0, 50.0)]
    scaling.report(section, session, {one: alone, same: [], more: []})
    assert section.blocks[0].count("\n") == 2
    assert verdicts(section.goals) == [(None, "-"), (None, "-")]
    section = Section("W8", "title")
    found = {one: alone, same: [(1000.0, 120.0, 60.0)], more: [(4000.0, 105.0, 50.0)]}
    scaling.report(section, session, found)
    assert verdicts(section.goals) == [(False, "1.20 x (150 to 180 us)"), (True, "1.03 x (150 to 155 us)")]


def test_each_of_four_nodes_gets_a_quarter_of_the_load_or_as_much_as_the_one() -> None:
    loads = [int(share.environ["BENCH_CHAINS"]) / share.nodes for share in scaling.SHARES]
    assert loads == [64, 32, 16, 64]
    assert all(share.connections % share.nodes == 0 for share in scaling.SHARES)


def test_a_huge_queue_that_ran_dry_is_twice_as_long_the_next_time() -> None:
    hot = cold_queues.Hot()
    assert hot.missing(1_000) == 6_100
    hot.left = hot.length = 6_100
    assert hot.missing(1_000) == 0
    assert not hot.lasted(6_100)
    assert (hot.left, hot.missing(1_000)) == (0, 12_100)
    hot.left = hot.length = 12_100
    assert hot.lasted(7_000)
    assert (hot.left, hot.missing(1_000)) == (5_100, 12_100)
