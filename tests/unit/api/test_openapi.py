"""The OpenAPI document says what the routing table and the field models say."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import jsonschema_rs
import pytest

from nodes.api.openapi import summaries
from nodes.api.openapi.answers import ANSWERS
from nodes.api.openapi.document import build, operation_id
from nodes.api.openapi.models import models_of
from nodes.api.routes import Plane, Route
from nodes.api.table import ROUTES
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Client


def _name(route: Route) -> str:
    return f"{route.method} {route.template}"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return build(ROUTES)


def _operation(document: dict[str, Any], route: Route) -> dict[str, Any]:
    found: dict[str, Any] = document["paths"][route.template][route.method.lower()]
    return found


def test_it_has_the_operations_of_the_routing_table(document: dict[str, Any]) -> None:
    written = {
        f"{method.upper()} {path}" for path, operations in document["paths"].items() for method in operations
    }
    assert written == {_name(route) for route in ROUTES}
    assert len({operation_id(route) for route in ROUTES}) == len(ROUTES)


def test_every_route_is_described_and_nothing_else() -> None:
    assert set(ANSWERS) == {_name(route) for route in ROUTES}


def test_it_is_served_without_credentials(document: dict[str, Any]) -> None:
    routes = [route for route in ROUTES if route.template == "/openapi.json"]
    assert [route.public for route in routes] == [True]


async def test_any_client_may_read_it(open_client: OpenClient, document: dict[str, Any]) -> None:
    client = await open_client(auth_driver="token", auth_token="secret")
    answer = await client.send("GET", "/openapi.json", headers={})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == document


@pytest.mark.parametrize("route", ROUTES, ids=_name)
def test_parameters_are_those_of_the_route(document: dict[str, Any], route: Route) -> None:
    operation = _operation(document, route)
    parameters = {(p["in"], p["name"]): p for p in operation["parameters"]}
    in_path = {name for place, name in parameters if place == "path"}
    assert in_path == set(re.findall(r"\{([a-z_]+)\}", route.template))
    model = models_of(route.handler).query
    assert {name for place, name in parameters if place == "query"} == set(
        model.model_fields if model else ()
    )
    headers = {name for place, name in parameters if place == "header"}
    assert ("X-Namespace" in headers) == route.scoped
    control = "X-Durable-Workflow-Control-Plane-Version" in headers
    worker = "X-Durable-Workflow-Protocol-Version" in headers
    assert (control, worker) == (
        route.versioned and route.plane is Plane.CONTROL,
        route.versioned and route.plane is Plane.WORKER,
    )
    assert ("security" in operation) != route.public


@pytest.mark.parametrize("route", ROUTES, ids=_name)
def test_bodies_are_the_field_models(document: dict[str, Any], route: Route) -> None:
    model = models_of(route.handler).body
    operation = _operation(document, route)
    assert ("requestBody" in operation) == (model is not None)
    if model is None:
        return
    body = operation["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][reference]
    names = {field.alias or name for name, field in model.model_fields.items()}
    assert set(schema.get("properties", {})) == names
    required = {field.alias or name for name, field in model.model_fields.items() if field.is_required()}
    assert set(schema.get("required", ())) == required


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [found for value in node.values() for found in references(value)]
        if isinstance(node, list):
            return [found for value in node for found in references(value)]
        return []

    prefix = "#/components/schemas/"
    used = {reference.removeprefix(prefix) for reference in references(document)}
    assert used <= set(document["components"]["schemas"])


@pytest.mark.parametrize("route", ROUTES, ids=_name)
def test_refusals_follow_from_the_route(document: dict[str, Any], route: Route) -> None:
    responses = _operation(document, route)["responses"]
    assert ("401" in responses and "403" in responses) == (not route.public)
    if route.scoped:
        assert "namespace_not_found" in str(responses["404"])
    if route.versioned:
        assert "_version" in str(responses["400"])
    assert ("415" in responses) == (route.method != "GET")


class _Balanced(HTMLParser):
    """Notes ids, links to places on the page, and elements that are still open."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += filter(None, [found.get("id")])
        self.targets += [link[1:] for link in [found.get("href") or ""] if link.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_page_shows_every_route_and_runs_no_script(client: Client) -> None:
    answer = await client.send("GET", "/openapi.html", headers={})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = answer.raw.body.decode()
    page = _Balanced()
    page.feed(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {operation_id(route) for route in ROUTES} <= set(page.ids)
    assert set(page.targets) <= set(page.ids)
    assert "<script" not in text
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src &#39;sha256-{digest}&#39;" in text


def test_every_operation_says_what_it_is_for(document: dict[str, Any]) -> None:
    headings = {tag["name"] for tag in document["tags"]}
    seen: dict[str, str] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            summary = operation["summary"]
            assert 5 < len(summary) < 80, name
            assert "/" not in summary.replace("Prometheus' format", ""), name
            assert seen.setdefault(summary, name) == name, f"{name} reads like {seen[summary]}"
            assert set(operation["tags"]) <= headings
            assert operation["description"], name
            assert "``" not in operation["description"], name
    assert {tag for ops in document["paths"].values() for o in ops.values() for tag in o["tags"]} == headings


def test_examples_fit_their_schemas(document: dict[str, Any]) -> None:
    known = {f"{route.method} {route.template}" for route in ROUTES}
    assert set(summaries.EXAMPLES) <= known
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                if "example" in media:
                    schema = {**media["schema"], "components": document["components"]}
                    errors = [
                        str(each)
                        for each in jsonschema_rs.validator_for(schema).iter_errors(media["example"])
                    ]
                    assert not errors, f"{method} {path}: {errors}"
