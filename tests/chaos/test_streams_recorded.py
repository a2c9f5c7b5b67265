"""Flows on three nodes behind HAProxy while workers and nodes die, stand still and half-close.

The long run: ``HEADRACE_SOAK_STEPS=20000 pytest tests/chaos/test_streams_recorded.py -k long -m chaos -s``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
import trio

from tests.chaos.streams_checker import Findings, check
from tests.chaos.streams_stage import HEADERS, SHORT, STEPS_OF_A_FLOW, WORKERS, Stage
from tests.cluster_processes import make_cluster
from tests.waiting import eventually

SHORT_STEPS = 300
LONG_STEPS = int(os.environ.get("HEADRACE_SOAK_STEPS", "20000"))
SETTINGS = "matching:\n  pingInterval: 1s\n  stickyWait: 500ms\n  dispatchWait: 4s\n"


async def run(url: str, prefix: str, directory: Path, steps: int, seed: int, *, long: bool) -> Findings:
    settings = directory / "headrace.yaml"
    settings.write_text(SETTINGS)
    environ = {"HEADRACE_KEY_PREFIX": prefix, "HEADRACE_CONFIG": str(settings)}
    with make_cluster(3, url, directory / "nodes", environ, balanced=True) as cluster:
        await cluster.start()
        stage = Stage(cluster, seed)
        try:
            async with httpx.AsyncClient(
                base_url=cluster.url, headers=HEADERS, timeout=30, trust_env=False
            ) as http:
                return await _play(stage, http, steps, long=long)
        finally:
            cluster.workers += stage.workers.values()


async def _play(stage: Stage, http: httpx.AsyncClient, steps: int, *, long: bool) -> Findings:
    for number in range(WORKERS):
        await stage.start_worker(number)
    await stage.start_counter(http)
    async with trio.open_nursery() as background:
        background.start_soon(stage.call_forever, http)
        async with trio.open_nursery() as nursery:
            flows = steps // STEPS_OF_A_FLOW
            if long:
                faults = await background.start(_befall, stage)
                await stage.start_flows(http, flows, rate=25)
                faults.cancel()
            else:
                nursery.start_soon(stage.start_flows, http, flows, 40)
                for fault in SHORT:
                    await trio.sleep(fault.after)
                    nursery.start_soon(stage.befall, fault)
        await eventually(lambda: stage.answered >= 4, 20)
        background.cancel_scope.cancel()
    return await stage.findings(http, within=120 if long else 45)


async def _befall(
    stage: Stage, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await stage.befall_forever()
    # A worker that was killed last may not have been started again, and a node neither.
    await stage.cluster.revive()
    for number, worker in list(stage.workers.items()):
        if worker.exit_code is not None:
            await stage.start_worker(number)


def summary(found: Findings) -> str:
    whats = Counter(event["what"] for event in found.events)
    how = Counter(event["how"] for event in found.events if event["what"] == "ending")
    faults = Counter(event["kind"] for event in found.events if event["what"] == "fault")
    history = Counter(entry["event"] for flow in found.flows.values() for entry in flow.steps)
    statuses = Counter(flow.status for flow in found.flows.values())
    parts = {"seen": whats, "endings": how, "faults": faults, "history": history, "flows": statuses}
    return "\n".join(f"{name}: {dict(sorted(counts.items()))}" for name, counts in parts.items())


@pytest.mark.timeout(180)
async def test_i1_to_i9_hold_in_a_short_run(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    found = await run(valkey_url, prefix, tmp_path, SHORT_STEPS, seed=1, long=False)
    print(summary(found))
    broken = check(found)
    assert not broken, broken
    handed_out = [event for event in found.events if event["what"] == "handed_out"]
    assert len(handed_out) > SHORT_STEPS / 2
    assert {event["kind"] for event in handed_out} == {"step", "rpc"}
    assert len({event["who"] for event in handed_out}) > WORKERS  # those that were killed came back
    assert {entry["event"] for flow in found.flows.values() for entry in flow.steps} >= {"completed", "lost"}


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1, 2])
async def test_i1_to_i9_hold_in_a_long_run(valkey_url: str, prefix: str, tmp_path: Path, seed: int) -> None:
    began = time.monotonic()
    found = await run(valkey_url, prefix, tmp_path, LONG_STEPS, seed=seed, long=True)
    print(f"\n{time.monotonic() - began:.0f} s\n{summary(found)}")
    broken = check(found)
    assert not broken, broken
