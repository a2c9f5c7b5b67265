"""Whoever sends for a connection is woken when there is something to send, and only then."""

from __future__ import annotations

from typing import Any

from nodes.streams.codec import ProtocolError
from nodes.streams.connection import Connection


def unknown_worker() -> Connection:
    """A connection whose worker has not said hello, so that nothing of it concerns the hub."""
    hub: Any = None
    return Connection(hub, "default", "node-1~1/1", 1000)


async def test_a_message_that_asks_for_no_answer_wakes_nobody() -> None:
    connection = unknown_worker()
    connection.received(b'[{"type": "pong"}]')
    assert not connection.output.is_set()


async def test_a_frame_to_send_wakes_the_sender() -> None:
    connection = unknown_worker()
    connection.ping("n")
    assert connection.output.is_set()


async def test_the_end_that_a_worker_is_told_of_wakes_the_sender() -> None:
    connection = unknown_worker()
    connection.fail(ProtocolError("hello_timeout", "No hello came in time."))
    assert connection.output.is_set()
    assert connection.finished


async def test_a_message_that_breaks_the_protocol_wakes_the_sender() -> None:
    connection = unknown_worker()
    connection.received(b"[1]")
    assert connection.output.is_set()
