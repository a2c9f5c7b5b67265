"""Neither port takes one request for two (OWASP, CWE-444)."""

from __future__ import annotations

from functools import partial

import pytest

from tests.api.edge import (
    Recorder,
    Serving,
    connect,
    exchange,
    open_for_workers,
    open_main,
    read_all,
    read_until,
)
from tests.api.smuggling import HIDDEN, ONE_REQUEST, REFUSED

AMBIGUOUS = [
    name
    for name in REFUSED
    if name.startswith(("length", "chunk", "coding", "two-", "a-list", "folded-line", "space", "nul"))
]
UNDERSTOOD = {
    "two-equal-lengths",
    "a-list-of-lengths",
    "folded-line",
    "coding-folded",
    "coding-after-bare-lf",
    "length-in-a-trailer",
}
"""What h11 reads as RFC 9112 allows a server to; there nothing is hidden then, but a second request."""


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(params=[open_main, open_for_workers], ids=["main", "workers"])
def serving(request: pytest.FixtureRequest, recorder: Recorder) -> Serving:
    return partial(request.param, recorder)


@pytest.fixture
def for_workers(recorder: Recorder) -> Serving:
    return partial(open_for_workers, recorder)


@pytest.mark.parametrize("name", REFUSED)
async def test_the_worker_listener_refuses(for_workers: Serving, recorder: Recorder, name: str) -> None:
    """One answer, nothing reached the pipeline, and the connection has ended."""
    async with for_workers() as address:
        answer = await exchange(address, REFUSED[name])
    assert answer[9:12] in (b"400", b"413", b"417", b"505"), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in answer
    assert recorder.requests == []


@pytest.mark.parametrize("name", REFUSED)
async def test_byte_by_byte_is_no_different(for_workers: Serving, recorder: Recorder, name: str) -> None:
    async with for_workers() as address, await connect(address) as stream:
        for number in range(len(REFUSED[name]) - len(HIDDEN)):
            await stream.send_all(REFUSED[name][number : number + 1])
        await stream.send_all(HIDDEN)
        answer = await read_all(stream)
    assert answer[9:12] in (b"400", b"413", b"417", b"505"), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert recorder.requests == []


@pytest.mark.parametrize("name", sorted(set(AMBIGUOUS) - UNDERSTOOD))
async def test_no_port_sees_what_is_hidden(serving: Serving, recorder: Recorder, name: str) -> None:
    async with serving() as address, await connect(address) as stream:
        await stream.send_all(REFUSED[name])
        await stream.send_eof()
        await read_all(stream)
    assert "/hidden" not in recorder.paths


@pytest.mark.parametrize("name", ONE_REQUEST)
async def test_one_request_is_one_request(serving: Serving, recorder: Recorder, name: str) -> None:
    async with serving() as address, await connect(address) as stream:
        await stream.send_all(ONE_REQUEST[name])
        answer = await read_until(stream, HIDDEN)
    assert answer.startswith(b"HTTP/1.1 200")
    assert [(request.raw_path, request.body) for request in recorder.requests] == [(b"/x", HIDDEN)]
