"""What a connection leaves behind when it has ended: nothing that waits for the garbage collection."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator

import h2.config
import h2.connection
import pytest
import trio
from hypercorn.protocol import ProtocolWrapper

from nodes.api.connections import PatientServer
from nodes.http1.connection import Connection
from nodes.http1.parser import Parser
from tests.api.edge import Recorder, connect
from tests.api.test_connections import REQUEST, serving
from tests.waiting import PATIENCE, eventually

CONNECTIONS = 20


@pytest.fixture
async def uncollected() -> AsyncIterator[None]:
    """Only what nobody refers to any more is freed meanwhile."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _left() -> int:
    return sum(
        isinstance(one, PatientServer | ProtocolWrapper | Connection | Parser) for one in gc.get_objects()
    )


async def _answer(stream: trio.SocketStream) -> None:
    """Read until the body of an answer is here, whatever frames it."""
    received = b""
    with trio.fail_after(PATIENCE):
        while b"empty" not in received:
            received += await stream.receive_some()


def _preface() -> bytes:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    headers = {":method": "GET", ":path": "/x", ":scheme": "http", ":authority": "h"}
    client.send_headers(1, list(headers.items()), end_stream=True)
    return client.data_to_send()


@pytest.mark.parametrize("request_bytes", [REQUEST, _preface()], ids=["HTTP/1.1", "HTTP/2"])
async def test_ended_connections_are_freed_without_a_collection(
    uncollected: None, request_bytes: bytes
) -> None:
    """With long-lived connections those collections are far apart, and a node would grow until then."""
    async with serving(Recorder()) as (address, _):
        for _ in range(CONNECTIONS):
            async with await connect(address) as stream:
                await stream.send_all(request_bytes)
                await _answer(stream)
        await eventually(lambda: _left() == 0)


async def test_connections_without_a_request_leave_nothing_either(uncollected: None) -> None:
    async with serving(Recorder()) as (address, _):
        for _ in range(CONNECTIONS):
            await (await connect(address)).aclose()
        await eventually(lambda: _left() == 0)
