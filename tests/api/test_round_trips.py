"""How often a node asks the store for what workers do most: counts, which no machine makes better or worse.

The stream plane's are in ``tests/cluster/streams/test_hand_over.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any

import pytest

from cluster.store.store import Store
from tests.unit.api.fakes import Client
from tests.wire import complete, envelope, schedule

ROUNDS = 10


Cost = dict[str, int]

_numbers = count()
_asking = ContextVar("asking", default=False)
"""Tasks that run already, as a node's own do, keep their value of it."""


class Asked:
    """Commands and scripts a node sends for whoever asks it, by name; not what it does by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counted: Counter[str] = Counter()
        run, call = Store.run, Store.call

        async def counted_run(store: Store, script: str, *args: Any, **more: Any) -> Any:
            self._count(script)
            return await run(store, script, *args, **more)

        async def counted_call(store: Store, *command: Any, **more: Any) -> Any:
            self._count(str(command[0]))
            return await call(store, *command, **more)

        monkeypatch.setattr(Store, "run", counted_run)
        monkeypatch.setattr(Store, "call", counted_call)

    def _count(self, name: str) -> None:
        if _asking.get():
            self._counted[name] += 1

    async def by_each(self, jobs: list[Callable[[], Awaitable[object]]]) -> Cost:
        """What every one of ``jobs`` makes the node ask.

        What comes up less often is not theirs: it is read once and kept.
        """
        self._counted.clear()
        _asking.set(True)
        for job in jobs:
            await job()
        _asking.set(False)
        return {name: number // len(jobs) for name, number in self._counted.items() if number >= len(jobs)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture
async def worker(client: Client) -> Client:
    """A client whose worker is registered for the queue."""
    body = {"worker_id": "w", "task_queue": "q", "runtime": "python"}
    assert (await client.worker("POST", "register", body)).status == 201
    return client


async def start(client: Client) -> None:
    body = {"workflow_type": "t", "task_queue": "q", "workflow_id": f"wf{next(_numbers)}"}
    assert (await client.control("POST", "/api/workflows", body)).status == 201


async def poll(client: Client, kind: str, found: list[dict[str, Any]]) -> None:
    request = {"task_queue": "q", "poll_request_id": f"p{next(_numbers)}", "timeout_seconds": 0}
    answer = await client.worker("POST", f"{kind}-tasks/poll", {"worker_id": "w", **request})
    assert answer.status == 200
    found.append(answer.body["task"])


async def finish(client: Client, kind: str, task: dict[str, Any], **fields: Any) -> None:
    names = ("lease_owner", {"workflow": "workflow_task_attempt", "activity": "activity_attempt_id"}[kind])
    body = {name: task[name] for name in names} | fields
    assert (await client.worker("POST", f"{kind}-tasks/{task['task_id']}/complete", body)).status == 200


async def test_a_workflow_of_one_activity_asks_as_little_as_it_can(worker: Client, asked: Asked) -> None:
    """One commit a transition; a poll's id is noted by its claim."""

    async def polled(kind: str) -> tuple[Cost, list[dict[str, Any]]]:
        found: list[dict[str, Any]] = []
        cost = await asked.by_each([partial(poll, worker, kind, found)] * ROUNDS)
        assert None not in found
        return cost, found

    async def finished(kind: str, tasks: list[dict[str, Any]], **fields: Any) -> Cost:
        return await asked.by_each([partial(finish, worker, kind, task, **fields) for task in tasks])

    assert await asked.by_each([partial(start, worker)] * ROUNDS) == {"commit": 1}
    cost, tasks = await polled("workflow")
    assert cost == {"claim": 1}
    assert await finished("workflow", tasks, commands=[schedule("x", "q")]) == {"commit": 1}
    cost, tasks = await polled("activity")
    assert cost == {"claim": 1}
    assert await finished("activity", tasks, result=envelope("out")) == {"commit": 1}
    cost, tasks = await polled("workflow")
    assert cost == {"claim": 1}
    assert await finished("workflow", tasks, commands=[complete("out")]) == {"commit": 1}


async def test_looking_at_a_workflow_asks_once(worker: Client, asked: Asked) -> None:
    """Clients that wait for a result look many times a second."""
    body = {"workflow_type": "t", "task_queue": "q", "workflow_id": "looked-at"}
    run_id = (await worker.control("POST", "/api/workflows", body)).body["run_id"]

    async def look(path: str = "") -> None:
        assert (await worker.control("GET", f"/api/workflows/looked-at{path}")).status == 200

    assert await asked.by_each([look] * ROUNDS) == {"describe": 1}
    assert await asked.by_each([partial(look, f"/runs/{run_id}")] * ROUNDS) == {"describe": 1}


async def test_a_poll_that_finds_nothing_claims_at_most_once(worker: Client, asked: Asked) -> None:
    found: list[dict[str, Any]] = []
    cost = await asked.by_each([partial(poll, worker, "workflow", found)] * ROUNDS)
    assert found == [None] * ROUNDS
    assert cost in ({}, {"claim": 1})


async def test_a_flow_starts_with_one_commit(worker: Client, asked: Asked) -> None:
    async def begin() -> None:
        body = {"flow_type": "f", "flow_id": f"f{next(_numbers)}", "start_step": "s"}
        assert (await worker.control("POST", "/api/flows", body)).status == 201

    assert await asked.by_each([begin] * ROUNDS) == {"commit": 1}
