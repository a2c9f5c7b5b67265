"""``dw search-attribute:...``: attributes that runs can be marked with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from nodes.cli.dw.arguments import argument
from nodes.cli.dw.choices import AttributeType
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.views import Block, Result, Rows, facts

Name = Annotated[str, argument("NAME", "the attribute")]


def _attributes(result: Result) -> Iterable[Block]:
    rows = [
        {"name": name, "type": kind, "defined_by": who}
        for who in ("system", "custom")
        for name, kind in result.get(f"{who}_attributes", {}).items()
    ]
    yield Rows(rows, ("name", "type", "defined_by"))


@command(
    "search-attribute:list",
    _attributes,
    json="system_attributes custom_attributes",
    examples=("dw search-attribute:list",),
)
def list_attributes(dw: Dw) -> Result:
    """List search attributes, the server's own first."""
    return dw.get("search-attributes")


@command(
    "search-attribute:create",
    facts("name type outcome"),
    json="name type outcome",
    examples=("dw search-attribute:create Region keyword",),
)
def create(dw: Dw, name: Name, kind: Annotated[AttributeType, argument("TYPE", "its type")]) -> Result:
    """Define a search attribute."""
    return dw.post("search-attributes", body={"name": name, "type": kind})


@command(
    "search-attribute:delete",
    facts("name outcome"),
    json="name outcome",
    examples=("dw search-attribute:delete Colour",),
)
def delete(dw: Dw, name: Name) -> Result:
    """Remove a definition; runs keep what they were marked with."""
    return dw.delete("search-attributes", name)
