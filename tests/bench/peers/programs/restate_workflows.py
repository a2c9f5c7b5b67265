"""Restate: ``app`` is the service that hypercorn runs and the server calls; as a program it drives workflows.

``drive ACTIVITIES AT_ONCE COUNT``: workflows of so many steps in a closed loop; see ``noting.closed_loop``.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from urllib.parse import urlsplit
from uuid import uuid4

import restate
from noting import closed_loop

service = restate.Workflow("work")


async def echo(value: str) -> str:
    return value


@service.main()
async def run(context: restate.WorkflowContext, activities: int) -> str:
    value = "in"
    for number in range(activities):
        value = await context.run_typed(f"echo {number}", partial(echo, value))
    return value


app = restate.app([service])


class Connections:
    """Kept-alive connections to the server's ingress, as many as are asked for at once."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = parts.hostname, parts.port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, path: str, body: str) -> None:
        """POST and wait for the answer. Raises RuntimeError when it is not 200."""
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(*self._address)
        head = f"POST {path} HTTP/1.1\r\nHost: ingress\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
        text = await reader.readexactly(length)
        if not answer.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{answer!r} {text!r}")
        self._free.append((reader, writer))


async def drive(activities: int, at_once: int, count: int) -> None:
    connections = Connections(os.environ["BENCH_URL"])
    await closed_loop(lambda: connections.call(f"/work/{uuid4().hex}/run", str(activities)), at_once, count)


if __name__ == "__main__":
    asyncio.run(drive(*map(int, sys.argv[2:5])))
