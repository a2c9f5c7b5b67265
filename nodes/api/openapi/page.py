"""The OpenAPI document as a page for people: no script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from nodes.api.openapi.document import build
from nodes.api.routes import Route

_METHODS: Final = ("get", "post", "put", "delete")
_WORDS: Final = ("minimum", "maximum", "minLength", "maxLength", "pattern", "maxItems", "const", "default")

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field or parameter: where it stands, its type and limits in words."""

    name: str
    place: str
    required: bool
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One status: the fields of a success, or the reasons of a refusal."""

    status: str
    text: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One route as the page shows it."""

    anchor: str
    method: str
    path: str
    summary: str
    text: str
    roles: tuple[str, ...]
    fields: tuple[FieldRow, ...]
    answers: tuple[AnswerRow, ...]


@cache
def render(routes: tuple[Route, ...]) -> bytes:
    """The page for a routing table."""
    document = build(routes)
    environment = Environment(
        loader=PackageLoader("nodes.api.openapi", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (files("nodes.api.openapi") / "page.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = environment.get_template("page.html").render(
        document=document,
        groups=groups(document),
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'",
    )
    return page.encode()


def groups(document: Schema) -> dict[str, list[Operation]]:
    """Operations by tag, in the order of the routing table."""
    found: dict[str, list[Operation]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                operation = operations[method]
                found.setdefault(operation["tags"][0], []).append(
                    _operation(document, path, method, operation)
                )
    return found


def _operation(document: Schema, path: str, method: str, operation: Schema) -> Operation:
    return Operation(
        anchor=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        text=operation.get("description", ""),
        roles=tuple(operation.get("x-roles", ())),
        fields=(*_parameters(document, operation), *_body(document, operation)),
        answers=tuple(_answers(document, operation)),
    )


def _parameters(document: Schema, operation: Schema) -> Iterator[FieldRow]:
    for parameter in operation["parameters"]:
        kind, text = _shape(document, parameter["schema"])
        yield FieldRow(parameter["name"], parameter["in"], parameter.get("required", False), kind, text)


def _body(document: Schema, operation: Schema) -> Iterator[FieldRow]:
    content = operation.get("requestBody", {}).get("content", {})
    for media in content.values():
        schema = _resolved(document, media["schema"])
        for name, field in schema.get("properties", {}).items():
            kind, text = _shape(document, field)
            yield FieldRow(name, "body", name in schema.get("required", ()), kind, text)


def _answers(document: Schema, operation: Schema) -> Iterator[AnswerRow]:
    for status, response in operation["responses"].items():
        names: list[str] = []
        for media in response.get("content", {}).values():
            schema = _resolved(document, media["schema"])
            names += _reasons(schema) or schema.get("properties", {})
        yield AnswerRow(status, response["description"], tuple(names))


def _reasons(schema: Schema) -> list[str]:
    parts = [schema, *schema.get("allOf", ())]
    return [name for part in parts for name in part.get("properties", {}).get("reason", {}).get("enum", ())]


def _resolved(document: Schema, schema: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return found


def _shape(document: Schema, schema: Schema) -> tuple[str, str]:
    """A schema as a type and what else it asks for."""
    schema = _resolved(document, schema)
    options = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    if len(options) == 1:
        kind, text = _shape(document, options[0])
        return kind, "; ".join(filter(None, (schema.get("description", ""), text)))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kind = " or ".join(part for part in kind if part != "null")
    if "enum" in schema:
        kind = " | ".join(map(str, schema["enum"]))
    if kind == "array" and "items" in schema:
        kind = f"array of {_shape(document, schema['items'])[0]}"
    limits = [f"{word} {schema[word]}" for word in _WORDS if schema.get(word) not in (None, "")]
    return kind, "; ".join(filter(None, (schema.get("description", ""), ", ".join(limits))))
