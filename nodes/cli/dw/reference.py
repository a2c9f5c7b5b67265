"""``docs/dw.md``, written from the commands: ``python -m nodes.cli.dw.reference docs/dw.md``.

A test fails when the document is not what this writes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Final, get_args

from nodes.cli.dw.command import Command
from nodes.cli.dw.failures import MEANINGS
from nodes.cli.dw.program import load, parameters

_HEAD: Final = """# dw

`dw` operates a server over HTTP: it can do what the role of its token may do by the API, and nothing else.
This page is written by `python -m nodes.cli.dw.reference`; `dw COMMAND --help` says the same.

## Which server, as whom

| what | option | variable | otherwise |
| --- | --- | --- | --- |
| server | `--server`, `-s` | `DURABLE_WORKFLOW_SERVER_URL` | `http://localhost:8080` |
| namespace | `--namespace` | `DURABLE_WORKFLOW_NAMESPACE` | `default` |
| token | `--token` | `DURABLE_WORKFLOW_AUTH_TOKEN` | none |
| a file with it | `--token-file` | `DURABLE_WORKFLOW_AUTH_TOKEN_FILE` | none |
| certificate checked | `--tls-verify` | `DURABLE_WORKFLOW_TLS_VERIFY` | yes |
| profile | `--env` | `DW_ENV` | the one of `dw env:use` |

An option comes before a variable, a variable before the profile, the profile before the default. Profiles
are kept in `DW_CONFIG_HOME` (`~/.config/dw`), readable by their owner only. A token is never shown; a
profile names the variable or the file that has it.

## What comes out

Results go to standard output: tables and `name: value` lines, coloured on a terminal unless `NO_COLOR` is
set. `--json` gives the whole answer, `--output jsonl` one record a line. JSON results may have more members
than are listed here, never fewer. Complaints and progress go to standard error, one line that says what to
do; with `--json` a failure is an object on standard output: `error`, `exit_code`, `command`, `namespace`,
`request_id`, `status_code`, `reason`, `validation_errors`, `server_response`, `recommendations`,
`compatibility`.

`--watch` shows a result again whenever it changed, every `--interval` seconds (2), until Ctrl-C; with
`--json` each state is a line. `--timeout` is the longest time for one answer (60 s). Nothing asks a
question where nobody can answer it.
"""
_SHARED: Final = frozenset(
    (
        *("--server", "--env", "--namespace", "--token", "--token-file", "--tls-verify", "--timeout"),
        *("--output", "--json", "--watch", "--interval", "--help"),
    )
)


def document() -> str:
    """The whole page."""
    return "\n".join((_HEAD.rstrip("\n"), *_codes(), *_commands())) + "\n"


def _codes() -> Iterator[str]:
    yield "\n## Exit codes\n\n| code | meaning |\n| --- | --- |"
    for code, meaning in MEANINGS.items():
        yield f"| {int(code)} | {meaning} |"


def _commands() -> Iterator[str]:
    ordered = sorted(load().values(), key=lambda entry: entry.noun)
    for noun, entries in groupby(ordered, key=lambda entry: entry.noun):
        yield f"\n## {noun}"
        for entry in entries:
            yield from _command(entry)


def _command(entry: Command) -> Iterator[str]:
    arguments, options = _split(parameters(entry))
    usage = " ".join(_usage(one) for one in arguments)
    yield f"\n### `{' '.join(filter(None, ('dw', entry.name, usage)))}`\n"
    yield inspect.cleandoc(entry.run.__doc__ or "")
    rows = [(_usage(one), one.help) for one in arguments] + [
        (_option(entry, one), one.help) for one in options
    ]
    if rows:
        yield "\n| argument | meaning |\n| --- | --- |"
        yield from (f"| `{name}` | {_cell(text or '')} |" for name, text in rows)
    yield "\n```console"
    yield from (f"$ {line}" for line in entry.examples)
    yield "```"
    if entry.members:
        yield f"\nJSON: {', '.join(f'`{name}`' for name in entry.members)}" + (
            ". Can be watched." if entry.watch else "."
        )


def _split(found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    arguments = [one for one in found if one.param_type_name == "argument"]
    options = [one for one in found if one.param_type_name == "option" and not _SHARED & set(one.opts)]
    return arguments, options


def _usage(argument: Any) -> str:
    name = str(argument.metavar)
    return name if argument.required else f"[{name}]"


def _option(entry: Command, option: Any) -> str:
    names = ", ".join(sorted((*option.opts, *option.secondary_opts), key=len, reverse=True))
    kinds = _kinds(entry, option.name)
    if bool in kinds:
        return names
    choices = next((kind for kind in kinds if issubclass(kind, Enum)), ())
    return f"{names} {option.metavar or '/'.join(str(choice.value) for choice in choices)}"


def _kinds(entry: Command, name: str) -> list[type]:
    """The types an argument of the command may have: of ``list[str] | None`` only ``str``."""
    wanted = get_args(inspect.signature(entry.run, eval_str=True).parameters[name].annotation)[0]
    either = get_args(wanted) or (wanted,)
    return [kind for one in either for kind in (get_args(one) or (one,)) if kind is not type(None)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page to the file that is named, or to standard output."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(document())
    else:
        sys.stdout.write(document())


if __name__ == "__main__":
    main()
