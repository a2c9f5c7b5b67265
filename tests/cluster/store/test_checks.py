"""Start-up checks say in one line what to do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from cluster.errors import StartupError
from cluster.store import checks
from cluster.store.checks import check_server
from tests.scripted import scripted_redis
from tests.servers import KINDS, Server, run_cluster, run_server
from tests.waiting import PATIENCE

GOOD = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with run_server(request.param, tmp_path, *GOOD) as running:
        yield running


async def refusal(url: str, durability: str = "memory") -> str:
    with pytest.raises(StartupError) as caught:
        await check_server(url, durability)
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_a_good_server_passes_without_a_word(server: Server) -> None:
    assert await check_server(server.url) == []


async def test_settings_that_break_promises(server: Server) -> None:
    with server.client() as client:
        assert "set appendfsync always" in await refusal(server.url, "fsync")
        client.config_set("appendfsync", "always")
        assert await check_server(server.url, "fsync") == []
        client.config_set("no-appendfsync-on-rewrite", "yes")
        assert "set no-appendfsync-on-rewrite no" in await refusal(server.url, "fsync")
        assert "set min-replicas-to-write 1" in await refusal(server.url, "replica:1")
        client.config_set("min-replicas-to-write", 1)
        [warning] = await check_server(server.url, "replica:1")
        assert "has 0 replicas" in warning
        client.config_set("appendonly", "no")
        assert "set appendonly yes" in await refusal(server.url, "fsync")
        [warning] = await check_server(server.url)
        assert "set appendonly yes" in warning
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "set maxmemory-policy noeviction" in await refusal(server.url)


async def test_more_replicas_than_confirm_are_warned_of() -> None:
    """Sentinel may promote one of the others."""
    async with scripted_redis() as server:
        server.info["connected_slaves"] = "2"
        assert any("set replica:2" in warning for warning in await check_server(server.url, "replica:1"))
        assert not any("has 2 replicas" in warning for warning in await check_server(server.url, "replica:2"))


async def test_a_promise_broken_later_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHECK_AGAIN_EVERY", 0.01)
    send, reports = trio.open_memory_channel[str | None](10)
    with run_server("valkey", tmp_path, *GOOD, "--appendfsync", "always") as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checks.watch_server, server.url, "fsync", send.send_nowait)
            with server.client() as client, trio.fail_after(PATIENCE):
                client.config_set("appendfsync", "everysec")
                assert "set appendfsync always" in str(await reports.receive())
                client.config_set("appendfsync", "always")
                assert await reports.receive() is None
            server.kill()
            await trio.to_thread.run_sync(server.start)
            assert reports.statistics().current_buffer_used == 0
            nursery.cancel_scope.cancel()


async def test_what_an_acl_hides_is_a_warning(server: Server) -> None:
    with server.client() as client:
        client.acl_setuser("app", enabled=True, passwords=["+pw"], keys="*", commands=["+@all", "-config"])
        url = server.url.replace("//", "//app:pw@")
        assert await check_server(url) == []
        [warning] = await check_server(url, "fsync")
        assert "could not be checked" in warning
        client.acl_setuser("app", enabled=True, commands=["-info"])
        assert any("INFO" in warning for warning in await check_server(url))


async def test_a_replica_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    replicaof = ("--replicaof", f"127.0.0.1 {server.port}")
    with run_server(server.kind, tmp_path / "r", *replicaof) as replica:
        assert "is a replica" in await refusal(replica.url)


async def test_a_cluster_wants_its_own_url(tmp_path: Path) -> None:
    with run_cluster("valkey", tmp_path) as node:
        assert "redis+cluster://" in await refusal(node.url)
        warnings = await check_server(f"redis+cluster://127.0.0.1:{node.port}")
        assert len(warnings) == 1


async def test_a_single_server_is_no_cluster(server: Server) -> None:
    assert "Cluster mode is not enabled" in await refusal(f"redis+cluster://127.0.0.1:{server.port}")


async def test_nobody_there() -> None:
    assert "cannot be reached at redis://127.0.0.1:1 " in await refusal("redis://127.0.0.1:1/0")


async def test_wrong_password_and_missing_password(tmp_path: Path) -> None:
    with run_server("valkey", tmp_path, *GOOD, password="s3cr3t") as locked:
        wrong = await refusal(locked.url.replace("s3cr3t", "wr0ng"))
        assert "check user and password" in wrong
        assert "wr0ng" not in wrong
        assert "check user and password" in await refusal(f"redis://127.0.0.1:{locked.port}")


async def test_something_else_answers() -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        assert "is not Redis" in await refusal(f"redis://127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("durability", ["disk", "replica:0", "replica:", "fsync "])
async def test_an_unknown_durability_is_refused(durability: str) -> None:
    assert "use memory, fsync or replica:N" in await refusal("redis://127.0.0.1:1", durability)
