"""Sentinel, Cluster, Unix sockets, passwords and replicas, each on real servers."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import redis.sentinel
import trio

from cluster.errors import ConditionFailed, NotDurable, StoreUnavailable
from cluster.store.store import open_store
from cluster.store.topology import Node, open_topology
from cluster.store.transaction import Transaction
from tests.ports import free_port
from tests.scripted import scripted_redis
from tests.servers import KINDS, Sentinel, Server, run_cluster, run_server
from tests.waiting import PATIENCE, eventually


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with run_cluster(request.param, tmp_path) as server:
        yield server


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, in sync."""
    for name in ("primary", "replica"):
        (tmp_path / name).mkdir()
    with (
        run_server(request.param, tmp_path / "primary", "--repl-diskless-sync-delay", "0") as primary,
        run_server(
            request.param, tmp_path / "replica", "--replicaof", f"127.0.0.1 {primary.port}"
        ) as replica,
    ):
        with primary.client() as client:
            client.execute_command("SET", "probe", 1)
            assert client.wait(1, 10_000) == 1
        yield primary, replica


async def test_cluster_routes_by_slot(cluster: Server) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster.port}"
    async with open_store(url, partitions=16) as store:
        assert store.clustered
        assert store.generation.count(":") == 1
        async with trio.open_nursery() as nursery:
            for partition in range(16):
                for _ in range(10):
                    nursery.start_soon(store.call, "INCR", store.keys.touch(partition))
        for partition in range(16):
            assert await store.call("GET", store.keys.touch(partition)) == b"10"
        await store.subscribe("c")
        assert await store.call("PUBLISH", "c", "x") == 1


async def test_commit_runs_on_a_cluster(cluster: Server) -> None:
    async with open_store(f"redis+cluster://127.0.0.1:{cluster.port}") as store:
        for partition in range(4):
            run = store.keys.run(partition, "run")
            tx = Transaction(partition, ring=run, request_id="rid")
            tx.hset(run, {"version": 1})
            assert await store.commit(tx) is True
            assert await store.commit(tx) is False
            failing = Transaction(partition)
            failing.expect_equal(run, "version", 2)
            with pytest.raises(ConditionFailed):
                await store.commit(failing)


@pytest.fixture
async def two_nodes(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """A Cluster of two primaries with half of the slots each."""
    for name in "ab":
        (tmp_path / name).mkdir()
    options = ("--cluster-enabled", "yes")
    with (
        run_server("valkey", tmp_path / "a", *options) as a,
        run_server("valkey", tmp_path / "b", *options) as b,
        a.client() as first,
        b.client() as second,
    ):
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        second.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        second.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", b.port)

        def formed() -> bool:
            for client in (first, second):
                state = str(client.execute_command("CLUSTER", "INFO"))
                if "cluster_state:ok" not in state or len(client.execute_command("CLUSTER", "SLOTS")) < 2:
                    return False
            return True

        await eventually(formed)
        yield a, b


async def test_a_moved_slot_is_followed(two_nodes: tuple[Server, Server]) -> None:
    a, b = two_nodes
    async with open_store(f"redis+cluster://127.0.0.1:{a.port}") as store:
        assert len(store.generation.split(",")) == 2
        key = store.keys.touch(0)
        await store.call("INCR", key)
        with a.client() as first, b.client() as second:
            slot = first.execute_command("CLUSTER", "KEYSLOT", key)
            first_id, second_id = (bytes(c.execute_command("CLUSTER", "MYID")) for c in (first, second))

            # While the slot migrates, a missing key answers ASK.
            second.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", first_id)
            first.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", second_id)
            first.execute_command("MIGRATE", "127.0.0.1", b.port, key, 0, 5000)
            assert await store.call("INCR", key) == 2

            # Afterwards it answers MOVED.
            for client in (second, first):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", second_id)
            assert await store.call("INCR", key) == 3
            assert second.execute_command("GET", key) == b"3"
        tx = Transaction(0)
        tx.redis("INCR", key)
        assert await store.commit(tx)


async def test_wait_confirms_writes(pair: tuple[Server, Server], prefix: str) -> None:
    primary, replica = pair
    async with open_store(primary.url, prefix=prefix, durability="replica:1") as store:
        await store.call("SET", f"{prefix}:a", 1)
        with replica.client() as client:
            assert client.get(f"{prefix}:a") == b"1"
        tx = Transaction(0)
        tx.redis("SET", store.keys.touch(0), 7)
        assert await store.commit(tx)
        with replica.client() as client:
            assert client.get(store.keys.touch(0)) == b"7"


async def test_an_unconfirmed_write_is_no_success(pair: tuple[Server, Server], prefix: str) -> None:
    primary, replica = pair
    async with open_store(primary.url, prefix=prefix, durability="replica:1") as store:
        await store.call("SET", f"{prefix}:a", 1)
        replica.kill()
        with pytest.raises(NotDurable, match="0 of 1"):
            await store.call("SET", f"{prefix}:a", 2)
        assert await store.call("GET", f"{prefix}:a") == b"2"
        tx = Transaction(0)
        tx.redis("SET", store.keys.touch(0), 7)
        with pytest.raises(NotDurable):
            await store.commit(tx)
        assert store.statistics().pipe.not_durable == 2


async def test_sentinel_fail_over(pair: tuple[Server, Server], tmp_path: Path, prefix: str) -> None:
    primary, replica = pair
    (tmp_path / "sentinel").mkdir()
    (tmp_path / "sentinel" / "sentinel.conf").write_text(
        f"sentinel monitor mymaster 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds mymaster 300\n"
        "sentinel failover-timeout mymaster 2000\n"
    )
    sentinel = Sentinel(primary.kind, tmp_path / "sentinel", free_port())
    sentinel.start()
    try:
        with sentinel.client() as client:
            await eventually(lambda: client.sentinel_slaves("mymaster") != [])
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster/0"
        async with open_store(url, call_timeout=20) as store:
            reconnected = trio.Event()
            store.on_reconnect(reconnected.set)
            await store.subscribe(f"{prefix}:c")
            await store.call("SET", f"{prefix}:a", 1)
            first = store.generation
            with primary.client() as client:
                assert client.wait(0, 100) >= 0
            primary.kill()
            with trio.fail_after(PATIENCE):
                assert await store.call("INCR", f"{prefix}:a", idempotent=True) >= 1
                await reconnected.wait()
            assert store.generation != first
            with replica.client() as client:
                assert client.exists(f"{prefix}:a")
    finally:
        sentinel.kill()


def told(host: str, port: int, flags: str, *address: str) -> tuple[str, ...]:
    """What Sentinel answers to MASTERS, with one master, and to GET-MASTER-ADDR-BY-NAME, as lines."""
    fields = {"name": "mymaster", "ip": host, "port": str(port), "flags": flags, "num-other-sentinels": "0"}
    flat = [word for pair in fields.items() for word in pair]
    return (f"*1\r\n{_array(flat)}", _array(address) if address else "*-1")


def _array(words: Sequence[str]) -> str:
    return "\r\n".join([f"*{len(words)}", *(f"${len(word)}\r\n{word}" for word in words)])


@pytest.mark.parametrize(
    ("flags", "named", "found"),
    [
        ("master", ("old", "1"), Node("old", 1)),
        # The old primary is back before the last replica follows the new one.
        ("master,failover_in_progress", ("new", "2"), Node("new", 2)),
        ("s_down,o_down,master,failover_in_progress", ("new", "2"), Node("new", 2)),
        # It is back before a replica was promoted.
        ("master,failover_in_progress", ("old", "1"), None),
        ("s_down,master", ("old", "1"), None),
        ("master", (), None),
    ],
)
async def test_sentinel_names_the_promoted_primary(
    flags: str, named: tuple[str, ...], found: Node | None
) -> None:
    async with scripted_redis() as sentinel:
        topology = open_topology(f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster/0", reply_timeout=5)
        sentinel.script("SENTINEL", *told("old", 1, flags, *named))
        if found is not None:
            assert await trio.to_thread.run_sync(topology.node, 0) == found
        else:
            with pytest.raises(redis.sentinel.MasterNotFoundError):
                await trio.to_thread.run_sync(topology.node, 0)


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s%41 x.sock"
    with run_server("valkey", tmp_path, "--unixsocket", str(path)):
        url = "unix://" + str(path).replace("%", "%25").replace(" ", "%20")
        async with open_store(url) as store:
            assert await store.call("PING") == b"PONG"


async def test_passwords_are_used_and_never_shown(tmp_path: Path) -> None:
    secret = "s3cr3t"
    with run_server("valkey", tmp_path, password=secret) as server:
        async with open_store(server.url) as store:
            assert await store.call("PING") == b"PONG"
        wrong = server.url.replace(secret, "wr0ng")
        with pytest.raises(StoreUnavailable) as caught:
            async with open_store(wrong, call_timeout=0.2):
                pass
        assert "WRONGPASS" in str(caught.value) or "invalid" in str(caught.value)
        assert "wr0ng" not in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, key beside it."""
    directory = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += " -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return directory / "cert.pem"


async def test_tls(certificate: Path, tmp_path: Path, prefix: str) -> None:
    port = free_port()
    key = certificate.with_name("key.pem")
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    tls += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with run_server("redis", tmp_path, *tls):
        async with open_store(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}") as store:
            received, done = [], trio.Event()

            def on_message(channel: str, message: bytes) -> None:
                received.append(int(message))
                if len(received) == 500:
                    done.set()

            store.on_message(prefix, on_message)
            await store.subscribe(f"{prefix}:c")
            async with trio.open_nursery() as nursery:
                for _ in range(500):
                    nursery.start_soon(store.call, "INCR", f"{prefix}:n")
            big = "x" * 300_000
            await store.call("SET", f"{prefix}:big", big)
            assert await store.call("GET", f"{prefix}:big") == big.encode()
            await store.call(
                "EVAL", "for i = 1, 500 do redis.call('PUBLISH', ARGV[1], i) end", 0, f"{prefix}:c"
            )
            with trio.fail_after(PATIENCE):
                await done.wait()
            assert received == list(range(1, 501))
        with pytest.raises(StoreUnavailable, match="certificate"):
            async with open_store(f"rediss://127.0.0.1:{port}/0", call_timeout=0.2):
                pass
