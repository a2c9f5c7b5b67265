"""Every example in the help of ``dw`` works on a real node, and JSON results have what they promise."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from nodes.cli.dw.command import Command
from nodes.cli.dw.failures import ExitCode
from nodes.cli.dw.program import load
from tests.e2e.dw.world import World

COMMANDS = load()
EXAMPLES = [(entry, line) for entry in COMMANDS.values() for line in entry.examples]
NEWER = {
    "namespace:delete",
    "namespace:set-storage-driver",
    "storage:test",
    "task-queue:promote",
    "bridge:webhook",
}
"""Commands for features that a server need not have; it says so then."""
_ELSEWHERE = ("--output", "--follow", "-o")
UNRUN = {"server:start-dev"}
"""Never end by themselves; tested as processes."""


def _id(value: Any) -> str:
    return value.name if isinstance(value, Command) else str(value)[:60]


def _answers_in_one_document(line: str) -> bool:
    """What follows or watches writes lines, and what names a file writes there."""
    return not (line.startswith("dw watch") or any(f" {word} " in f"{line} " for word in _ELSEWHERE))


def _cases(*, as_json: bool) -> list[Any]:
    return [
        pytest.param(entry, line, id=_id(line))
        for entry, line in EXAMPLES
        if entry.name not in UNRUN
        and not (as_json and not (entry.members and _answers_in_one_document(line)))
    ]


def _run(
    world: World, monkeypatch: pytest.MonkeyPatch, entry: Command, line: str, *more: str
) -> tuple[int, str]:
    line = world.own(line)
    assert "$" not in line.replace("$PROD_TOKEN", "")
    fed = world.fed(line)
    monkeypatch.setattr("sys.stdin", io.StringIO(fed))
    return world.run(line, *more), line


def _check(code: int, entry: Command, out: pytest.CaptureFixture[str]) -> str | None:
    shown = out.readouterr()
    if entry.name in NEWER and code:
        assert code in (ExitCode.REFUSED, ExitCode.NOT_FOUND), shown
        assert "Traceback" not in shown.err
        return None
    assert code == 0, shown
    assert shown.err == ""
    return shown.out


@pytest.mark.parametrize(("entry", "line"), _cases(as_json=False))
def test_an_example_works(
    world: World,
    entry: Command,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _ = _run(world, monkeypatch, entry, line)

    out = _check(code, entry, capsys)

    assert out is None or out.strip()


@pytest.mark.parametrize(("entry", "line"), _cases(as_json=True))
def test_its_json_has_what_it_promises(
    world: World,
    entry: Command,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _ = _run(world, monkeypatch, entry, line, "--json")

    out = _check(code, entry, capsys)
    if out is not None:
        document = json.loads(out)
        assert set(entry.members) <= document.keys()


def test_every_command_has_examples_and_says_what_it_does() -> None:
    for entry in COMMANDS.values():
        assert entry.examples, entry.name
        assert all(f"dw {entry.name}" in line for line in entry.examples), entry.name
        assert entry.summary, entry.name
