"""The ``headrace`` command: run nodes, try the product, look at settings."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer

from cluster.errors import StartupError
from cluster.settings import Settings, load_settings
from cluster.settings.report import Row, rows
from cluster.settings.schema import AuthDriver
from cluster.version import VERSION
from nodes.cli.console import complain, refuse, run_program
from nodes.cli.processes import end_with_parent

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Headrace, a durable task server: equal, stateless nodes over Redis.",
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="settings file, .toml or .yaml")
]
ListenOption = Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="address of the API")]
RedisOption = Annotated[
    str | None,
    typer.Option(
        "--redis-url", metavar="URL", help="the Redis server; a password is better put in REDIS_URL"
    ),
]
NameOption = Annotated[str | None, typer.Option("--node-name", metavar="NAME", help="unique in the cluster")]


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Options that stand before the command."""


def _settings(
    config: Path | None, listen: str | None, redis_url: str | None, node_name: str | None
) -> Settings:
    settings = load_settings({"listen": listen, "redis_url": redis_url, "node_name": node_name}, file=config)
    for warning in settings.warnings:
        complain(f"warning: {warning}")
    return settings


@app.command()
def serve(
    listen: ListenOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
    node_name: NameOption = None,
    parent: Annotated[int | None, typer.Option("--parent", metavar="PID", hidden=True)] = None,
) -> None:
    """Run one node in the foreground until SIGTERM or Ctrl-C."""
    if parent is not None:
        end_with_parent(parent)
    settings = _settings(config, listen, redis_url, node_name)
    from nodes.api.auth import credentials
    from nodes.logging import configure_logging
    from nodes.serve import serve as serve_node

    driven = settings.auth_provider is None and settings.auth_driver is not AuthDriver.NONE
    if driven and not credentials(settings).usable:
        wanted = "DW_SIGNATURE_KEY" if settings.auth_driver is AuthDriver.SIGNATURE else "DW_AUTH_TOKEN"
        complain(f"warning: nobody will be let in: set {wanted} or those of the single roles")
    configure_logging(settings.log_level, settings.log_format, node=settings.node_name)
    run_program(partial(serve_node, settings))


@app.command()
def dev(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="how many nodes")] = 1,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="port of the first node")] = 8080,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="where data and logs are kept")
    ] = Path(".headrace"),
    redis_url: Annotated[
        str | None, typer.Option("--redis-url", metavar="URL", help="use this server, not an embedded one")
    ] = None,
) -> None:
    """Run nodes for development on this machine, with an embedded Valkey; authentication is off."""
    from nodes.cli.dev import DevOptions, develop

    run_program(partial(develop, DevOptions(nodes, port, data_dir, redis_url), os.environ))


@app.command()
def demo() -> None:
    """Kill a node under a running workflow and watch the workflow finish."""
    from nodes.cli.demo.story import demonstrate

    run_program(demonstrate)


@app.command()
def config(
    listen: ListenOption = None,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
    node_name: NameOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable output")] = False,
) -> None:
    """Show every setting, its value and where it came from; secrets are masked."""
    table = rows(_settings(config, listen, redis_url, node_name))
    if as_json:
        shown = [
            {"key": row.key, "variable": row.variable, "value": row.value, "origin": row.origin}
            for row in table
        ]
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
    elif sys.stdout.isatty():
        _print_table(table)
    else:
        for row in table:
            sys.stdout.write(f"{row.key}\t{_text(row)}\t{row.origin}\n")


def _text(row: Row) -> str:
    return "" if row.value is None else str(row.value)


def _print_table(table: list[Row]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table("setting", "variable", "value", "origin", box=SIMPLE_HEAD, header_style="bold")
    for row in table:
        style = "dim" if row.origin == "default" else "cyan"
        cells = (row.key, row.variable or "", _text(row), row.origin)
        view.add_row(*map(Text, cells), style=style)
    Console().print(view)


NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="only this namespace; default: all")
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100, help="at most so many a namespace")]


@app.command("history:prune")
def history_prune(
    namespace: NamespaceOption = None,
    limit: LimitOption = 100,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove closed runs past their retention now; nodes do it by themselves."""
    from nodes.cli.passes import Scope, prune

    run_program(partial(prune, _settings(config, None, redis_url, None), Scope(namespace, limit)))


@app.command("activity:timeout-enforce")
def activity_timeout_enforce(
    namespace: NamespaceOption = None,
    limit: LimitOption = 100,
    redis_url: RedisOption = None,
    config: ConfigOption = None,
) -> None:
    """Enforce deadlines of activities that have come; nodes do it by themselves."""
    from nodes.cli.passes import Scope, enforce_timeouts

    run_program(partial(enforce_timeouts, _settings(config, None, redis_url, None), Scope(namespace, limit)))


@app.command()
def version() -> None:
    """Show the version."""
    sys.stdout.write(f"headrace {VERSION}\n")


def main() -> None:
    """Entry point of the ``headrace`` script."""
    try:
        app(prog_name="headrace")
    except StartupError as error:
        refuse(error)


if __name__ == "__main__":
    main()
