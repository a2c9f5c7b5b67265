"""The rights that docs/operations.md gives to the nodes' Redis user are enough, and reach no further."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trio

from tests.cluster_processes import TOP, Cluster, environment, kill, make_cluster, worker_ready
from tests.sdk_client import execute
from tests.servers import KINDS, Server, run_server

DOCS = TOP / "docs/operations.md"
PASSWORD = "of the nodes alone"


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server with the documented user; its own default user is the test's."""
    directory = tmp_path / "store"
    directory.mkdir()
    with run_server(request.param, directory) as server, server.client() as client:
        (line,) = re.findall(r"^ACL SETUSER .*$", DOCS.read_text(), re.MULTILINE)
        rule = [
            word.replace("PASSWORD", PASSWORD)
            for word in shlex.split(line.replace(">", "'>'").replace("&", "'&'"))
        ]
        client.execute_command(*rule)
        yield server


async def test_the_documented_rights_are_enough_for_everything(server: Server, tmp_path: Path) -> None:
    password = PASSWORD.replace(" ", "%20")
    url = f"redis://headrace:{password}@127.0.0.1:{server.port}/0"
    with make_cluster(2, url, tmp_path / "nodes") as cluster:
        await cluster.start()
        await _run_a_bit_of_all(cluster, tmp_path)
        with server.client() as client:
            refused = client.acl_log()
        logs = "".join(node.log for node in cluster.nodes)
    assert refused == []
    assert "does not let us" not in logs
    assert PASSWORD not in logs
    assert password not in logs


async def _run_a_bit_of_all(cluster: Cluster, tmp_path: Path) -> None:
    one, two = cluster.nodes
    worker = cluster.start_worker("jobs", url=two.url)
    try:
        await worker_ready(worker)
        assert await execute(one.url, "steps", "jobs", 3) == [0, 1, 2]
        assert await execute(one.url, "timer", "jobs", 1) == "rang"
    finally:
        kill(worker)
    flow = await trio.run_process(
        [sys.executable, str(TOP / "examples/order.py")],
        env=environment(HEADRACE_URL=two.url),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    assert flow.returncode == 0, flow.stderr
    # A node that leaves hands its partitions over; the other one keeps house for all of them.
    assert await one.stop() == 0


def test_the_user_reaches_no_other_keys_and_no_administration(server: Server) -> None:
    with redis.Redis(port=server.port, username="headrace", password=PASSWORD) as client:
        for words in (
            ("GET", "other:key"),
            ("SET", "hr2:key", "1"),
            ("PUBLISH", "other", "1"),
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("CONFIG", "SET", "maxmemory", "1"),
            ("SHUTDOWN",),
            ("ACL", "LIST"),
            ("EVAL", "return redis.call('GET', 'other:key')", "0"),
        ):
            with pytest.raises(
                (redis.exceptions.NoPermissionError, redis.ResponseError), match=r"(?i)perm|acl|access"
            ):
                client.execute_command(*words)
