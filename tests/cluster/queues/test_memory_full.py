"""Redis without room (rule A5): what runs is finished, nothing new is taken or handed out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import redis

from cluster.errors import StoreFull
from cluster.queues import claims
from cluster.queues.claims import Claim, ClaimWaiter
from cluster.store.store import Store, open_store
from cluster.store.transaction import ReadyTask, Transaction
from tests.cluster.nodes import hold
from tests.cluster.queues.lab import Lab, queue_name
from tests.servers import KINDS, Server, run_server


@pytest.fixture(scope="module", params=KINDS)
def own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@dataclass
class Full:
    """A partition with a leased, a returned and a ready task, in a server that is full since."""

    lab: Lab
    client: redis.Redis
    leased: Claim
    returned: str
    ready: str
    before: dict[str, dict[str, str]]

    @property
    def store(self) -> Store:
        return self.lab.store

    def make_room(self) -> None:
        self.client.config_set("maxmemory", 0)


@pytest.fixture
async def full(own_server: Server, prefix: str) -> AsyncIterator[Full]:
    async with open_store(own_server.url, prefix=prefix) as store:
        lab = Lab(store)
        returned = await lab.enqueue()
        claim = await lab.claim()
        assert claim is not None
        await lab.enqueue()
        leased = await lab.claim()
        assert leased is not None
        await lab.requeue(claim)
        ready = await lab.enqueue()
        await hold(store, 0)
        before = await lab.audit()
        with own_server.client() as client:
            client.config_set("maxmemory", 1)
            try:
                yield Full(lab, client, leased, returned, ready, before)
            finally:
                client.config_set("maxmemory", 0)


def starting(full: Full) -> Transaction:
    keys = full.store.keys
    tx = Transaction(0, ring=keys.run(0, "new"), request_id="f" * 16)
    tx.expect_absent(keys.run(0, "new"))
    # Begins with operations that a full Redis lets pass.
    tx.disarm("x")
    tx.drop(full.leased.task_id)
    tx.hset(keys.run(0, "new"), {"v": 1})
    tx.enqueue(ReadyTask("new-a1", "new", queue_name().encode(), "t"))
    return tx


async def test_new_work_is_refused_whole(full: Full) -> None:
    tx = starting(full)
    with pytest.raises(StoreFull):
        await full.store.commit(tx)
    assert await full.lab.audit() == full.before
    full.make_room()
    assert await full.store.commit(tx) is True


async def test_a_group_of_new_work_is_refused_whole(full: Full) -> None:
    failing = Transaction(0)
    failing.expect_task_state("nobody", "l")
    with pytest.raises(StoreFull):
        await full.store.commit_many([failing, starting(full), starting(full)])
    assert await full.lab.audit() == full.before


async def test_claims_are_refused_whole(full: Full) -> None:
    waiters = [ClaimWaiter("w", f"k{number}", frozenset()) for number in range(3)]
    with pytest.raises(StoreFull):
        await full.lab.ask(waiters)
    with pytest.raises(StoreFull):
        await full.lab.claim("t")
    assert await full.lab.audit() == full.before
    full.make_room()
    assert await full.lab.drain() == [full.returned, full.ready]


async def test_a_claim_that_finds_nothing_is_no_write(full: Full) -> None:
    assert await full.lab.claim("other") is None
    assert (await claims.peek(full.store, [0], [queue_name()])).heads[0].ready_ms


@pytest.mark.parametrize("verb", ["drop", "requeue", "extend", "finish"])
async def test_what_runs_can_be_finished(full: Full, verb: str) -> None:
    task_id, run = full.leased.task_id, full.store.keys.run(0, "run")
    tx = Transaction(0, ring=run, request_id="e" * 16, frees=True)
    tx.expect_task(task_id, "l", 1, 0, "w")
    match verb:
        case "drop":
            tx.drop(task_id)
        case "requeue":
            tx.requeue(task_id, 2, 0)
        case "extend":
            tx.extend(task_id, 90_000)
        case _:
            tx.drop(task_id)
            tx.hset(run, {"v": 2, "s": b"x" * 1000})
            tx.append(full.store.keys.history(0, "run"), [b"event"] * 100)
            tx.enqueue(ReadyTask("run-a2", "run", queue_name().encode(), "t"))
    assert await full.store.commit(tx) is True
    assert await full.store.commit(tx) is False
    after = await full.lab.audit()
    assert after != full.before
    if verb == "finish":
        assert await full.store.call("LLEN", full.store.keys.history(0, "run")) == 100


async def test_an_undelivered_task_is_given_back(full: Full) -> None:
    await claims.give_back(full.store, full.leased, "w")
    assert (await full.lab.audit())[full.leased.task_id]["d"] == "1"


@pytest.mark.parametrize("script", ["resync", "compact"])
async def test_upkeep_goes_on(full: Full, script: str) -> None:
    keys = full.store.keys
    more = [0, 100] if script == "compact" else []
    arguments: list[str | int] = [keys.base(0), keys.prefix, "owner", "nonce", "0", 50, *more]
    reply = await full.store.run(script, [keys.touch(0)], arguments)
    assert reply[0] == b"0"
    assert await full.lab.audit() == full.before
