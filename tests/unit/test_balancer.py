"""The demo's balancer stays with a node until that node fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from nodes.cli.demo.balancer import Backend, Balancer
from nodes.cli.local import HOST
from tests.ports import free_ports
from tests.waiting import PATIENCE


@asynccontextmanager
async def node(name: str) -> AsyncIterator[Backend]:
    """A server that greets with its name and sends everything back."""

    async def talk(stream: trio.SocketStream) -> None:
        await stream.send_all(name.encode())
        async for chunk in stream:
            await stream.send_all(chunk)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield Backend(name, HOST, listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_bytes_go_both_ways(nursery: trio.Nursery) -> None:
    async with node("a") as a:
        port = await nursery.start(Balancer([a], lambda _old, _new: None).serve, HOST)
        async with await trio.open_tcp_stream(HOST, port) as stream:
            assert await stream.receive_some() == b"a"
            await stream.send_all(b"hello")
            assert await stream.receive_some() == b"hello"
    nursery.cancel_scope.cancel()


async def test_moves_on_when_a_node_is_gone_and_stays_there(nursery: trio.Nursery) -> None:
    moves: list[tuple[str, str]] = []
    gone = Backend("gone", HOST, free_ports(1)[0])
    async with node("a") as a:
        balancer = Balancer([gone, a], lambda old, new: moves.append((old.name, new.name)))
        port = await nursery.start(balancer.serve, HOST)
        for _ in range(3):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                assert await stream.receive_some() == b"a"
    assert moves == [("gone", "a")]
    assert balancer.current.name == "a"
    nursery.cancel_scope.cancel()


async def test_the_client_is_cut_off_when_its_node_goes(nursery: trio.Nursery) -> None:
    async with node("a") as a:
        port = await nursery.start(Balancer([a], lambda _old, _new: None).serve, HOST)
        stream = await trio.open_tcp_stream(HOST, port)
        assert await stream.receive_some() == b"a"
    with trio.fail_after(PATIENCE):
        assert await stream.receive_some() == b""
    await stream.aclose()
    nursery.cancel_scope.cancel()


async def test_without_any_node_the_client_is_turned_away(nursery: trio.Nursery) -> None:
    gone = [Backend(f"gone-{port}", HOST, port) for port in free_ports(2)]
    port = await nursery.start(Balancer(gone, lambda _old, _new: None).serve, HOST)
    async with await trio.open_tcp_stream(HOST, port) as stream:
        assert await stream.receive_some() == b""
    nursery.cancel_scope.cancel()
