"""Lines of waiting queries on real servers: bounded, fair, and gone when their time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from cluster.errors import Refused, StoreUnavailable
from cluster.queries import broker as broker_module
from cluster.queries.broker import QueryBroker
from cluster.queries.model import Answer, AnswerState, QueryClaim, QueryPoll, Question, QuestionBody
from cluster.queries.polls import QueryPolls
from cluster.store.store import Store
from tests.store_time import store_ms
from tests.waiting import LONG_PATIENCE, PATIENCE, eventually

STORM = 1024
ASKED = Answer(AnswerState.COMPLETED, {"result": 1})


@pytest.fixture
async def broker(store: Store) -> QueryBroker:
    return await _broker(store)


async def _broker(store: Store, timeout: float = 20, limit: int = STORM) -> QueryBroker:
    broker = QueryBroker(store, timeout=timeout, ttl_seconds=60, max_pending=limit)
    await broker.watch()
    return broker


@pytest.fixture
async def polls(store: Store) -> AsyncIterator[QueryPolls]:
    async with _polls(store) as opened:
        yield opened


@asynccontextmanager
async def _polls(store: Store) -> AsyncIterator[QueryPolls]:
    polls = QueryPolls(store, lease_ms=30_000, may_act=lambda: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(polls.run)
        yield polls
        nursery.cancel_scope.cancel()


def _question(name: str = "state", workflow_type: str = "t", marker: str = "") -> Question:
    body = QuestionBody(
        workflow_id="w", run_id="r", workflow_type=workflow_type, query_name=name, payload_codec="avro"
    )
    return Question("default", "jobs", marker, body)


def _poll(worker: str = "w", types: tuple[str, ...] = (), marker: str = "", timeout: float = 0) -> QueryPoll:
    return QueryPoll("default", "jobs", worker, marker, frozenset(types), timeout=timeout)


async def _keys(store: Store) -> list[bytes]:
    found: list[bytes] = await store.call("KEYS", f"{store.keys.queries('default', 'jobs')}:*")
    return found


async def _answer(broker: QueryBroker, claim: QueryClaim, worker: str = "w") -> None:
    await broker.answer("default", claim.query_task_id, worker, claim.attempt, ASKED)


async def test_a_storm_meets_its_limit_and_leaves_nothing(
    store: Store, broker: QueryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "SETTLED_MS", 300)
    memory = int((await store.call("INFO", "memory")).split(b"used_memory:")[1].split(b"\r")[0])
    outcomes: Counter[str] = Counter()

    async def ask() -> None:
        try:
            await broker.ask(_question())
        except Refused as refusal:
            outcomes[refusal.reason] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(STORM):
            nursery.start_soon(ask)

        async def all_wait() -> bool:
            return await broker.pending("default", "jobs") == STORM

        await eventually(all_wait, LONG_PATIENCE)
        with trio.fail_after(PATIENCE):
            for _ in range(20):
                await ask()
        assert outcomes == {"query_task_queue_full": 20}
        for key in await _keys(store):
            assert 0 < await store.call("PTTL", key) <= 60_000
        nursery.cancel_scope.cancel()

    async def gone() -> bool:
        return await _keys(store) == []

    await eventually(gone, LONG_PATIENCE)
    after = int((await store.call("INFO", "memory")).split(b"used_memory:")[1].split(b"\r")[0])
    assert broker.waiting == 0
    assert after < memory + 4 * 1024 * 1024


async def test_many_at_once_never_exceed_the_limit(store: Store) -> None:
    brokers = [await _broker(store, limit=10) for _ in range(3)]
    refused = 0

    async def ask(broker: QueryBroker) -> None:
        nonlocal refused
        try:
            await broker.ask(_question())
        except Refused:
            refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(60):
            nursery.start_soon(ask, brokers[number % 3])
        await eventually(lambda: refused == 50)
        assert await brokers[0].pending("default", "jobs") == 10
        nursery.cancel_scope.cancel()


async def test_first_asked_first_answered(broker: QueryBroker, polls: QueryPolls) -> None:
    results: list[Answer] = []

    async def ask(name: str, workflow_type: str = "t", marker: str = "") -> None:
        results.append(await broker.ask(_question(name, workflow_type, marker)))

    async with trio.open_nursery() as nursery:
        for count, (name, workflow_type, marker) in enumerate(
            [("one", "a", ""), ("two", "b", ""), ("three", "a", "v1"), ("four", "a", "")]
        ):
            nursery.start_soon(ask, name, workflow_type, marker)

            async def waits(wanted: int = count + 1) -> bool:
                return await broker.pending("default", "jobs") == wanted

            await eventually(waits)
        claims = [
            await polls.poll(_poll(types=("b", "c"))),
            await polls.poll(_poll(types=("a",), marker="v2")),
            await polls.poll(_poll(marker="v1")),
            await polls.poll(_poll(types=("b",))),
            await polls.poll(_poll()),
        ]
        names = [claim.body.query_name if claim else None for claim in claims]
        for claim in claims:
            if claim is not None:
                await _answer(broker, claim)

    assert names == ["two", "one", "three", None, "four"]
    assert len(results) == 4


async def test_one_query_wakes_one_of_many_polls_on_two_nodes(
    store: Store, broker: QueryBroker, polls: QueryPolls
) -> None:
    claims: list[QueryClaim] = []

    async def wait(on: QueryPolls, number: int) -> None:
        claim = await on.poll(_poll(f"w{number}", timeout=30))
        if claim is not None:
            claims.append(claim)
            await _answer(broker, claim, f"w{number}")

    async with _polls(store) as others, trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(wait, (polls, others)[number % 2], number)
        await eventually(lambda: polls.parked + others.parked == 20)
        with trio.fail_after(PATIENCE):
            for _ in range(5):
                assert (await broker.ask(_question())).fields == {"result": 1}
        assert polls.parked + others.parked == 15
        polls.close()
        others.close()

    assert len({claim.query_task_id for claim in claims}) == 5


async def test_a_parked_poll_costs_nothing(store: Store, polls: QueryPolls) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(polls.poll, _poll(f"w{number}", timeout=60))
        await eventually(lambda: polls.parked == 50)
        await trio.testing.wait_all_tasks_blocked(0.2)
        before = store.statistics().pipe.commands
        await trio.testing.wait_all_tasks_blocked(0.2)
        polls.close()
        await eventually(lambda: polls.parked == 0)

    assert store.statistics().pipe.commands == before


async def test_an_answer_that_nobody_heard_of_is_read_in_the_end(
    store: Store, broker: QueryBroker, polls: QueryPolls
) -> None:
    deaf = QueryBroker(store, timeout=1, ttl_seconds=60, max_pending=10)  # does not watch
    found: list[Answer] = []

    async def ask() -> None:
        found.append(await deaf.ask(_question()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        claim = await polls.poll(_poll(timeout=5))
        assert claim is not None
        await _answer(broker, claim)

    assert found == [ASKED]


async def test_a_caller_that_is_gone_leaves_the_line(
    store: Store, broker: QueryBroker, polls: QueryPolls
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.ask, _question())

        async def waits() -> bool:
            return await broker.pending("default", "jobs") == 1

        await eventually(waits)
        nursery.cancel_scope.cancel()

    assert await broker.pending("default", "jobs") == 0
    assert await polls.poll(_poll()) is None


async def test_queries_whose_caller_died_are_not_handed_out(
    store: Store, broker: QueryBroker, polls: QueryPolls
) -> None:
    keys = store.keys
    arguments: list[str | bytes | int | float] = [
        keys.queries("default", "jobs"),
        "01",
        ":t",
        1,
        5,
        60_000,
        b"{}",
        "nowhere",
        "nowhere",
    ]
    await store.run("query_ask", [keys.pending_queries("default", "jobs")], arguments)

    async def late() -> bool:
        waiting: int = await store.call(
            "ZCOUNT", keys.pending_queries("default", "jobs"), await store_ms(store) + 1, "+inf"
        )
        return waiting == 0

    await eventually(late)
    assert await polls.poll(_poll()) is None
    assert await polls.poll(_poll(types=("t",))) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.ask, _question())
        claim = await polls.poll(_poll(timeout=5))
        assert claim is not None
        await _answer(broker, claim)
    assert await broker.pending("default", "jobs") == 0


async def test_a_record_that_cannot_be_read_hurts_only_its_query(store: Store, polls: QueryPolls) -> None:
    keys = store.keys
    arguments: list[str | bytes | int | float] = [
        keys.queries("default", "jobs"),
        "01",
        ":t",
        9999,
        5,
        60_000,
        b"{}",
        "nowhere",
        "nowhere",
    ]
    await store.run("query_ask", [keys.pending_queries("default", "jobs")], arguments)

    assert await polls.poll(_poll()) is None
    assert await polls.poll(_poll()) is None


async def test_a_node_that_may_not_act_hands_nothing_out(store: Store, broker: QueryBroker) -> None:
    may_act = False
    polls = QueryPolls(store, lease_ms=30_000, may_act=lambda: may_act)
    async with trio.open_nursery() as nursery:
        await nursery.start(polls.run)
        with pytest.raises(StoreUnavailable):
            await polls.poll(_poll())
        async with trio.open_nursery() as asking:
            asking.start_soon(broker.ask, _question())
            found: list[QueryClaim | None] = []

            async def poll() -> None:
                found.append(await polls.poll(_poll(timeout=10)))

            asking.start_soon(poll)
            await eventually(lambda: polls.parked == 1)
            may_act = True
            await eventually(lambda: bool(found))
            assert found[0] is not None
            await _answer(broker, found[0])
        nursery.cancel_scope.cancel()


async def test_late_answers_hear_what_became_of_their_query(store: Store, polls: QueryPolls) -> None:
    broker = await _broker(store, timeout=2)
    found: list[Answer] = []

    async def ask() -> None:
        found.append(await broker.ask(_question()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        claim = await polls.poll(_poll(timeout=5))
    assert claim is not None
    with pytest.raises(Refused) as late:
        await _answer(broker, claim)

    assert found == [Answer(AnswerState.TIMED_OUT)]
    assert late.value.reason == "query_task_not_leased"


async def test_an_expired_lease_is_refused(store: Store, broker: QueryBroker) -> None:
    polls = QueryPolls(store, lease_ms=20, may_act=lambda: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(polls.run)
        nursery.start_soon(broker.ask, _question())
        claim = await polls.poll(_poll(timeout=5))
        assert claim is not None
        expires = claim.lease_expires_at_ms

        async def expired() -> bool:
            return await store_ms(store) > expires

        await eventually(expired)
        with pytest.raises(Refused) as refused:
            await _answer(broker, claim)
        assert await polls.poll(_poll()) is None
        nursery.cancel_scope.cancel()

    assert refused.value.reason == "lease_expired"
    assert "lease_expires_at" in refused.value.fields
