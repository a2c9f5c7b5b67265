"""Requests that readers could understand differently, through HAProxy and nginx as we ship them.

Whatever they make of them: a node sees no more requests than the balancer, so that no answer goes to somebody
else's request, and nobody gets a tunnel past the rules.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from nodes.api.messages import Request
from nodes.api.serving import Address
from nodes.cli.local import free_ports
from tests.api.edge import Recorder, connect, exchange, open_for_workers, open_main
from tests.api.smuggling import HIDDEN, ONE_REQUEST, REFUSED
from tests.cluster_processes import HOST, Balancer, NodeProcess
from tests.nginx import nginx
from tests.waiting import PATIENCE, eventually

ANSWER = b"HTTP/1.1 "
SILENCE_SECONDS = 0.1


@asynccontextmanager
async def balanced(kind: str, recorder: Recorder, directory: Path) -> AsyncIterator[Address]:
    """A balancer of a ``kind`` before one node with both ports."""
    async with open_main(recorder) as main, open_for_workers(recorder) as workers:
        nodes = [NodeProcess("node", "", directory, main.port, worker_port=workers.port)]
        with ExitStack() as stack:
            if kind == "nginx":
                url = stack.enter_context(nginx(nodes, directory))
                address = Address(HOST, int(url.rpartition(":")[2]))
            else:
                (port,) = free_ports(1)
                balancer = Balancer(port, nodes, directory)
                stack.callback(balancer.kill)
                balancer.start()
                address = Address(HOST, port)

            async def serves() -> bool:
                with suppress(OSError):
                    return (await canary(address, "/up", b"up")).endswith(b"up")
                return False

            await eventually(serves)
            yield address


async def canary(address: Address, path: str, body: bytes) -> bytes:
    """The answer to somebody else's request."""
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return await exchange(address, head.encode() + body)


async def answered(address: Address, data: bytes, recorder: Recorder, number: int = 0) -> bytes:
    """What comes until the end, or until every request that a node saw has its answer.

    Some proxies wait for more of a request, and nothing is to come then; some see later than the node that a
    request is bad, and refuse it although it was answered.
    """
    received = b""
    async with await connect(address) as stream:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.fail_after(PATIENCE):
            await stream.send_all(data)
            while True:
                with trio.move_on_after(SILENCE_SECONDS) as silence:
                    chunk = await stream.receive_some()
                if silence.cancelled_caught:
                    if received.count(ANSWER) >= len(seen(recorder, number)):
                        break
                elif not chunk:
                    break
                else:
                    received += chunk
    return received


def marked(data: bytes, path: bytes, number: int) -> bytes:
    """Data for ``path`` whose requests, the hidden one too, can be told from those of other numbers."""
    mark = b"/%06d" % number
    assert len(mark) == len(b"/hidden")
    return data.replace(b" /x ", b" %b%b " % (path, mark)).replace(b"/hidden", mark)


def seen(recorder: Recorder, number: int) -> list[Request]:
    """The requests that came to the node, without the balancer's own and what an earlier number sent and
    a balancer passed on late.
    """
    earlier = re.compile(rb"/(?!%06d$)\d{6}$" % number)
    return [
        request
        for request in recorder.requests
        if request.raw_path not in (b"/api/ready", b"/up") and not earlier.search(request.raw_path)
    ]


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
@pytest.mark.parametrize("path", ["/x", "/api/worker/x"])
async def test_balancer_and_node_see_the_same_requests(kind: str, path: str, tmp_path: Path) -> None:
    recorder = Recorder()
    async with balanced(kind, recorder, tmp_path) as address:
        for number, (name, data) in enumerate({**REFUSED, **ONE_REQUEST}.items()):
            recorder.requests.clear()
            answer = await answered(address, marked(data, path.encode(), number), recorder, number)
            requests = seen(recorder, number)
            assert len(requests) <= answer.count(ANSWER), (name, answer)
            if name in ONE_REQUEST and requests:
                assert [request.body for request in requests] == [marked(HIDDEN, b"", number)], name
            mine = name.encode()
            got = await canary(address, path, mine)
            assert got.endswith(b"\r\n\r\n" + mine), (name, got)


@pytest.mark.parametrize("kind", ["haproxy", "nginx"])
@pytest.mark.parametrize("path", ["/x", "/api/streams", "/api/worker/x"])
async def test_nobody_gets_a_tunnel(kind: str, path: str, tmp_path: Path) -> None:
    recorder = Recorder()
    upgrade = (
        f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
    )
    async with balanced(kind, recorder, tmp_path) as address:
        answer = await answered(address, upgrade.encode(), recorder)
    assert b" 101 " not in answer
    assert b"upgrade: h2c" not in answer.lower()
