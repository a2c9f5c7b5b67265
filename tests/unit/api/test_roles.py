"""Who may use what: every route of the table with every kind of credential (2.1, 2.2)."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest

from nodes.api.messages import Request
from nodes.api.routes import Plane, Reply, Role, Route
from nodes.api.table import ROUTES
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import CONTROL, WORKER, Client

TOKENS = {role: f"{role}-secret" for role in Role}
GUARDED = [route for route in ROUTES if not route.public]


def _path(route: Route) -> str:
    return re.sub(r"\{[a-z_]+\}", "x", route.template)


def _name(route: Route) -> str:
    return f"{route.method} {route.template}"


async def _send(client: Client, route: Route, headers: dict[str, str]) -> int:
    versions = WORKER if route.plane is Plane.WORKER else CONTROL
    body: object = {} if route.method in ("POST", "PUT") else None
    answer = await client.send(route.method, _path(route), body, headers=versions | headers)
    return answer.status


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("route", GUARDED, ids=_name)
async def test_a_role_passes_exactly_where_the_table_says(
    open_client: OpenClient, route: Route, role: Role
) -> None:
    client = await open_client(
        auth_driver="token", **{f"{name}_token": text for name, text in TOKENS.items()}
    )

    status = await _send(client, route, {"authorization": f"Bearer {TOKENS[role]}"})

    assert status != 401
    assert (status != 403) == (role in route.roles)


@pytest.mark.parametrize("route", GUARDED, ids=_name)
async def test_nobody_passes_without_a_credential(open_client: OpenClient, route: Route) -> None:
    client = await open_client(auth_driver="token", auth_token="secret")

    assert await _send(client, route, {}) == 401
    assert await _send(client, route, {"authorization": "Bearer wrong"}) == 401
    assert await _send(client, route, {"authorization": ""}) == 401
    assert await _send(client, route, {"authorization": "Basic secret"}) == 401


@pytest.mark.parametrize("route", GUARDED, ids=_name)
async def test_the_shared_token_alone_opens_everything(open_client: OpenClient, route: Route) -> None:
    client = await open_client(auth_driver="token", auth_token="secret")

    assert await _send(client, route, {"authorization": "Bearer secret"}) not in (401, 403)


@pytest.mark.parametrize("route", GUARDED, ids=_name)
async def test_beside_a_role_token_the_shared_one_is_an_admin(open_client: OpenClient, route: Route) -> None:
    client = await open_client(auth_driver="token", auth_token="secret", worker_token="other")

    status = await _send(client, route, {"authorization": "Bearer secret"})

    assert (status == 403) == (Role.ADMIN not in route.roles)


def test_a_guarded_route_needs_roles() -> None:
    async def handler(call: object) -> Reply:
        return Reply({})

    with pytest.raises(ValueError, match="roles"):
        Route("GET", "/api/new", Plane.CONTROL, handler)
    with pytest.raises(ValueError, match="public"):
        Route("GET", "/api/new", Plane.CONTROL, handler, frozenset(Role), public=True)


async def test_public_routes_ask_for_nothing(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="token", auth_token="secret")

    for path in ("/api/live", "/api/health", "/api/ready", "/metrics"):
        assert (await client.send("GET", path)).status == 200


async def test_a_role_that_may_not_is_told_who_may(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="token", operator_token="op", worker_token="w")

    answer = await client.worker("POST", "register", {}, authorization="Bearer op")

    assert answer.status == 403
    assert answer.body["reason"] == "forbidden"
    assert answer.body["role"] == "operator"
    assert answer.body["allowed_roles"] == ["worker"]
    assert answer.body["protocol_version"] == "1.20"


@pytest.mark.parametrize(
    "settings", [{}, {"auth_token": ""}, {"auth_token": "x", "auth_backward_compatible": False}]
)
async def test_a_token_driver_without_tokens_is_a_server_error(
    open_client: OpenClient, settings: dict[str, object]
) -> None:
    client = await open_client(auth_driver="token", **settings)

    answer = await client.control("GET", "/api/workflows", authorization="Bearer x")

    assert answer.status == 500
    assert answer.body["reason"] == "server_error"
    assert "DW_AUTH_TOKEN is not configured" in answer.body["message"]


async def test_signatures_cover_the_raw_body(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="signature", worker_signature_key="key")
    body = b'{"worker_id": "w", "task_queue": "q", "runtime": "go"}'
    good = hmac.new(b"key", body, hashlib.sha256).hexdigest()
    send = {"content-type": "application/json", **WORKER}

    async def status(**headers: str) -> int:
        answer = await client.send("POST", "/api/worker/register", body=body, headers=send | headers)
        return answer.status

    assert await status(**{"x-signature": good}) == 201
    assert await status(**{"x-signature": good.upper()}) == 401
    assert await status() == 401
    empty = hmac.new(b"key", b"", hashlib.sha256).hexdigest()
    info = await client.send("GET", "/api/cluster/info", headers={"x-signature": empty})
    assert info.status == 200


async def test_a_signature_driver_without_keys_is_a_server_error(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="signature")

    answer = await client.control("GET", "/api/workflows")

    assert answer.status == 500
    assert "DW_SIGNATURE_KEY is not configured" in answer.body["message"]


async def test_a_repeated_credential_header_is_no_credential(open_client: OpenClient) -> None:
    client = await open_client(auth_driver="token", auth_token="secret")
    pairs = ((b"authorization", b"Bearer secret"), (b"authorization", b"Bearer other"))
    response = await client.pipeline.handle(Request("GET", b"/api/cluster/info", b"", pairs))

    assert response.status == 401
