"""Authentication by code of the operator's own (server-behaviour 2.1, 2.3; case C12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cluster.errors import Refused, StartupError
from cluster.settings import Settings
from nodes.api.auth import Principal
from nodes.api.messages import Request
from nodes.api.providers import provided_access
from nodes.api.routes import Role
from tests.unit.api.fakes import CONTROL, WORKER, Client, FakeNode

HERE = __name__


class Gate:
    """Lets in who names a subject; ``deny`` says what else is refused."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.denied: set[str] = set()

    def authenticate(self, request: Request) -> Principal:
        subject = request.header(b"x-subject")
        if subject is None:
            raise Refused("unauthorized", "Who are you?", status=401)
        if subject == "nobody":
            return None  # type: ignore[return-value]  # as bad code would
        return Principal(
            subject,
            Role.OPERATOR,
            "oidc",
            roles=(Role.ADMIN,),
            tenant="acme",
            claims={"team": "a"},
            full_access=subject == "root",
        )

    def authorize(self, principal: Principal, action: str, resource: Mapping[str, Any]) -> bool:
        self.asked.append((principal.subject, action, dict(resource)))
        return resource["operation_name"] not in self.denied


gate = Gate()
NOT_A_PROVIDER = object()


@pytest.fixture
def client() -> Client:
    gate.asked.clear()
    gate.denied.clear()
    node = FakeNode(Settings(auth_provider=f"{HERE}:gate", worker_token="unused"))
    return Client(node)


async def test_it_says_who_asks(client: Client) -> None:
    refused = await client.control("GET", "/api/namespaces")
    named = await client.control("GET", "/api/namespaces", **{"x-subject": "ann"})
    token = await client.control("GET", "/api/namespaces", authorization="Bearer unused")
    nobody = await client.control("GET", "/api/namespaces", **{"x-subject": "nobody"})

    assert (refused.status, refused.body["message"]) == (401, "Who are you?")
    assert named.status == 200
    assert token.status == 401
    assert (nobody.status, nobody.body["reason"]) == (500, "server_error")


async def test_it_sees_what_a_request_is_about_before_anything_is_looked_up(client: Client) -> None:
    headers = {"x-subject": "ann", "x-namespace": "No-Such"}
    body = {"worker_id": "w", "task_queue": "q", "build_id": ""}
    await client.send("POST", "/api/worker/workflow-tasks/poll", body, headers=WORKER | headers)
    await client.send("POST", "/api/namespaces", {"name": "Prod"}, headers=CONTROL | headers)
    await client.send("POST", "/api/workflows/w1/signal/go", {}, headers=CONTROL | headers)

    poll, create, signal = (resource for _, _, resource in gate.asked)
    assert {action for _, action, _ in gate.asked} == {"server.route.access"}
    assert (poll["operation_family"], poll["operation_name"]) == ("worker", "poll_workflow_tasks")
    assert (poll["namespace"], poll["requested_namespace"]) == ("no-such", "no-such")
    assert (poll["worker_id"], poll["task_queue"]) == ("w", "q")
    assert "build_id" not in poll
    assert poll["allowed_roles"] == ["worker"]
    assert (create["operation_family"], create["target_namespace"]) == ("namespace", "prod")
    assert (signal["operation_name"], signal["workflow_id"], signal["signal_name"]) == ("signal", "w1", "go")
    assert signal["route_uri"] == "/api/workflows/{workflow_id}/signal/{signal_name}"
    assert signal["route_parameters"] == {"workflow_id": "w1", "signal_name": "go"}
    assert signal["default_namespace"] == "default"


async def test_its_refusal_is_403_and_tells_nothing_of_namespaces(client: Client) -> None:
    gate.denied = {"start"}
    answers = [
        await client.control("POST", "/api/workflows", {}, **{"x-subject": "ann", "x-namespace": name})
        for name in ("default", "no-such")
    ]
    for answer in answers:
        assert (answer.status, answer.body["reason"]) == (403, "forbidden")
    assert answers[0].body == answers[1].body
    full = await client.control("POST", "/api/workflows", {}, **{"x-subject": "root"})
    assert full.status != 403


async def test_readiness_names_it(client: Client) -> None:
    checks = (await client.send("GET", "/api/ready")).body["checks"]
    assert checks["auth"] == {"status": "ok", "driver": "custom", "provider": f"{HERE}:gate"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no_such_module:gate", "cannot be loaded"),
        (f"{HERE}:nothing", "cannot be loaded"),
        (f"{HERE}:NOT_A_PROVIDER", "has no method authenticate"),
    ],
)
def test_one_that_cannot_be_used_keeps_a_node_from_starting(path: str, text: str) -> None:
    with pytest.raises(StartupError, match=text):
        provided_access(Settings(auth_provider=path))


def test_a_class_is_made_once() -> None:
    first = provided_access(Settings(auth_provider=f"{HERE}:Gate"))
    second = provided_access(Settings(auth_provider=f"{HERE}:Gate"))
    assert first is not None
    assert second is not None
    assert first.provider is second.provider
    assert provided_access(Settings()) is None
