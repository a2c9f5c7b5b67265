"""What a request of a worker costs a node on each of its ports, measured in turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median

import pytest
import trio

from tests.bench.figures import RUNS, say, spread
from tests.bench.measuring import cpu_seconds
from tests.bench.raw import Connection, connect
from tests.bench.test_tasks import drive
from tests.cluster_processes import Cluster

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

CONNECTIONS = 16
REQUESTS = 3_000
SECONDS = 3.0

Load = Callable[[str], Awaitable[int]]


async def _requests(ask: Callable[[Connection], Awaitable[None]], url: str) -> int:
    """Ask ``REQUESTS`` times over ``CONNECTIONS`` connections, one request at a time on each."""
    left = REQUESTS

    async def run() -> None:
        nonlocal left
        async with connect(url) as connection:
            while left > 0:
                left -= 1
                await ask(connection)

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(run)
    return REQUESTS


async def _refused(connection: Connection) -> None:
    status, _ = await connection.exchange("/worker/nothing", {})
    assert status == 404


async def _heartbeat(connection: Connection) -> None:
    await connection.post("/worker/heartbeat", {"worker_id": "w", "task_queue": "q"})


async def _empty_poll(connection: Connection) -> None:
    assert await connection.poll("workflow", "w", "q", seconds=0) is None


async def _workflows(url: str) -> int:
    _, done = await drive(url, SECONDS)
    return done


@pytest.mark.parametrize(
    ("figure", "load"),
    [
        ("request refused at once", partial(_requests, _refused)),
        ("heartbeat", partial(_requests, _heartbeat)),
        ("poll that finds nothing", partial(_requests, _empty_poll)),
        ("one-activity workflow (7 requests)", _workflows),
    ],
)
async def test_cpu_of_a_request_on_both_ports(
    one_node: Cluster, durability: str, figure: str, load: Load
) -> None:
    """Microseconds of node CPU, the ports taking turns so that both see the same machine."""
    (node,) = one_node.nodes
    pid = node.child.process.pid
    async with connect(node.url) as connection:
        await connection.register("w", "q")
    spent: dict[str, list[float]] = {"main port": [], "worker listener": []}
    for _ in range(RUNS + 1):
        for name, url in (("main port", node.url), ("worker listener", node.worker_url)):
            before = cpu_seconds(pid)
            done = await load(url)
            spent[name].append((cpu_seconds(pid) - before) / done * 1e6)
    for name, values in spent.items():
        say(f"{figure} [{durability}]", f"{name}: {spread(values[1:], 'us of CPU')}")
    main, listener = (median(values[1:]) for values in spent.values())
    say("  saved", f"{main - listener:,.0f} us, {1 - listener / main:.0%}")
