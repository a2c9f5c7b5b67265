"""The stream protocol as an AsyncAPI document, made from the frames themselves (docs/protocol.md)."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, get_args

import msgspec
import orjson

from cluster.version import VERSION
from nodes.streams.frames import Frame, NodeFrame, WorkerFrame
from nodes.streams.versions import VERSIONS

PATH: Final = "/api/streams"
_HEADER: Final = "X-Headrace-Stream-Versions"

Schema = dict[str, Any]


@cache
def render() -> bytes:
    """The document as JSON."""
    return orjson.dumps(build(), option=orjson.OPT_INDENT_2)


def build() -> dict[str, Any]:
    """The document: one channel, two carriers, what each side sends."""
    schemas: dict[str, Schema] = {}
    for side in (WorkerFrame, NodeFrame):
        _, found = msgspec.json.schema_components(get_args(side), ref_template="#/components/schemas/{name}")
        schemas |= found
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Headrace streams",
            "version": VERSION,
            "description": (
                "Pull workers and nodes exchange messages, each a JSON array of frames. Members that a "
                "receiver does not know are ignored. docs/protocol.md says what each frame means when."
            ),
        },
        "defaultContentType": "application/json",
        "servers": {
            "websocket": {"host": "{host}", "pathname": PATH, "protocol": "ws"},
            "http2": {
                "host": "{host}",
                "pathname": PATH,
                "protocol": "http",
                "protocolVersion": "2",
                "description": "A POST with both bodies open; each line is one message.",
            },
        },
        "channels": {
            "connection": {
                "address": PATH,
                "messages": {
                    "toNode": {"$ref": "#/components/messages/toNode"},
                    "toWorker": {"$ref": "#/components/messages/toWorker"},
                },
                "bindings": {"ws": {"method": "GET", "headers": _headers()}},
            }
        },
        "operations": {
            "receiveFromWorker": _operation("receive", "toNode"),
            "sendToWorker": _operation("send", "toWorker"),
        },
        "components": {
            "messages": {
                "toNode": _message("What a worker sends", get_args(WorkerFrame)),
                "toWorker": _message("What a node sends", get_args(NodeFrame)),
            },
            "schemas": schemas,
        },
    }


def _headers() -> Schema:
    return {
        "type": "object",
        "required": ["Authorization", _HEADER],
        "properties": {
            "Authorization": {"type": "string", "description": "Bearer and a token of role worker"},
            "X-Namespace": {"type": "string", "description": "without it the node's default"},
            _HEADER: {"type": "string", "pattern": "^[0-9]+-[0-9]+$", "examples": [VERSIONS]},
        },
    }


def _operation(action: str, message: str) -> Schema:
    return {
        "action": action,
        "channel": {"$ref": "#/channels/connection"},
        "messages": [{"$ref": f"#/channels/connection/messages/{message}"}],
    }


def _message(title: str, frames: tuple[type[Frame], ...]) -> Schema:
    return {
        "title": title,
        "payload": {
            "type": "array",
            "minItems": 1,
            "items": {
                "oneOf": [{"$ref": f"#/components/schemas/{frame.__name__}"} for frame in frames],
                "discriminator": "type",
            },
        },
    }
