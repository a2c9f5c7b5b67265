"""Finds the field models of a handler: those it gives to ``call.fields`` and ``call.query_fields``.

They are read off the handler's own code, so the document cannot say anything else than what the
handler does.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from nodes.api.fields import Fields

_PACKAGE: Final = "nodes.api"
_READERS: Final = {"fields": "body", "query_fields": "query"}


@dataclass(frozen=True, slots=True)
class Models:
    """Model of the body and of the query string; None where a handler reads no fields."""

    body: type[Fields] | None = None
    query: type[Fields] | None = None


def models_of(handler: Callable[..., Any]) -> Models:
    """The models a handler, or a function it calls, reads a request with."""
    found: dict[str, type[Fields]] = {}
    for place, model in _read(handler, set()):
        found.setdefault(place, model)
    return Models(found.get("body"), found.get("query"))


def _read(function: Callable[..., Any], seen: set[tuple[str, str]]) -> Iterator[tuple[str, type[Fields]]]:
    name = (function.__module__, function.__name__)
    module = sys.modules[function.__module__]
    code = _functions(module).get(function.__name__)
    if name in seen or code is None:
        return
    seen.add(name)
    for node in ast.walk(code):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(attr=attr) if attr in _READERS and node.args:
                model = _resolve(module, node.args[0])
                if isinstance(model, type) and issubclass(model, Fields):
                    yield _READERS[attr], model
            case ast.Name(id=called):
                target = getattr(module, called, None)
                if inspect.isfunction(target) and target.__module__.startswith(_PACKAGE):
                    yield from _read(target, seen)


def _resolve(module: ModuleType, node: ast.expr) -> Any:
    return getattr(module, node.id, None) if isinstance(node, ast.Name) else None


@cache
def _functions(module: ModuleType) -> dict[str, ast.AST]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
