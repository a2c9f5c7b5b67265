"""Values that some readers of JSON cannot take are refused at the edge: frames on both carriers, and HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.cluster_processes import Cluster
from tests.e2e.streams.test_streams import ONCE, client, start
from tests.stream_client import CARRIERS, StreamClient, connect

NUMBERS = {"exponent": b"1e400", "digits": b"9" * 5_000, "negative": b"[-" + b"9" * 30 + b"]"}
NO_JSON = {"nan": b"NaN", "infinity": b"-Infinity", "surrogate": b'"\\ud800"', "open": b"["}
DEEP = b"[" * 3_000 + b"]" * 3_000


@pytest.fixture
async def http(cluster: Cluster) -> AsyncIterator[httpx.AsyncClient]:
    async with client(cluster) as opened:
        yield opened


async def send_output(worker: StreamClient, task: dict[str, object], value: bytes) -> str:
    """Complete a step with ``value`` as the flow's result, byte by byte as it is."""
    attempt_id = task["task"]["attempt_id"]  # type: ignore[index]
    head = f'[{{"type":"output","slot":{task["slot"]},"attempt_id":"{attempt_id}","output":'
    await worker.carrier.send(head.encode() + b'{"decision":{"complete":' + value + b"}}}]")
    return str(attempt_id)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("value", NUMBERS.values(), ids=NUMBERS)
async def test_outputs_with_numbers_nobody_can_read_fail_their_attempt(
    cluster: Cluster, http: httpx.AsyncClient, queue: str, carrier: str, value: bytes
) -> None:
    async with connect(cluster.url, carrier) as worker:
        await worker.hello(f"w-{queue}", queue)
        await worker.open(1)
        flow_id = await start(http, queue, step_options=ONCE)
        attempt_id = await send_output(worker, await worker.next("task"), value)
        confirmed = await worker.next("confirmed", attempt_id=attempt_id)
        assert (confirmed["accepted"], confirmed["reason"]) == (False, "invalid_output")
        closed = (await http.get(f"/api/flows/{flow_id}/wait")).json()
        assert (closed["status"], closed["failure"]["type"]) == ("failed", "InvalidOutput")
        assert "number" in closed["failure"]["message"] or "64 bits" in closed["failure"]["message"]
        # The slot serves on.
        await start(http, queue)
        await worker.next("task")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("value", [*NO_JSON.values(), DEEP], ids=[*NO_JSON, "deep"])
async def test_messages_that_are_no_json_end_their_connection_only(
    cluster: Cluster, http: httpx.AsyncClient, queue: str, carrier: str, value: bytes
) -> None:
    options = {"execute": {"retry": {"initial_interval_seconds": 0.05}}}
    async with connect(cluster.url, carrier) as other:
        async with connect(cluster.url, carrier) as worker:
            await worker.hello(f"w-{queue}", queue)
            await worker.open(1)
            await start(http, queue, step_options=options)
            await send_output(worker, await worker.next("task"), value)
            error = await worker.next("error")
            assert error["reason"] == ("message_too_deep" if value == DEEP else "invalid_json")
            await worker.wait_ended()
        await other.hello(f"o-{queue}", queue)
        await other.open(1)
        assert (await other.next("task"))["task"]["attempt"] == 2


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_checkpoint_nobody_can_read_is_not_kept(
    cluster: Cluster, http: httpx.AsyncClient, queue: str, carrier: str
) -> None:
    async with connect(cluster.url, carrier) as worker:
        await worker.hello(f"w-{queue}", queue)
        await worker.open(1)
        await start(http, queue)
        task = await worker.next("task")
        attempt_id = task["task"]["attempt_id"]
        beat = f'[{{"type":"heartbeat","slot":1,"attempt_id":"{attempt_id}","checkpoint":1e400}}]'
        await worker.carrier.send(beat.encode())
        error = await worker.next("error")
        assert (error["slot"], error["reason"]) == (1, "invalid_payload")
        assert (await worker.complete(task, {"decision": {"complete": None}}))["accepted"]


@pytest.mark.parametrize(
    "value", [*NUMBERS.values(), *NO_JSON.values(), DEEP], ids=[*NUMBERS, *NO_JSON, "deep"]
)
async def test_inputs_over_http_are_refused(http: httpx.AsyncClient, queue: str, value: bytes) -> None:
    body = f'{{"flow_type":"{queue}","start_step":"a","flow_id":"{queue}","input":'.encode() + value + b"}"
    for path in ("", f"/{queue}/channels/c", f"/{queue}/rpc/look"):
        answer = await http.post(
            f"/api/flows{path}", content=body, headers={"content-type": "application/json"}
        )
        assert (answer.status_code, answer.json()["reason"]) == (400, "malformed_json"), answer.text
    assert (await http.get(f"/api/flows/{queue}")).status_code == 404
