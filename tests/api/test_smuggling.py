"""Neither port takes one request for two (OWASP, CWE-444)."""

from __future__ import annotations

import pytest

from tests.api.edge import (
    Recorder,
    connect,
    exchange,
    open_for_workers,
    open_main,
    read_all,
    read_until,
)
from tests.api.smuggling import HIDDEN, ONE_REQUEST, REFUSED

REFUSALS = (b"400", b"413", b"417", b"501", b"505")
PORTS = {"main": open_main, "workers": open_for_workers}
UNDERSTOOD = {"version-1.0", "http2-preface", "upgrade", "trailer"}
"""What is for other clients than workers; see test_upgrades.py."""
CASES = [(port, name) for port in PORTS for name in REFUSED if port == "workers" or name not in UNDERSTOOD]


@pytest.mark.parametrize(("port", "name"), CASES)
async def test_what_two_could_read_differently_is_refused(recorder: Recorder, port: str, name: str) -> None:
    """One answer, nothing reached the pipeline, and the connection has ended."""
    async with PORTS[port](recorder) as address:
        answer = await exchange(address, REFUSED[name])
    assert answer[9:12] in REFUSALS, answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in answer
    assert recorder.requests == []


@pytest.mark.parametrize(("port", "name"), CASES)
async def test_byte_by_byte_is_no_different(recorder: Recorder, port: str, name: str) -> None:
    async with PORTS[port](recorder) as address, await connect(address) as stream:
        for number in range(len(REFUSED[name]) - len(HIDDEN)):
            await stream.send_all(REFUSED[name][number : number + 1])
        await stream.send_all(HIDDEN)
        answer = await read_all(stream)
    assert answer[9:12] in REFUSALS, answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert recorder.requests == []


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("name", ONE_REQUEST)
async def test_one_request_is_one_request(recorder: Recorder, port: str, name: str) -> None:
    async with PORTS[port](recorder) as address, await connect(address) as stream:
        await stream.send_all(ONE_REQUEST[name])
        answer = await read_until(stream, HIDDEN)
    assert answer.startswith(b"HTTP/1.1 200")
    assert [(request.raw_path, request.body) for request in recorder.requests] == [(b"/x", HIDDEN)]
