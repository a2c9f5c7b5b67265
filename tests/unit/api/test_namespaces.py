"""Namespace routes, and what a node remembers of namespaces (3.2, 8.1, 8.2)."""

from __future__ import annotations

import pytest

from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Client


async def test_create_and_list(client: Client) -> None:
    created = await client.control(
        "POST", "/api/namespaces", {"name": "Production", "description": " jobs ", "retention_days": "90"}
    )
    listed = await client.control("GET", "/api/namespaces")

    assert created.status == 201
    assert created.body == {
        "name": "production",
        "description": "jobs",
        "retention_days": 90,
        "status": "active",
        "external_payload_storage": None,
        "created_at": "2027-01-15T08:00:00+00:00",
    }
    assert [item["name"] for item in listed.body["namespaces"]] == ["default", "production"]
    assert listed.body["namespaces"][0]["retention_days"] == 30
    assert {"created_at", "updated_at"} <= listed.body["namespaces"][0].keys()
    assert "control_plane" not in listed.body


async def test_a_name_is_taken_in_any_case(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "production"})

    answer = await client.control("POST", "/api/namespaces", {"name": "Production"})

    assert answer.status == 409
    assert answer.body["reason"] == "namespace_already_exists"
    assert answer.body["message"] == "Namespace already exists."
    assert answer.body["namespace"] == "production"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"name"}),
        ({"name": None}, {"name"}),
        ({"name": "  "}, {"name"}),
        ({"name": 5}, {"name"}),
        ({"name": "in valid!"}, {"name"}),
        ({"name": "x" * 129}, {"name"}),
        ({"name": "x\n"}, set()),
        ({"name": "a.b_c-d"}, set()),
        ({"name": "x" * 128, "description": "", "retention_days": ""}, set()),
        (
            {"name": "!", "description": "x" * 1001, "retention_days": 366},
            {"name", "description", "retention_days"},
        ),
        ({"name": "a", "retention_days": 0}, {"retention_days"}),
        ({"name": "a", "retention_days": True}, {"retention_days"}),
        ({"name": "a", "retention_days": 1.5}, {"retention_days"}),
        ({"name": "a", "retention_days": "x"}, {"retention_days"}),
        ({"name": "a", "retention_days": {}}, {"retention_days"}),
    ],
)
async def test_field_errors_are_reported_together(
    client: Client, body: dict[str, object], fields: set[str]
) -> None:
    answer = await client.control("POST", "/api/namespaces", body)

    assert answer.status == (422 if fields else 201)
    if fields:
        assert answer.body["reason"] == "validation_failed"
        assert set(answer.body["errors"]) == fields
        assert answer.body["validation_errors"] == answer.body["errors"]
        assert all(isinstance(texts, list) and texts for texts in answer.body["errors"].values())


async def test_describe_and_update(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "jobs", "retention_days": 7})

    described = await client.control("GET", "/api/namespaces/JOBS")
    first = await client.control("PUT", "/api/namespaces/jobs", {"description": "new"})
    second = await client.control("PUT", "/api/namespaces/jobs", {"retention_days": 9})

    assert described.body["retention_days"] == 7
    assert (first.body["description"], first.body["retention_days"]) == ("new", 7)
    assert (second.body["description"], second.body["retention_days"]) == ("new", 9)
    assert "created_at" not in first.body
    assert "updated_at" in first.body


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_unknown_namespaces(client: Client, method: str) -> None:
    answer = await client.control(method, "/api/namespaces/Nope")

    assert (answer.status, answer.body["reason"], answer.body["namespace"]) == (
        404,
        "namespace_not_found",
        "nope",
    )


async def test_administration_needs_no_context_namespace(client: Client) -> None:
    for target in ("/api/namespaces", "/api/namespaces/default", "/api/cluster/info"):
        assert (await client.control("GET", target, **{"x-namespace": "unknown"})).status == 200


async def test_the_configured_default_is_created_and_used(open_client: OpenClient) -> None:
    client = await open_client(default_namespace="Main")

    assert [ns.name for ns in await client.node.namespaces.list()] == ["main"]
    await client.node.namespaces.bootstrap("main")
    assert [ns.name for ns in await client.node.namespaces.list()] == ["main"]


async def test_a_known_namespace_is_asked_for_once(client: Client) -> None:
    store = client.node.store
    await client.node.namespaces.get("default")
    store.commands.clear()

    for _ in range(10):
        assert await client.node.namespaces.get("DEFAULT") is not None

    assert store.commands == []


async def test_a_change_and_a_reconnect_are_heard(client: Client) -> None:
    namespaces, store = client.node.namespaces, client.node.store
    assert (await namespaces.get("default")) is not None
    await namespaces.update("default", "changed", None)

    changed = await namespaces.get("default")
    assert changed is not None
    assert changed.description == "changed"
    store.reconnect()
    store.commands.clear()
    await namespaces.get("default")
    assert store.commands == ["HGET"]
