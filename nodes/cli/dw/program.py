"""``dw`` as a program: the options all commands share, and how a command ends."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from cluster.version import VERSION
from nodes.cli.dw.client import TIMEOUT_SECONDS, ApiClient
from nodes.cli.dw.command import COMMANDS, Command, Dw
from nodes.cli.dw.connection import Connection, Flags, resolve
from nodes.cli.dw.failures import CallFailed, ExitCode, Finished
from nodes.cli.dw.screen import Output, Screen, complain
from nodes.cli.dw.views import Result, as_json

MODULES: Final = (
    "server",
    "doctor",
    "namespaces",
    "workflows",
    "histories",
    "commands",
    "schedules",
    "activities",
    "search_attributes",
    "task_queues",
    "limits",
    "workers",
    "worker_plane",
    "flows",
    "cluster",
    "system",
    "env",
    "schemas",
    "completion",
)
"""One module for each noun, in the order in which the help shows them."""

WATCH_SECONDS: Final = 2.0
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes on the command line that the locale's encoding does not know."""

_PANEL: Final = "Connection and output"


def _shared(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **settings)


_TIMEOUT_HELP = "longest time for the command, with --watch for each look (60 for each answer)"


def _options(
    server: Annotated[str | None, _shared("--server", "-s", metavar="URL", help="the server")] = None,
    env: Annotated[str | None, _shared("--env", metavar="PROFILE", help="the profile (DW_ENV)")] = None,
    namespace: Annotated[str | None, _shared("--namespace", metavar="NAME", help="the namespace")] = None,
    token: Annotated[
        str | None,
        _shared("--token", metavar="TOKEN", help="bearer token; others may see it, so a file is better"),
    ] = None,
    token_file: Annotated[
        Path | None, _shared("--token-file", metavar="FILE", help="a file with the token")
    ] = None,
    tls_verify: Annotated[
        str | None, _shared("--tls-verify", metavar="BOOL", help="check the server's certificate")
    ] = None,
    timeout: Annotated[
        float | None, _shared("--timeout", metavar="SECONDS", min=0.1, help=_TIMEOUT_HELP)
    ] = None,
    output: Annotated[Output | None, _shared("--output", help="form of the result (table)")] = None,
    json: Annotated[bool, _shared("--json", help="the whole answer as JSON")] = False,
) -> None:
    """The options of every command."""


def _watching(
    watch: Annotated[
        bool, typer.Option("--watch", help="show it again when it changes, until Ctrl-C")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="how often --watch looks")
    ] = WATCH_SECONDS,
) -> None:
    """The options of commands that can be watched."""


class _Program:
    """One call of ``dw``."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def command(self, entry: Command, given: dict[str, Any]) -> None:
        """Run a command with everything that was typed. Ends by typer.Exit when it failed."""
        output = given.pop("output") or Output.TABLE
        output = Output.JSON if given.pop("json") else output
        flags = Flags(**{one.name: given.pop(one.name) for one in fields(Flags)})
        watch, interval = given.pop("watch", False), given.pop("interval", WATCH_SECONDS)
        screen = Screen(sys.stdout, sys.stderr, self._environ, output)
        dw = Dw(flags, self._environ, screen, lambda: self._connect(flags))
        try:
            if watch:
                _watch(dw, entry, given, interval)
            result = entry.run(dw, **given)
            if result is not None:
                screen.show(_placed(result, entry, dw), entry.view)
        except CallFailed as failure:
            _report(failure, entry, dw)
            raise typer.Exit(failure.code) from None
        except BrokenPipeError:
            _write_no_more()  # whoever read has enough
        except OSError as error:
            _write_no_more()
            complain(str(error))
            raise typer.Exit(ExitCode.FAILURE) from None
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Members were missing, or of another type than this server gives them.
            _report(_not_understood(dw, error), entry, dw)
            raise typer.Exit(ExitCode.SERVER) from None
        except Finished as end:
            raise typer.Exit(end.code) from None
        finally:
            dw.close()

    def _connect(self, flags: Flags) -> tuple[Connection, ApiClient]:
        connection = resolve(flags, self._environ)
        client = ApiClient(
            connection.server,
            namespace=connection.namespace,
            token=connection.token,
            verify=connection.tls_verify,
            timeout=flags.timeout or TIMEOUT_SECONDS,
            whole=flags.timeout is not None,
        )
        return connection, client


def _write_no_more() -> None:
    """Nothing more goes to standard output, not even at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _not_understood(dw: Dw, error: Exception) -> CallFailed:
    return CallFailed(
        f"the answer of {dw.connection.server} makes no sense to dw ({type(error).__name__})",
        ExitCode.SERVER,
        advice=("is this the address of a durable workflow server?", "dw upgrade compares the releases"),
    )


def _watch(dw: Dw, entry: Command, given: Mapping[str, Any], interval: float) -> None:
    """Show the result whenever it changed, until Ctrl-C."""
    shown = None
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        # Noted too, because an exception that comes up in a finalizer is dropped by Python.
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        while not interrupted:
            dw.client.patience.renew()
            result = entry.run(dw, **given)
            if result is not None and result != shown:
                dw.screen.snapshot(result, entry.view)
                shown = result
            time.sleep(interval)
        raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _placed(result: Result, entry: Command, dw: Dw) -> Result:
    """The result with the namespace it is from, where the command promises that."""
    if "namespace" in entry.members and "namespace" not in result:
        return {"namespace": dw.connection.namespace, **result}
    return result


def load() -> Mapping[str, Command]:
    """All commands by name."""
    for name in MODULES:
        importlib.import_module(f"nodes.cli.dw.{name}")
    return COMMANDS.commands


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"dw {VERSION}\n")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Operate a durable workflow server."""


@cache
def application() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(_root)
    for entry in load().values():
        app.command(entry.name, help=help_text(entry), short_help=summary(entry))(_callback(entry))
    return app


def summary(entry: Command) -> str:
    """What the list of all commands says: the docstring's first paragraph, never cut short."""
    return " ".join(inspect.cleandoc(entry.run.__doc__ or "").partition("\n\n")[0].split())


def help_text(entry: Command) -> str:
    """What ``--help`` says: the function's docstring and the examples."""
    said = inspect.cleandoc(entry.run.__doc__ or "")
    return f"{said}\n\nExamples:\n\n\b\n" + "\n".join(f"  {line}" for line in entry.examples)


def _callback(entry: Command) -> Any:
    """The function typer sees: the command's own parameters and the shared ones."""
    shared = [_options, _watching] if entry.watch else [_options]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for function in (entry.run, *shared)
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.name != "dw"
    ]

    def call(context: typer.Context, **given: Any) -> None:
        context.obj.command(entry, given)

    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    call.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in (first, *parameters)}
    call.__name__ = entry.run.__name__
    return call


def parameters(entry: Command) -> Sequence[Any]:
    """The parameters of a command as typer built them; each has ``opts``, ``metavar``, ``help``, ``type``."""
    group: Any = typer.main.get_command(application())
    built: Sequence[Any] = group.commands[entry.name].params
    return built


def long_options(entry: Command) -> list[str]:
    """The options of a command that begin with two dashes."""
    found = [name for one in parameters(entry) for name in (*one.opts, *one.secondary_opts)]
    return sorted(name for name in ("--help", *found) if name.startswith("--"))


def _report(failure: CallFailed, entry: Command, dw: Dw) -> None:
    """Say what went wrong: one line for people, an object where JSON is wanted."""
    if dw.screen.output is Output.TABLE:
        reason = f" ({failure.reason})" if failure.reason else ""
        advice = "".join(f"; {text}" for text in failure.advice)
        complain(" ".join(f"{failure}{reason}{advice}".split()))
        for name, texts in (failure.validation_errors or {}).items():
            complain(f"  {name}: {', '.join(map(str, texts)) if isinstance(texts, list) else texts}")
        return
    document = error_document(failure, entry.name, _namespace(dw))
    indent = 2 if dw.screen.output is Output.JSON else None
    sys.stdout.write(as_json(document, indent=indent) + "\n")


def error_document(failure: CallFailed, name: str | None, namespace: str | None) -> dict[str, Any]:
    """The JSON form of a failure (``server-behaviour 10.1``)."""
    return {
        "error": str(failure),
        "exit_code": int(failure.code),
        "command": name,
        "namespace": namespace,
        "request_id": failure.request_id,
        "status_code": failure.status,
        "reason": failure.reason,
        "validation_errors": failure.validation_errors,
        "server_response": failure.body or None,
        "recommendations": list(failure.advice),
        "compatibility": {
            "dw_version": VERSION,
            "control_plane_version": "2",
            "compatible": failure.code is not ExitCode.INCOMPATIBLE,
        },
    }


def _namespace(dw: Dw) -> str | None:
    try:
        return resolve(dw.flags, dw.environ).namespace
    except CallFailed:
        return dw.flags.namespace


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command; returns what to exit with."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for what the locale has no letters for
    if any(_SURROGATE.search(word) for word in argv):
        complain("an argument is not text in the encoding of this locale; use a UTF-8 locale")
        return ExitCode.REFUSED
    try:
        command = typer.main.get_command(application())
        code = command.main(
            args=list(argv) or ["--help"], prog_name="dw", standalone_mode=False, obj=_Program(environ)
        )
        sys.stdout.flush()
    except typer.TyperException as error:
        _refuse(error, argv)
        return ExitCode.REFUSED
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    return int(code or 0)


def _refuse(error: typer.TyperException, argv: Sequence[str]) -> None:
    """Wrong usage. A command that does not exist is answered with the one that was meant, not with all."""
    name = next((word for word in argv if not word.startswith("-")), None)
    known = load()
    message = error.format_message()
    advice = "dw --help lists all commands" if name not in known else f"dw {name} --help says more"
    if name is not None and name not in known:
        close = difflib.get_close_matches(name, known, 1)
        message = f"no command {name}" + (f", did you mean {close[0]}?" if close else "")
    if "--json" in argv:
        failure = CallFailed(message, ExitCode.REFUSED, advice=(advice,))
        sys.stdout.write(as_json(error_document(failure, name, None)) + "\n")
    else:
        complain(" ".join(f"{message.rstrip('.')}; {advice}".split()))
