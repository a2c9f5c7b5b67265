"""Search attribute definitions over HTTP on a real node (8.4; cases S01 to S09)."""

from __future__ import annotations

import pytest
import trio

from tests.api.conftest import OpenNode, client_of
from tests.unit.api.fakes import Answer, Client

PATH = "/api/search-attributes"
OTHER = {"x-namespace": "other"}


async def define(client: Client, name: str, kind: str = "keyword", **headers: str) -> Answer:
    return await client.control("POST", PATH, {"name": name, "type": kind}, **headers)


async def custom(client: Client, **headers: str) -> dict[str, str]:
    found: dict[str, str] = (await client.control("GET", PATH, **headers)).body["custom_attributes"]
    return found


async def test_s01_a_new_namespace_has_the_system_attributes_only(client: Client) -> None:
    body = (await client.control("GET", PATH)).body
    assert body["custom_attributes"] == {}
    assert body["system_attributes"] == {
        "WorkflowType": "keyword",
        "WorkflowId": "keyword",
        "RunId": "keyword",
        "Status": "keyword",
        "StartTime": "datetime",
        "CloseTime": "datetime",
        "TaskQueue": "keyword",
        "BuildId": "keyword",
    }


async def test_s02_s03_s04_s08_definitions_are_of_one_namespace(client: Client) -> None:
    await client.control("POST", "/api/namespaces", {"name": "other"})
    created = await define(client, "Tier")
    assert (created.status, created.body) == (
        201,
        {"name": "Tier", "type": "keyword", "outcome": "created"},
    )
    assert (await custom(client), await custom(client, **OTHER)) == ({"Tier": "keyword"}, {})
    again = await define(client, "Tier", "int")
    assert (again.status, again.body["reason"], again.body["name"], again.body["type"]) == (
        409,
        "attribute_already_exists",
        "Tier",
        "keyword",
    )
    elsewhere = await client.control("DELETE", f"{PATH}/Tier", **OTHER)
    assert (elsewhere.status, elsewhere.body["reason"]) == (404, "attribute_not_found")
    deleted = await client.control("DELETE", f"{PATH}/Tier")
    assert (deleted.status, deleted.body) == (200, {"name": "Tier", "outcome": "deleted"})
    assert (await client.control("DELETE", f"{PATH}/Tier")).status == 404
    assert await custom(client) == {}


async def test_s05_system_attributes_are_reserved(client: Client) -> None:
    taken = await define(client, "WorkflowType")
    assert (taken.status, taken.body["reason"]) == (409, "name_reserved")
    kept = await client.control("DELETE", f"{PATH}/RunId")
    assert (kept.status, kept.body["reason"]) == (409, "system_attribute")


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("1st", "keyword", "name"),
        ("a-b", "keyword", "name"),
        ("x" * 129, "int", "name"),
        ("a", "date", "type"),
    ],
)
async def test_s06_bad_definitions(client: Client, name: str, kind: str, field: str) -> None:
    answer = await define(client, name, kind)
    assert (answer.status, list(answer.body["errors"])) == (422, [field])


async def test_s07_every_type(client: Client) -> None:
    for kind in ("keyword", "text", "int", "double", "bool", "datetime", "keyword_list"):
        assert (await define(client, f"A_{kind}", kind)).status == 201
    assert len(await custom(client)) == 7


async def test_s09_the_limit_holds_when_many_define_at_once(another_node: OpenNode) -> None:
    async with another_node(max_search_attributes=3) as node:
        client = client_of(node)
        await client.control("POST", "/api/namespaces", {"name": "other"})
        answers: list[Answer] = []

        async def one(number: int) -> None:
            answers.append(await define(client, f"A{number}"))

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(one, number)
        refused = [answer for answer in answers if answer.status != 201]
        assert len(refused) == 5
        assert {(a.status, a.body["reason"], a.body["limit"]) for a in refused} == {
            (422, "search_attribute_limit_reached", 3)
        }
        assert (await define(client, "A", **OTHER)).status == 201
