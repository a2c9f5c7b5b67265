"""The passes of the ``headrace`` command, beside a running node (cases T04, T06)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.errors import StartupError
from cluster.settings import Settings
from nodes.cli.console import startup_errors
from nodes.cli.passes import Scope, enforce_timeouts, prune
from nodes.node import Node
from tests.unit.api.fakes import Client
from tests.waiting import eventually

ALL = Scope(None, 100)
ME = {"worker_id": "w", "task_queue": "jobs"}


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The lines written since the last look."""
    return lambda: capsys.readouterr().out.splitlines()


async def _closed_long_ago(node: Node, client: Client, workflow_id: str, namespace: str = "default") -> None:
    body = {"workflow_type": "t", "workflow_id": workflow_id, "task_queue": "jobs"}
    await client.control("POST", "/api/workflows", body, **{"x-namespace": namespace})
    await client.control("POST", f"/api/workflows/{workflow_id}/cancel", {}, **{"x-namespace": namespace})
    for partition in range(node.store.keys.partitions):
        key = node.store.keys.closed(partition, namespace)
        for run_id in await node.store.call("ZRANGE", key, 0, -1):
            await node.store.call("ZADD", key, 1, run_id)


async def test_runs_past_their_retention_go(
    node: Node, client: Client, said: Callable[[], list[str]]
) -> None:
    settings: Settings = node.settings
    assert await prune(settings, ALL) == 0
    assert said()[-1] == "No expired runs to prune."
    await client.control("POST", "/api/namespaces", {"name": "other"})
    await client.control("POST", "/api/system/retention/pass", {})
    await _closed_long_ago(node, client, "w1")
    await _closed_long_ago(node, client, "w2", "other")

    assert await prune(settings, Scope("Other", 100)) == 0
    assert said()[-1] == "Done: 1 pruned, 0 skipped, 0 failed."
    gone = await client.control("GET", "/api/workflows/w2", **{"x-namespace": "other"})
    kept = await client.control("GET", "/api/workflows/w1")
    assert (gone.status, kept.status) == (404, 200)
    assert await prune(settings, ALL) == 0
    assert said()[-1] == "Done: 1 pruned, 0 skipped, 0 failed."
    with pytest.raises(StartupError, match="does not exist"):
        await prune(settings, Scope("nowhere", 100))


async def test_activity_deadlines_are_enforced(
    node: Node, client: Client, said: Callable[[], list[str]]
) -> None:
    assert await enforce_timeouts(node.settings, ALL) == 0
    assert said()[-1] == "No expired activity executions."
    body = {"activity_type": "a", "task_queue": "jobs", "activity_id": "a1"}
    await client.control("POST", "/api/activities", body | {"schedule_to_start_timeout_seconds": 1})

    async def over() -> bool:
        code = await enforce_timeouts(node.settings, ALL)
        shown = (await client.control("GET", "/api/activities/a1")).body
        return code == 0 and shown["status"] == "failed"

    await eventually(over)


async def test_a_store_that_is_away_is_one_line() -> None:
    settings = Settings(redis_url="redis://127.0.0.1:1/0", auth_driver="none")
    with pytest.raises((StartupError, BaseExceptionGroup)) as caught:
        await prune(settings, ALL)
    (error,) = startup_errors(caught.value) or []
    assert "\n" not in str(error)
