"""Arguments and options that several commands have, and reading values from them."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nodes.cli.dw.failures import wrong_usage


class Encoding(StrEnum):
    """How an input is written: ``json``; ``raw``, one text; ``base64`` of JSON."""

    JSON = "json"
    RAW = "raw"
    BASE64 = "base64"


def argument(metavar: str, text: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def option(*names: str, text: str, metavar: str | None = None, **settings: Any) -> Any:
    """An option."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=False, **settings)


WorkflowId = Annotated[str, argument("WORKFLOW_ID", "the workflow")]
RunArgument = Annotated[str | None, argument("RUN_ID", "the run; the newest one when none is named")]
RunOption = Annotated[
    str | None, option("--run-id", "-r", metavar="RUN_ID", text="the run, not the newest one")
]
TaskQueue = Annotated[str, argument("TASK_QUEUE", "the task queue")]
QueueOption = Annotated[str, option("--task-queue", metavar="QUEUE", text="the task queue (default)")]
Reason = Annotated[str | None, option("--reason", metavar="TEXT", text="why; kept with the run")]
RequestId = Annotated[
    str | None, option("--request-id", metavar="ID", text="the same request sent again has no second effect")
]
Limit = Annotated[int, option("--limit", "-l", metavar="N", text="most to show (20)", min=1)]
Input = Annotated[
    str | None, option("--input", "-i", metavar="TEXT", text="arguments: a JSON list, object or value")
]
InputFile = Annotated[
    Path | None,
    option("--input-file", metavar="FILE", text="read the arguments from a file; - is standard input"),
]
InputEncoding = Annotated[Encoding, option("--input-encoding", text="json; raw: one text; base64: of JSON")]
Attributes = Annotated[
    list[str] | None, option("--search-attr", metavar="KEY=VALUE", text="a search attribute; repeatable")
]
Memo = Annotated[str | None, option("--memo", metavar="JSON", text="a JSON object kept with the run")]
Yes = Annotated[bool, option("--yes", "-y", text="do not ask")]


def read_input(text: str | None, file: Path | None, encoding: Encoding) -> Any:
    """Arguments as the API takes them: a list or an object, None without any. Raises CallFailed."""
    if text is not None and file is not None:
        raise wrong_usage("give --input or --input-file, not both")
    if file is not None:
        text = read_text(file)
    if text is None:
        return None
    if encoding is Encoding.BASE64:
        try:
            text = base64.b64decode(text, validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise wrong_usage(f"the input is not base64 of a text: {error}") from error
    value = text if encoding is Encoding.RAW else read_json(text, "the input")
    return value if isinstance(value, list | dict) else [value]


def read_text(file: Path) -> str:
    """A file, or standard input for ``-``. Raises CallFailed."""
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise wrong_usage(f"cannot read {file}: {error}") from error


def read_json(text: str, what: str) -> Any:
    """Raises CallFailed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong_usage(f"{what} is not JSON: {error}") from error


def read_object(text: str | None, what: str) -> dict[str, Any] | None:
    """A JSON object; None stays None. Raises CallFailed."""
    if text is None:
        return None
    value = read_json(text, what)
    if not isinstance(value, dict):
        raise wrong_usage(f"{what} must be a JSON object")
    return value


def read_pairs(pairs: list[str] | None, what: str) -> dict[str, str] | None:
    """``KEY=VALUE`` texts as an object, None without any. Raises CallFailed."""
    found = {}
    for text in pairs or ():
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise wrong_usage(f"{what} is KEY=VALUE, not {text!r}")
        found[key] = value
    return found or None


def confirm(question: str, *, yes: bool) -> None:
    """Ask a person; without one, ``--yes`` is needed. Raises CallFailed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise wrong_usage(f"{question} needs --yes where nobody can be asked")
    sys.stderr.write(f"dw: {question}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise wrong_usage("nothing was done")
