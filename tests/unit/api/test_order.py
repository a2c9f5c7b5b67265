"""The order of checks and the envelope of each plane (1.1 to 1.4)."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from cluster.errors import (
    NotDurable,
    OutcomeUnknown,
    Refused,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from nodes.api.envelopes import OPERATIONS, PROJECTED
from nodes.api.messages import Request
from nodes.api.routes import Plane, Route, Router
from nodes.api.table import ROUTES
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import CONTROL, WORKER, Answer, Client

VERSIONED = [route for route in ROUTES if route.versioned]
SCOPED = [route for route in ROUTES if route.scoped]
FORBIDDEN_REASONS = {
    "backend_unavailable",
    "storage_pressure",
    "storage_admission_unavailable",
    "long_poll_capacity_exhausted",
    "backend_lock_pressure",
}


def _path(route: Route) -> str:
    return re.sub(r"\{[a-z_]+\}", "x", route.template)


def _name(route: Route) -> str:
    return f"{route.method} {route.template}"


def _check_envelope(answer: Answer, route: Route) -> None:
    """Exactly one version header, and the members of the route's plane only."""
    control = "x-durable-workflow-control-plane-version" in answer.headers
    worker = "x-durable-workflow-protocol-version" in answer.headers
    assert (control, worker) == (route.plane is Plane.CONTROL, route.plane is Plane.WORKER)
    assert ("protocol_version" in answer.body) == worker
    assert ("server_capabilities" in answer.body) == worker
    assert ("control_plane" in answer.body) == (route.operation is not None)
    if route.operation is not None:
        described = answer.body["control_plane"]
        assert described["operation"] == route.operation
        assert described["schema"] == "durable-workflow.v2.control-plane-response"
        assert described["workflow_id"] == ("x" if "{workflow_id}" in route.template else None)
        for name in PROJECTED:
            assert described.get(name) == answer.body.get(name)


async def _send(client: Client, route: Route, headers: dict[str, str]) -> Answer:
    body: object = {} if route.method in ("POST", "PUT") else None
    return await client.send(route.method, _path(route), body, headers=headers)


@pytest.mark.parametrize("route", VERSIONED, ids=_name)
async def test_authentication_comes_before_version_and_namespace(
    open_client: OpenClient, route: Route
) -> None:
    client = await open_client(auth_driver="token", auth_token="secret")

    answer = await _send(client, route, {"x-namespace": "unknown"})

    assert (answer.status, answer.body["reason"]) == (401, "unauthorized")
    assert answer.body["message"] == "Invalid or missing authentication token."
    _check_envelope(answer, route)


@pytest.mark.parametrize("namespace", ["default", "unknown"])
@pytest.mark.parametrize("route", SCOPED, ids=_name)
async def test_a_wrong_role_learns_nothing_about_namespaces(
    open_client: OpenClient, route: Route, namespace: str
) -> None:
    wrong = "operator" if route.plane is Plane.WORKER else "worker"
    client = await open_client(auth_driver="token", **{f"{wrong}_token": "secret"})

    answer = await _send(client, route, {"x-namespace": namespace, "authorization": "Bearer secret"})

    assert (answer.status, answer.body["reason"]) == (403, "forbidden")
    _check_envelope(answer, route)


@pytest.mark.parametrize("sent", [None, "", "999", "2.0", "1.21", "0.9", "1", "1.x", "1.-1"])
@pytest.mark.parametrize("route", VERSIONED, ids=_name)
async def test_the_version_comes_before_the_namespace(client: Client, route: Route, sent: str | None) -> None:
    headers = {"x-namespace": "unknown"}
    if sent is not None:
        headers |= dict.fromkeys(WORKER if route.plane is Plane.WORKER else CONTROL, sent)

    answer = await _send(client, route, headers)

    name = "protocol" if route.plane is Plane.WORKER else "control_plane"
    missing = not sent
    assert answer.status == 400
    assert answer.body["reason"] == f"{'missing' if missing else 'unsupported'}_{name}_version"
    assert answer.body["supported_version"] == ("1.20" if route.plane is Plane.WORKER else "2")
    assert answer.body["requested_version"] == (None if missing else sent)
    assert answer.body["remediation"]
    assert answer.body["error" if route.plane is Plane.WORKER else "message"]
    _check_envelope(answer, route)


@pytest.mark.parametrize("sent", ["1.0", "1.1", "1.19", "1.20"])
async def test_older_worker_protocols_are_spoken(client: Client, sent: str) -> None:
    answer = await client.send("POST", "/api/worker/heartbeat", {}, headers=dict.fromkeys(WORKER, sent))

    assert answer.status == 422
    assert answer.headers["x-durable-workflow-protocol-version"] == "1.20"


@pytest.mark.parametrize("route", SCOPED, ids=_name)
async def test_an_unknown_namespace_comes_before_the_fields(client: Client, route: Route) -> None:
    versions = WORKER if route.plane is Plane.WORKER else CONTROL

    answer = await _send(client, route, versions | {"x-namespace": "Unknown"})

    assert (answer.status, answer.body["reason"]) == (404, "namespace_not_found")
    assert answer.body["namespace"] == "unknown"
    assert "does not exist" in answer.body["message"]
    assert answer.body["remediation"]
    _check_envelope(answer, route)


@pytest.mark.parametrize(
    "route", [route for route in VERSIONED if route.method in ("POST", "PUT")], ids=_name
)
async def test_body_guards_come_first(open_client: OpenClient, route: Route) -> None:
    client = await open_client(auth_driver="token", auth_token="secret", max_payload_bytes=100)

    large = await client.send(route.method, _path(route), {"x": "y" * 100})
    media = await client.send(route.method, _path(route), body=b"{}", headers={"content-type": "text/plain"})
    broken = await client.send(route.method, _path(route), body=b"{")

    assert (large.status, large.body["reason"], large.body["limit"]) == (413, "payload_too_large", 100)
    assert (media.status, media.body["reason"]) == (415, "unsupported_media_type")
    assert media.body["accepted_content_types"] == ["application/json", "application/*+json"]
    assert (broken.status, broken.body["reason"]) == (400, "malformed_json")
    assert broken.body["message"] == "Request bodies must contain valid JSON."
    assert broken.body["json_error"]
    for answer in (large, media, broken):
        _check_envelope(answer, route)


@pytest.mark.parametrize(
    ("headers", "target"),
    [({"x-namespace": "PROD"}, ""), ({}, "?namespace=Prod"), ({"x-namespace": " "}, "?namespace=prod")],
)
async def test_where_the_namespace_comes_from(client: Client, headers: dict[str, str], target: str) -> None:
    await client.control("POST", "/api/namespaces", {"name": "prod"})
    client.node.engine.answers["list_runs"] = Refused("seen", "seen")

    await client.control("GET", f"/api/workflows{target}", **headers)

    assert client.node.engine.calls[0][1] == ("prod",)


async def test_the_header_wins_over_the_query(client: Client) -> None:
    answer = await client.control("GET", "/api/workflows?namespace=default", **{"x-namespace": "other"})

    assert answer.body["namespace"] == "other"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("POST", "/", 405),
        ("GET", "/api/workflows/x/signal", 404),
        ("GET", "/api/workflows//runs/x", 404),
        ("POST", "/api/workflows/x/nothing/y", 404),
        ("GET", "/api/worker/nothing", 404),
        ("GET", "/api/workerx", 404),
        ("PATCH", "/api/workflows", 405),
        ("GET", "/api/worker/register", 405),
        ("TRACE", "/api/health", 405),
    ],
)
async def test_unknown_paths_and_methods(client: Client, method: str, path: str, status: int) -> None:
    answer = await client.send(method, path)

    assert answer.status == status
    assert answer.body["reason"] == {404: "not_found", 405: "method_not_allowed"}[status]
    worker = path.startswith("/api/worker/")
    assert ("x-durable-workflow-protocol-version" in answer.headers) == worker
    assert ("x-durable-workflow-control-plane-version" in answer.headers) != worker
    assert answer.body["message"]


async def test_methods_of_a_path_are_named(client: Client) -> None:
    options = await client.send("OPTIONS", "/api/namespaces/x")
    wrong = await client.send("POST", "/api/namespaces/x")

    assert (options.status, options.body) == (204, b"")
    assert options.headers["allow"] == wrong.headers["allow"] == "GET, HEAD, OPTIONS, PUT"


async def test_head_is_get_without_the_body(client: Client) -> None:
    get = await client.control("GET", "/api/namespaces")
    head = await client.control("HEAD", "/api/namespaces")

    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.raw.body))


async def test_a_path_is_decoded_once(client: Client) -> None:
    await client.control("GET", "/api/workflows/a%252Fb%2Fc%20%C3%A9")

    assert client.node.engine.calls[0][1][1] == "a%2Fb/c é"


@pytest.mark.parametrize("path", ["/api/workflows/%", "/api/workflows/%zz", "/api/workflows/%ff", "/%c3%28"])
async def test_a_malformed_path_is_refused(client: Client, path: str) -> None:
    answer = await client.control("GET", path)

    assert (answer.status, answer.body["reason"]) == (400, "malformed_request")


async def test_a_malformed_query_is_refused(client: Client) -> None:
    assert (await client.control("GET", "/api/workflows?query=%f")).status == 400
    many = "&".join(f"a{n}=1" for n in range(65))
    assert (await client.control("GET", f"/api/workflows?{many}")).status == 400


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailable("secret"), 503),
        (OutcomeUnknown("secret"), 503),
        (StoreFull("secret"), 503),
        (NotDurable("secret"), 503),
        (StoreRefused("secret"), 500),
        (StoreRefused("WRONGTYPE secret"), 500),
        (ValueError("secret"), 500),
    ],
)
async def test_failures_are_typed_and_tell_no_secrets(
    client: Client, error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    client.node.engine.answers["describe"] = error

    answer = await client.control("GET", "/api/workflows/x")

    assert answer.status == status
    assert b"secret" not in answer.raw.body
    logged = capsys.readouterr()
    assert "secret" not in logged.out + logged.err
    assert answer.body["reason"] not in FORBIDDEN_REASONS
    assert answer.body["control_plane"]["operation"] == "describe"
    if status == 503:
        assert isinstance(error, StoreError)
        assert answer.body["reason"] == error.reason
        assert answer.headers["retry-after"] == "1"
    else:
        assert answer.body["reason"] == "server_error"
        assert "retry-after" not in answer.headers


async def test_a_poll_without_a_store_says_unavailable(client: Client) -> None:
    client.node.store.failure = StoreUnavailable("away")
    client.node.namespaces._cache.forget_all()

    for kind in ("workflow", "activity"):
        answer = await client.worker("POST", f"{kind}-tasks/poll", {"worker_id": "w", "task_queue": "q"})

        assert answer.status == 503
        assert answer.body["task"] is None
        assert answer.body["poll_status"] == "unavailable"
        assert answer.body["reason"] == "store_unavailable"
        assert answer.headers["retry-after"] == "1"


def test_every_operation_of_the_table_is_described() -> None:
    assert {route.operation for route in ROUTES if route.operation} == set(OPERATIONS)


def test_literal_segments_win_over_parameters() -> None:
    router = Router(ROUTES)

    match = router.match("POST", ("api", "worker", "workflow-tasks", "poll"))

    assert match.route is not None
    assert match.route.template == "/api/worker/workflow-tasks/poll"


def test_a_route_may_stand_only_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        Router((ROUTES[0], ROUTES[0]))


def test_two_templates_may_not_mean_the_same_paths() -> None:
    route = next(route for route in ROUTES if route.template == "/api/workflows/{workflow_id}")

    with pytest.raises(ValueError, match="same paths"):
        Router((route, replace(route, method="PUT", template="/api/workflows/{name}")))


def test_the_template_with_more_literal_segments_wins() -> None:
    route = next(route for route in ROUTES if route.template == "/api/workflows/{workflow_id}")
    general = replace(route, template="/api/{family}/{name}")
    for routes in ((general, route), (route, general)):
        router = Router(routes)

        assert router.match("GET", ("api", "workflows", "x")).route is route
        assert router.match("GET", ("api", "others", "x")).route is general
        assert router.match("GET", ("api", "others", "")).route is None


def test_a_header_that_came_twice_is_as_good_as_none() -> None:
    request = Request("GET", b"/", b"", ((b"a", b"1"), (b"b", b"2"), (b"a", b"3")))

    assert (request.header(b"a"), request.header(b"b"), request.header(b"c")) == (None, "2", None)
    assert msgspec.structs.replace(request, headers=((b"a", b"4"),)).header(b"a") == "4"
