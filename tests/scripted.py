"""A server that speaks Redis' protocol but answers what a test tells it to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import hiredis
import trio

INFO = {
    "run_id": "run",
    "master_replid": "replid",
    "role": "master",
    "redis_version": "7.0.0",
    "aof_enabled": "1",
}


@dataclass
class ScriptedRedis:
    """Counts commands by name; ``replies[name]`` holds raw replies to be given first, in order.

    Without a scripted reply INFO tells ``info``, CONFIG knows nothing, everything else is OK.
    """

    info: dict[str, str] = field(default_factory=lambda: dict(INFO))
    replies: dict[str, deque[bytes]] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    port: int = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def script(self, name: str, *lines: str) -> None:
        """Answer the next commands ``name`` with these RESP lines; an error is not an execution."""
        self.replies.setdefault(name, deque()).extend(f"{line}\r\n".encode() for line in lines)

    def _answer(self, name: str) -> bytes:
        if self.replies.get(name):
            reply = self.replies[name].popleft()
            self.executed[name] += not reply.startswith(b"-")
            return reply
        self.executed[name] += 1
        if name == "INFO":
            text = "".join(f"{key}:{value}\r\n" for key, value in self.info.items())
            return f"${len(text)}\r\n{text}\r\n".encode()
        return b"*0\r\n" if name == "CONFIG" else b"+OK\r\n"

    async def _serve(self, stream: trio.SocketStream) -> None:
        reader = hiredis.Reader()
        with suppress(trio.BrokenResourceError):
            async for chunk in stream:
                reader.feed(bytes(chunk))
                answers = []
                while (command := reader.gets()) is not False:
                    answers.append(self._answer(command[0].decode().upper()))
                await stream.send_all(b"".join(answers))


@asynccontextmanager
async def scripted_redis() -> AsyncIterator[ScriptedRedis]:
    """A scripted server on a free loopback port."""
    server = ScriptedRedis()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, server._serve, 0, host="127.0.0.1"))
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()
