"""What a run remembers of workers that keep its history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from cluster.errors import ValidationFailed
from cluster.workflows import repairing
from cluster.workflows.kept_histories import (
    RESENT,
    Keeping,
    ReplayMode,
    forgotten,
    keep,
    lost,
    page_length,
    replay_mode,
    stored,
)
from cluster.workflows.records import KeptHistory, Lease, Run
from tests.unit.workflows.simulation import COMPLETE, RUN_ID, WAITING, Simulation, activity, timer

KEPT = KeptHistory(registration="me", events=600, until_ms=5_000)


def kept_by_me(sim: Simulation) -> tuple[Run, Lease]:
    return replace(sim.run, state=replace(sim.state, kept=KEPT)), replace(
        sim.claim(), registration="me", owner="w"
    )


def said(sim: Simulation, **fields: str) -> Keeping:
    own = {"worker_id": "w", "workflow_id": sim.run.info.workflow_id, "run_id": RUN_ID}
    return Keeping(**{**own, **fields}, ttl_seconds=300)


def test_a_completion_says_what_is_kept() -> None:
    sim = Simulation()
    run, lease = kept_by_me(sim)
    assert keep(run, lease, said(sim), 1_000) == KeptHistory(registration="me", events=2, until_ms=301_000)


@pytest.mark.parametrize("field", ["worker_id", "workflow_id", "run_id"])
def test_a_worker_speaks_for_itself_and_its_task(field: str) -> None:
    sim = Simulation()
    run, lease = kept_by_me(sim)
    with pytest.raises(ValidationFailed) as failed:
        keep(run, lease, said(sim, **{field: "other"}), 0)
    assert list(failed.value.errors) == [f"sticky_cache.{field}"]


def test_each_completion_speaks_anew() -> None:
    sim = Simulation()
    sim.complete(timer(0), kept=KEPT)
    assert sim.state.kept == KEPT
    sim.complete(timer(0), kept=replace(KEPT, events=700))
    assert sim.state.kept == replace(KEPT, events=700)
    sim.complete(activity())
    assert sim.state.kept is None


def test_nothing_is_kept_of_a_closed_run() -> None:
    sim = Simulation()
    sim.complete(COMPLETE, kept=KEPT)
    assert sim.state.kept is None


def test_the_next_run_begins_without() -> None:
    sim = Simulation()
    changes = sim.complete({"type": "continue_as_new"}, kept=KEPT)
    assert sim.state.kept is None
    assert changes.starts[0].changes.state.kept is None


def test_a_worker_that_waits_keeps_what_it_had() -> None:
    sim = Simulation()
    sim.complete(timer(0), kept=KEPT)
    sim.fail_task(WAITING)
    assert sim.state.kept == KEPT


def _repair(sim: Simulation) -> None:
    sim.fail_task({"type": "Boom", "message": "no"})
    run = replace(sim.run, state=replace(sim.state, kept=KEPT))
    timers = dict.fromkeys(repairing.expected_timers(run))
    changes = repairing.mend(
        run, repairing.Findings(sim.now_ms, {}, timers), sim.task_lease(), sim.now_us, None
    )
    assert changes is not None
    sim.run = replace(sim.run, state=changes.state)


def _lapse(sim: Simulation) -> None:
    sim.claim()
    sim.advance(120)
    sim.lapse_task()


@pytest.mark.parametrize(
    "happens", [_repair, _lapse, lambda sim: sim.fail_task({"type": "Boom", "message": "no"})]
)
def test_doubt_forces_a_cold_replay(happens: Callable[[Simulation], object]) -> None:
    sim = Simulation()
    sim.complete(timer(0), kept=KEPT)
    happens(sim)
    assert sim.state.kept == forgotten(KEPT) == KeptHistory()
    for registration in ("me", ""):
        assert replay_mode(sim.state, registration, 500, 0) is ReplayMode.COLD


def test_modes() -> None:
    state = replace(Simulation().state, kept=KEPT)
    assert replay_mode(state, "me", 500, 4_999) is ReplayMode.HIT
    assert replay_mode(state, "me", 500, 5_000) is ReplayMode.COLD
    assert replay_mode(state, "you", 500, 0) is ReplayMode.COLD
    assert replay_mode(state, "me", 1, 0) is None
    assert replay_mode(replace(state, kept=None), "me", 500, 0) is None


def test_pages_end_where_the_kept_history_ends() -> None:
    run, lease = kept_by_me(Simulation())
    assert page_length(run, lease, 500, 500) == 100
    assert page_length(run, lease, 600 - RESENT + 1, 500) == 500
    assert page_length(run, lease, 600, 500) == 500
    assert page_length(run, lease, 700, 500) == 500
    assert page_length(run, lease, 0, 500) == 500
    assert page_length(run, replace(lease, registration="you"), 500, 500) == 500


def test_who_reads_on_from_the_beginning_lost_its_cache() -> None:
    run, lease = kept_by_me(Simulation())
    assert lost(run, lease, 0, 500)
    assert lost(run, lease, 2, 500)
    assert not lost(run, lease, 500, 500)
    assert not lost(run, lease, 2, 600)
    assert not lost(run, lease, 2, 2)
    assert not lost(run, replace(lease, registration="you"), 2, 500)


def test_what_the_script_reads() -> None:
    assert stored(KEPT) == "me 600 5000"
    assert stored(KeptHistory()) == " 0 0"
