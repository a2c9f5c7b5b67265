"""What cannot work is refused at start: one line, exit code 2, no traceback."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import redis
import trio

from tests.cluster_processes import make_cluster, run_command
from tests.ports import free_port
from tests.servers import run_server
from tests.waiting import eventually
from tests.wire import open_wire


async def refusal(*arguments: str, **environ: str) -> str:
    """The one line with which ``headrace`` refuses to run; log lines are JSON and do not count."""
    ran = await trio.to_thread.run_sync(partial(run_command, *arguments, **environ))
    assert ran.returncode == 2, (ran.returncode, ran.stdout, ran.stderr)
    assert ran.stdout == ""
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("headrace: "), ran.stderr
    return lines[0]


async def serving_refused(redis_url: str, listen: str = "127.0.0.1:0", **environ: str) -> str:
    arguments = ("serve", "--redis-url", redis_url, "--listen", listen)
    return await refusal(*arguments, **{"DW_AUTH_DRIVER": "none", **environ})


@asynccontextmanager
async def fake_redis(info: Mapping[str, str]) -> AsyncIterator[str]:
    """Something that talks like Redis and answers INFO with ``info``; yields its URL."""
    text = "".join(f"{name}:{value}\r\n" for name, value in info.items())

    def answer(command: list[bytes]) -> bytes:
        match command[0].upper():
            case b"INFO":
                return f"${len(text)}\r\n{text}\r\n".encode()
            case b"CONFIG":
                return b"*0\r\n"
            case b"HELLO":
                return b"-ERR unknown command 'HELLO'\r\n"
        return b"+OK\r\n"

    async def talk(stream: trio.SocketStream) -> None:
        received = b""
        async for chunk in stream:
            received += chunk
            while (found := _command(received)) is not None:
                command, received = found
                await stream.send_all(answer(command))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, talk, 0, host="127.0.0.1"))
        yield f"redis://127.0.0.1:{listeners[0].socket.getsockname()[1]}/0"
        nursery.cancel_scope.cancel()


def _command(received: bytes) -> tuple[list[bytes], bytes] | None:
    """The first complete command and what follows it."""
    if not received.startswith(b"*") or b"\r\n" not in received:
        return None
    count, _, rest = received[1:].partition(b"\r\n")
    parts: list[bytes] = []
    for _ in range(int(count)):
        size, found, rest = rest[1:].partition(b"\r\n")
        if not found or len(rest) < int(size) + 2:
            return None
        parts.append(rest[: int(size)])
        rest = rest[int(size) + 2 :]
    return parts, rest


async def test_no_redis_there() -> None:
    port = free_port()
    line = await serving_refused(f"redis://127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in line


async def test_a_node_that_waits_for_redis_ends_on_sigterm(tmp_path: Path) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    with make_cluster(1, away, tmp_path / "nodes", {"DW_BOOTSTRAP_RETRIES": "100"}) as cluster:
        (node,) = cluster.nodes
        node.start()
        await eventually(lambda: "store_not_checked" in node.log)
        assert await node.stop() == 0


async def test_a_malformed_redis_url() -> None:
    assert "redis" in await serving_refused("http://127.0.0.1:1/0")


async def test_a_password_in_the_url_is_not_shown() -> None:
    line = await serving_refused(f"redis://:hunter2@127.0.0.1:{free_port()}/0")
    assert "hunter2" not in line


async def test_a_redis_that_is_too_old() -> None:
    async with fake_redis({"redis_version": "6.2.14", "role": "master"}) as url:
        line = await serving_refused(url)
    assert "6.2.14" in line
    assert "7.0" in line


async def test_a_redis_that_evicts(tmp_path: Path) -> None:
    with run_server("redis", tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        line = await serving_refused(server.url)
    assert "allkeys-lru" in line
    assert "noeviction" in line


async def test_fsync_without_an_append_only_file(valkey_url: str) -> None:
    assert "appendonly yes" in await serving_refused(valkey_url, HEADRACE_DURABILITY="fsync")


async def test_a_port_in_use(valkey_url: str, prefix: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = await serving_refused(valkey_url, f"127.0.0.1:{port}", HEADRACE_KEY_PREFIX=prefix)
    with redis.Redis.from_url(valkey_url) as client:
        assert client.keys(f"{prefix}:*") == [], "the node joined before it could listen"
    assert str(port) in line


async def test_other_partitions_than_the_cluster_has(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    with make_cluster(1, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}) as cluster:
        await cluster.start()
        line = await serving_refused(valkey_url, HEADRACE_KEY_PREFIX=prefix, HEADRACE_PARTITIONS="8")
    assert "16" in line
    assert "8" in line


async def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Not even root can make a directory inside a file."""
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "data"
    line = await refusal("dev", "--port", str(free_port()), "--data-dir", str(directory))
    assert str(directory) in line


async def test_two_nodes_at_the_same_instant_make_one_cluster(tmp_path: Path) -> None:
    """On an empty Redis both ask to found the cluster; one does, both serve the same one."""
    with (
        run_server("redis", tmp_path) as server,
        make_cluster(2, server.url, tmp_path, {"HEADRACE_PARTITIONS": "4"}) as cluster,
    ):
        await cluster.start()
        async with open_wire(cluster.nodes[0].url) as a, open_wire(cluster.nodes[1].url) as b:
            started = await a.start("t", "q", "first")
            assert (await b.describe("first"))["run_id"] == started["run_id"]
            assert [found["name"] for found in (await b.get("/namespaces"))["namespaces"]] == ["default"]
        with server.client() as client:
            assert client.hget("hr1:{sys}:cluster", "partitions") == b"4"
