"""Replies that mean "not executed" are sent again, alone, until the deadline (A1)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from cluster.errors import OutcomeUnknown, StartupError, StoreError, StoreUnavailable
from cluster.store import lane
from cluster.store.checks import check_server
from cluster.store.lane import Lane
from cluster.store.pipe import open_pipe
from tests.scripted import ScriptedRedis, scripted_redis
from tests.waiting import PATIENCE

NOT_EXECUTED = [
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down",
    "BUSY Redis is busy running a script.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Errors writing to the AOF file: No space left on device",
]


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedRedis]:
    async with scripted_redis() as server:
        yield server


@pytest.mark.parametrize("error", NOT_EXECUTED, ids=lambda error: error.split()[0])
async def test_only_the_refused_command_is_sent_again(scripted: ScriptedRedis, error: str) -> None:
    replies = []

    async with open_pipe(scripted.url) as pipe:

        async def increment() -> None:
            replies.append(await pipe.execute(["INCR", "n"]))

        scripted.script("INCR", ":1", f"-{error}", ":2", f"-{error}", f"-{error}", ":3", ":4", ":5")
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(increment)
        assert sorted(replies) == [1, 2, 3, 4, 5]
        assert scripted.executed["INCR"] == 5
        assert pipe.statistics().resent == 3
        assert pipe.statistics().ambiguous == 0


@pytest.mark.parametrize("error", NOT_EXECUTED, ids=lambda error: error.split()[0])
async def test_a_lasting_refusal_ends_at_the_deadline(scripted: ScriptedRedis, error: str) -> None:
    async with open_pipe(scripted.url, call_timeout=0.2) as pipe:
        scripted.script("INCR", *[f"-{error}"] * 1000)
        with trio.fail_after(PATIENCE), pytest.raises(StoreUnavailable, match=error.split()[0]):
            await pipe.execute(["INCR", "n"])
        assert scripted.executed["INCR"] == 0


async def test_a_refusal_after_a_lost_reply_stays_ambiguous(scripted: ScriptedRedis) -> None:
    """The first attempt may have been executed, whatever the later ones say."""
    async with open_pipe(scripted.url, call_timeout=0.3) as pipe:
        scripted.script("INCR", "!garbage", *["-BUSY Redis is busy running a script."] * 1000)
        with trio.fail_after(PATIENCE), pytest.raises(OutcomeUnknown):
            await pipe.execute(["INCR", "n"], idempotent=True)


async def test_a_garbled_reply_is_ambiguous_and_ends_the_connection(scripted: ScriptedRedis) -> None:
    async with open_pipe(scripted.url) as pipe:
        scripted.script("INCR", "!garbage")
        with pytest.raises(OutcomeUnknown):
            await pipe.execute(["INCR", "n"])
        assert await pipe.execute(["INCR", "n"]) == b"OK"
        assert pipe.statistics().connects == 2


async def test_a_server_that_is_still_loading_at_connect_is_waited_for(scripted: ScriptedRedis) -> None:
    scripted.script("INFO", *["-LOADING Redis is loading the dataset in memory"] * 4)
    async with open_pipe(scripted.url) as pipe:
        assert await pipe.execute(["INCR", "n"]) == b"OK"
        assert pipe.generation == "run:replid"


async def test_an_internal_error_fails_its_batch_and_not_the_lane(
    scripted: ScriptedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_pipe(scripted.url) as pipe:
        assert await pipe.execute(["INCR", "n"]) == b"OK"
        with monkeypatch.context() as patch:
            patch.setattr(Lane, "_settle", None)
            patch.setattr(lane, "_log", None)  # a logger that fails as well
            with trio.fail_after(PATIENCE), pytest.raises(OutcomeUnknown, match="internal error"):
                await pipe.execute(["INCR", "n"])
        assert await pipe.execute(["INCR", "n"]) == b"OK"
        assert pipe.statistics().waiting == 0


async def test_every_caller_of_a_closing_pipe_is_answered(scripted: ScriptedRedis) -> None:
    scripted.script("INCR", *["-BUSY Redis is busy running a script."] * 1000)
    errors: list[StoreError] = []

    async def increment() -> None:
        try:
            await pipe.execute(["INCR", "n"])
        except StoreError as error:
            errors.append(error)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery, open_pipe(scripted.url) as pipe:
            for _ in range(20):
                nursery.start_soon(increment)
            await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(errors) == 20
    assert all(isinstance(error, StoreUnavailable) for error in errors)


@pytest.mark.parametrize(
    ("info", "refusal"),
    [
        ({"redis_version": "6.2.14"}, "Redis 6.2.14 .* install Redis 7.0 or newer"),
        ({"redis_version": "7.0.0"}, None),
        ({"redis_version": "8.2.1"}, None),
        ({"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.2.5"}, None),
        (
            {"redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "7.1.0"},
            "Valkey 7.1.0 .* install Valkey 7.2 or newer",
        ),
        ({"maxmemory_policy": "volatile-lru"}, "set maxmemory-policy noeviction"),
        ({"role": "slave"}, "is a replica"),
    ],
)
async def test_versions_and_roles_at_start(
    scripted: ScriptedRedis, info: dict[str, str], refusal: str | None
) -> None:
    scripted.info |= info
    if refusal is None:
        assert await check_server(scripted.url) == []
    else:
        with pytest.raises(StartupError, match=refusal):
            await check_server(scripted.url)
