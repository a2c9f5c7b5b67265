"""What the client sends, repeats and raises; the server is a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from headrace import (
    Client,
    ClientError,
    Decision,
    Flow,
    FlowAlreadyStarted,
    FlowNotActive,
    FlowNotFound,
    FlowStillRunning,
    InvalidRequest,
    NotAuthorized,
    RpcContext,
    RpcFailed,
    RpcLockConflict,
    RpcOutcomeUnknown,
    RpcUnavailable,
    ServerUnavailable,
    StepContext,
    UnknownRpc,
    UnsupportedServer,
    complete,
    rpc,
    step,
)

Answer = tuple[int, dict[str, Any]] | Exception
STARTED: Answer = (201, {"flow_id": "f1", "run_id": "r1", "outcome": "started_new"})


class Shop(Flow, name="shop"):
    @step
    async def first(self, ctx: StepContext, item: str) -> Decision:
        return complete()

    @rpc(lock_attributes=["a"])
    async def state(self, ctx: RpcContext) -> str:
        return ""


class Server:
    """Gives its answers in order, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], json=answer[1])

    def body(self, number: int = -1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.requests[number].content)
        return found


@pytest.fixture
def make(autojump_clock: trio.testing.MockClock) -> Callable[..., Client]:
    def made(server: Server, **options: Any) -> Client:
        client = Client("http://one", **options)
        client._requests._http = httpx.AsyncClient(
            transport=httpx.MockTransport(server), headers=client._requests._http.headers
        )
        return client

    return made


async def test_a_start_is_repeated_under_one_request_id(make: Callable[..., Client]) -> None:
    server = Server(
        httpx.ReadError("lost"), httpx.ConnectError("away"), (503, {"reason": "store_unavailable"}), STARTED
    )
    async with make(server, token="t", namespace="n") as client:
        handle = await client.start(Shop, "x")
    assert (handle.flow_id, handle.run_id) == ("f1", "r1")
    bodies = [server.body(number) for number in range(4)]
    assert len({(body["request_id"], body["flow_id"]) for body in bodies}) == 1
    assert bodies[-1]["ignore_already_started"] is True
    assert bodies[-1]["start_step"] == "first"
    assert bodies[-1]["step_options"]["execute"]["timeout_seconds"] == 7200
    headers = server.requests[0].headers
    assert headers["authorization"] == "Bearer t"
    assert headers["x-namespace"] == "n"
    assert headers["x-durable-workflow-control-plane-version"] == "2"


async def test_a_start_under_the_callers_request_id_finds_itself_only_when_repeated(
    make: Callable[..., Client],
) -> None:
    server = Server(httpx.ReadError("lost"), STARTED)
    async with make(server) as client:
        await client.start("shop", start_step="first", request_id="mine")
    assert [server.body(n)["ignore_already_started"] for n in (0, 1)] == [False, True]


@pytest.mark.parametrize("problem", [httpx.ReadError("lost"), httpx.ReadTimeout("late")])
async def test_an_rpc_that_may_have_run_is_not_repeated(
    make: Callable[..., Client], problem: Exception
) -> None:
    server = Server(problem, (200, {"result": 1}))
    async with make(server) as client:
        with pytest.raises(ServerUnavailable) as caught:
            await client.rpc("f1", Shop.state)
    assert caught.value.maybe_executed
    assert len(server.requests) == 1
    assert server.body()["lock_attributes"] == ["a"]


async def test_an_rpc_that_reached_nobody_is_repeated(make: Callable[..., Client]) -> None:
    server = Server(httpx.ConnectError("away"), (200, {"result": {"a": 1}}))
    async with make(server) as client:
        assert await client.rpc("f/1", "look at") == {"a": 1}
    assert server.requests[0].url.raw_path == b"/api/flows/f%2F1/rpc/look%20at"


async def test_repeating_ends(make: Callable[..., Client]) -> None:
    server = Server(httpx.ConnectError("away"))
    async with make(server) as client:
        began = trio.current_time()
        with pytest.raises(ServerUnavailable):
            await client.describe("f1")
        assert 15 < trio.current_time() - began <= 30


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (404, "flow_not_found", FlowNotFound),
        (404, "run_not_found", FlowNotFound),
        (409, "flow_already_started", FlowAlreadyStarted),
        (409, "flow_closed", FlowNotActive),
        (409, "flow_closing", FlowNotActive),
        (503, "rpc_unavailable", RpcUnavailable),
        (404, "unknown_rpc", UnknownRpc),
        (409, "rpc_lock_conflict", RpcLockConflict),
        (422, "rpc_failed", RpcFailed),
        (504, "rpc_timed_out", RpcOutcomeUnknown),
        (401, "unauthorized", NotAuthorized),
        (403, "forbidden", NotAuthorized),
        (422, "validation_failed", InvalidRequest),
        (418, "teapot", ClientError),
        (404, "namespace_not_found", ClientError),
    ],
)
async def test_reasons_become_exceptions(
    make: Callable[..., Client], status: int, reason: str, error: type[ClientError]
) -> None:
    server = Server((status, {"reason": reason, "message": "So it is.", "run_id": "r7"}))
    async with make(server) as client:
        with pytest.raises(error, match=r"So it is\.") as caught:
            await client.rpc("f1", "x")
    assert type(caught.value) is error
    assert (caught.value.reason, caught.value.status) == (reason, status)
    assert len(server.requests) == 1


async def test_r99_a_server_without_flows_is_told_apart(make: Callable[..., Client]) -> None:
    async with make(Server((404, {"message": "Not found."}))) as client:
        with pytest.raises(UnsupportedServer, match="upgrade"):
            await client.start(Shop, "x")


async def test_waiting_polls_until_it_is_over(make: Callable[..., Client]) -> None:
    run = {"flow_id": "f1", "run_id": "r1", "status": "running", "is_terminal": False}
    over = {**run, "status": "completed", "is_terminal": True, "result": [1]}
    server = Server((202, run), (202, run), (200, over))
    async with make(server) as client:
        outcome = await client.wait("f1")
        assert outcome.result(list[int]) == [1]
    assert "run_id" not in server.requests[0].url.params
    assert server.requests[2].url.params["run_id"] == "r1"


async def test_waiting_has_a_deadline(make: Callable[..., Client]) -> None:
    run = {"flow_id": "f1", "run_id": "r1", "status": "running", "is_terminal": False}
    async with make(Server((202, run))) as client:
        with pytest.raises(FlowStillRunning):
            await client.wait("f1", timeout_seconds=0)


async def test_another_node_is_tried(make: Callable[..., Client]) -> None:
    server = Server(httpx.ConnectError("away"), (200, {"flows": []}))
    async with make(server) as client:
        client._requests._urls = ("http://one", "http://two")
        await client.list(status="running")
    assert [request.url.host for request in server.requests] == ["one", "two"]
    assert server.requests[1].url.params["status"] == "running"
