"""``dw schema:...``: what the JSON results of commands have for certain."""

from __future__ import annotations

from typing import Annotated, Any

from nodes.cli.dw.arguments import argument
from nodes.cli.dw.command import COMMANDS, Command, Dw, command
from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.views import Result, document, table


@command(
    "schema:list",
    table("schemas", "command members"),
    json="schemas",
    examples=("dw schema:list --output jsonl",),
)
def list_schemas(dw: Dw) -> Result:
    """List the commands with a JSON result, and its members."""
    return {
        "schemas": [
            {"command": entry.name, "members": list(entry.members)}
            for entry in COMMANDS.commands.values()
            if entry.members
        ]
    }


@command(
    "schema:show",
    document(),
    json="$schema title type required",
    examples=("dw schema:show task-queue:list",),
)
def show(dw: Dw, name: Annotated[str, argument("COMMAND", "the command")]) -> Result:
    """Show the JSON Schema of a command's result; there may be more members than it names."""
    entry = COMMANDS.commands.get(name)
    if entry is None or not entry.members:
        raise wrong_usage(f"no command {name} with a JSON result", "dw schema:list lists them")
    return schema_of(entry)


def schema_of(entry: Command) -> dict[str, Any]:
    """The JSON Schema of what a command prints with ``--json``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"dw {entry.name}",
        "type": "object",
        "required": list(entry.members),
        "properties": {name: {} for name in entry.members},
        "additionalProperties": True,
    }
