"""Builds the document: one operation per row of the routing table."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from cluster.version import VERSION
from nodes.api import documents
from nodes.api.envelopes import OPERATIONS
from nodes.api.fields import Fields
from nodes.api.openapi import summaries
from nodes.api.openapi.answers import ANSWERS, UNKNOWN
from nodes.api.openapi.models import Models, models_of
from nodes.api.routes import Plane, Route
from nodes.api.versions import CONTROL_HEADER, CONTROL_VERSION, WORKER_HEADER, WORKER_VERSION

_JSON: Final = "application/json"
_SCHEMAS: Final = "#/components/schemas"
_WITH_BODY: Final = ("POST", "PUT", "DELETE")
_STORE: Final = (
    "store_unavailable",
    "store_contended",
    "store_outcome_unknown",
    "store_not_durable",
    "store_durability_lost",
    "store_recovering",
    "store_full",
    "store_error",
)
_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_TEXTS: Final = {"/metrics": "text/plain", "/openapi.html": "text/html"}
"""Routes that answer text, and its media type."""

Schema = dict[str, Any]


@cache
def render(routes: tuple[Route, ...]) -> bytes:
    """The document for a routing table, as JSON."""
    return documents.write(build(routes))


def build(routes: Sequence[Route]) -> dict[str, Any]:
    """The document for a routing table."""
    schemas: dict[str, Schema] = dict(_common_schemas())
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(route.template, {})
        operations[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": VERSION,
            "description": "Unknown request fields are ignored. Clients branch on reasons, never on texts.",
        },
        "tags": [{"name": name, "description": text} for name, text in summaries.TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "the token of a role, or the shared one",
                },
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Signature",
                    "description": "hex HMAC-SHA256 of the body",
                },
            },
        },
    }


def operation_id(route: Route) -> str:
    """A name for code generators, one per route."""
    words = [part.strip("{}") for part in route.segments if part != "api"]
    return "_".join([route.method.lower(), *words]).replace("-", "_").replace(".", "_")


def _operation(route: Route, schemas: dict[str, Schema]) -> dict[str, Any]:
    models = models_of(route.handler)
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "tags": [summaries.heading(route)],
        "summary": summaries.summary(route),
        "description": _description(route),
        "parameters": [*_path_parameters(route), *_headers(route), *_query_parameters(models)],
        "responses": _responses(route, models),
    }
    if not route.public:
        operation["security"] = [{"token": []}, {"signature": []}]
        operation["x-roles"] = sorted(role.value for role in route.roles)
    if models.body is not None:
        content: dict[str, Any] = {"schema": _model_schema(models.body, schemas)}
        shown = summaries.example(route)
        if shown is not None:
            content["example"] = shown
        operation["requestBody"] = {
            "required": any(field.is_required() for field in models.body.model_fields.values()),
            "content": {_JSON: content},
        }
    return operation


def _description(route: Route) -> str:
    """What the handler's docstring says beyond naming the route, and who may use it."""
    text = " ".join((inspect.getdoc(route.handler) or "").split())
    _, _, rest = text.partition("``:")
    said = (rest or text.partition("``.")[2]).strip().replace("``", "`")
    said = f"{said[:1].upper()}{said[1:]}"
    roles = "Needs no credential." if route.public else f"Roles: {', '.join(sorted(route.roles))}."
    return f"{said} {roles}".strip()


# -- requests -----------------------------------------------------------------------------------


def _path_parameters(route: Route) -> Iterator[dict[str, Any]]:
    for segment in route.segments:
        if segment.startswith("{"):
            yield _parameter("path", segment[1:-1], {"type": "string", "minLength": 1}, required=True)


def _headers(route: Route) -> Iterator[dict[str, Any]]:
    if route.versioned and route.plane is Plane.CONTROL:
        yield _parameter("header", _title(CONTROL_HEADER), {"const": CONTROL_VERSION}, required=True)
    elif route.versioned:
        accepted = {"type": "string", "enum": [WORKER_VERSION, "1.0"]}
        yield _parameter("header", _title(WORKER_HEADER), accepted, required=True)
    if route.scoped:
        yield _parameter("header", "X-Namespace", _TEXT, required=False)


def _query_parameters(models: Models) -> Iterator[dict[str, Any]]:
    if models.query is None:
        return
    schema = models.query.model_json_schema(ref_template=f"{_SCHEMAS}/{{model}}")
    definitions = schema.get("$defs", {})
    for name, field in schema.get("properties", {}).items():
        yield _parameter("query", name, _without_null(field, definitions), required=False)


def _without_null(field: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """The schema of a query field: it cannot be null, and stands by itself."""
    choices = [choice for choice in field.get("anyOf", [field]) if choice.get("type") != "null"]
    schema = choices[0] if choices else {}
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return {name: value for name, value in schema.items() if name not in ("title", "default", "description")}


def _parameter(place: str, name: str, schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    return {"in": place, "name": name, "required": required, "schema": dict(schema)}


def _title(header: bytes) -> str:
    return "-".join(word.capitalize() for word in header.decode().split("-"))


def _model_schema(model: type[Fields], schemas: dict[str, Schema]) -> Schema:
    """A reference to the model's schema, which is added to ``schemas`` with all it needs."""
    where = model.__module__.rpartition(".")[2]
    schema = model.model_json_schema(by_alias=True, ref_template=f"{_SCHEMAS}/{where}.{{model}}")
    for name, definition in schema.pop("$defs", {}).items():
        schemas[f"{where}.{name}"] = definition
    name = f"{where}.{model.__name__}"
    schemas[name] = schema
    return {"$ref": f"{_SCHEMAS}/{name}"}


# -- responses ----------------------------------------------------------------------------------


def _responses(route: Route, models: Models) -> dict[str, Any]:
    answers = ANSWERS.get(f"{route.method} {route.template}", UNKNOWN)
    reasons: dict[int, list[str]] = {}
    for status, more in (*_common_refusals(route, models), *answers.refused.items()):
        reasons.setdefault(status, []).extend(more)
    responses: dict[str, Any] = {}
    for status in sorted({*answers.good, *reasons}):
        choices = []
        if status in answers.good:
            choices.append(_good(route, answers.good[status]))
        if status in reasons:
            choices.append(_refusal(route, reasons[status]))
        schema = choices[0] if len(choices) == 1 else {"anyOf": choices}
        kind = _TEXTS.get(route.template, _JSON) if status in answers.good else _JSON
        content = {kind: {"schema": schema if kind == _JSON else dict(_TEXT)}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    return responses


def _common_refusals(route: Route, models: Models) -> Iterator[tuple[int, tuple[str, ...]]]:
    """What follows from what the route is, in the order of the checks (server-behaviour 1.1)."""
    yield 413, ("payload_too_large",)
    if route.method in _WITH_BODY:
        yield 415, ("unsupported_media_type",)
        yield 400, ("malformed_json",)
    if not route.public:
        yield 401, ("unauthorized",)
        yield 403, ("forbidden",)
    if route.versioned:
        plane = "control_plane" if route.plane is Plane.CONTROL else "protocol"
        yield 400, (f"missing_{plane}_version", f"unsupported_{plane}_version")
    yield 400, ("malformed_request",)
    if route.scoped:
        yield 404, ("namespace_not_found",)
    if models.body is not None or models.query is not None or _names_operation(route):
        yield 422, ("validation_failed",)
    if route.template not in _TEXTS:
        yield 503, _STORE
    yield 500, ("server_error",)


def _names_operation(route: Route) -> bool:
    return any(segment in ("{signal_name}", "{query_name}", "{update_name}") for segment in route.segments)


def _good(route: Route, members: Sequence[str]) -> Schema:
    required = list(members)
    if route.plane is Plane.WORKER:
        required += ["protocol_version", "server_capabilities"]
    if route.operation is not None:
        required.append("control_plane")
    return {"type": "object", "required": required, "properties": {name: {} for name in required}}


def _refusal(route: Route, reasons: Sequence[str]) -> Schema:
    base = "WorkerRefusal" if route.plane is Plane.WORKER else "ControlRefusal"
    schema: Schema = {"allOf": [{"$ref": f"{_SCHEMAS}/{base}"}]}
    if reasons:
        schema["allOf"].append({"properties": {"reason": {"enum": list(dict.fromkeys(reasons))}}})
    return schema


def _common_schemas() -> Mapping[str, Schema]:
    errors: Schema = {
        "type": ["object", "null"],
        "additionalProperties": {"type": "array", "items": dict(_TEXT)},
    }
    text = dict(_TEXT)
    return {
        "ControlRefusal": {
            "type": "object",
            "required": ["message", "reason"],
            "properties": {
                "message": text,
                "reason": text,
                "errors": errors,
                "validation_errors": errors,
                "control_plane": {"$ref": f"{_SCHEMAS}/ControlPlane"},
            },
        },
        "WorkerRefusal": {
            "type": "object",
            "required": ["reason", "protocol_version", "server_capabilities"],
            "anyOf": [{"required": ["message"]}, {"required": ["error"]}],
            "properties": {
                "message": text,
                "error": text,
                "reason": text,
                "errors": errors,
                "validation_errors": errors,
                "protocol_version": text,
                "server_capabilities": {"type": "object"},
            },
        },
        "ControlPlane": {
            "type": "object",
            "required": ["schema", "version", "operation", "workflow_id", "contract"],
            "properties": {"operation": {"enum": sorted(OPERATIONS)}},
        },
    }
