"""How the programs end: what a run that broke something wrote is there to be read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.programs import run_program


@pytest.mark.parametrize("broken", [[], ["a promise"]])
def test_records_are_kept_when_something_was_broken(
    broken: Sequence[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main(_options: argparse.Namespace, directory: Path) -> Sequence[object]:
        (directory / "records").write_text("what happened")
        return broken

    assert run_program(argparse.ArgumentParser(), main, []) == len(broken)
    kept = [path.read_text() for path in tmp_path.glob("*/records")]
    assert kept == ["what happened"] * len(broken)
    assert ("logs and records are in" in capsys.readouterr().out) == bool(broken)


def test_records_of_a_program_that_fails_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main(_options: argparse.Namespace, _directory: Path) -> Sequence[object]:
        raise OSError("no server")

    with pytest.raises(OSError, match="no server"):
        run_program(argparse.ArgumentParser(), main, [])
    (kept,) = tmp_path.iterdir()
    assert str(kept) in capsys.readouterr().out


def test_records_that_were_asked_for_are_kept(tmp_path: Path) -> None:
    async def main(_options: argparse.Namespace, directory: Path) -> Sequence[object]:
        (directory / "records").write_text("what happened")
        return []

    assert run_program(argparse.ArgumentParser(), main, ["--keep", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here/records").exists()
