"""What the worker listener serves, and how it says what it does not."""

from __future__ import annotations

import re
from typing import cast

import pytest

from nodes.api.pipeline import Pipeline
from nodes.api.ports import NodePort
from nodes.api.routes import Plane
from nodes.api.table import ROUTES
from tests.unit.api.fakes import CONTROL, WORKER, Client

SERVED = [route for route in ROUTES if route.for_workers]
ELSEWHERE = [route for route in ROUTES if not route.for_workers]


@pytest.fixture
def worker_port(client: Client) -> Client:
    """Requests to the worker listener of a node."""
    client.pipeline = Pipeline(cast(NodePort, client.node), client.metrics, for_workers=True)
    return client


def test_workers_find_all_of_their_routes_there() -> None:
    others = {f"{route.method} {route.template}" for route in SERVED if route.plane is not Plane.WORKER}
    starts = {"POST /api/workflows", "POST /api/flows"}
    asked_first = {"GET /api/cluster/info", "GET /api/health", "GET /api/live", "GET /api/ready"}
    assert others == starts | asked_first
    assert all(route.for_workers for route in ROUTES if route.plane is Plane.WORKER)


@pytest.mark.parametrize("route", ELSEWHERE, ids=lambda route: f"{route.method} {route.template}")
async def test_everything_else_is_refused_with_the_other_port(worker_port: Client, route: object) -> None:
    path = re.sub(r"\{[a-z_]+\}", "x", route.template)  # type: ignore[attr-defined]
    answer = await worker_port.control(route.method, path)  # type: ignore[attr-defined]
    assert (answer.status, answer.body["reason"], answer.body["port"]) == (404, "not_for_workers", 8080)
    assert "HEADRACE_LISTEN" in answer.body["message"]


async def test_answers_are_the_same_on_both_ports(client: Client) -> None:
    other = Pipeline(cast(NodePort, client.node), client.metrics, for_workers=True)
    main = client.pipeline
    for method, path, headers, body in (
        ("POST", "/api/worker/workflow-tasks/poll", WORKER, {"worker_id": "w"}),
        ("POST", "/api/worker/workflow-tasks/poll", {}, {}),
        ("GET", "/api/worker/workflow-tasks/poll", WORKER, None),
        ("POST", "/api/worker/nothing", WORKER, {}),
        ("POST", "/api/worker/heartbeat", WORKER | {"x-namespace": "unknown"}, {}),
        ("POST", "/api/workflows", CONTROL, {"workflow_type": 1}),
        ("DELETE", "/api/workflows", CONTROL, None),
        ("GET", "/nothing", {}, None),
        ("GET", "/%zz", {}, None),
    ):
        client.pipeline = main
        one = await client.send(method, path, body, headers=headers)
        client.pipeline = other
        two = await client.send(method, path, body, headers=headers)
        assert (one.status, one.headers, one.body) == (two.status, two.headers, two.body)
        assert one.status >= 400
