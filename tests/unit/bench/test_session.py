"""A bench session: time limits, failures that stop nothing else, processes that end; nothing takes a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.bench import __main__ as program
from tests.bench.__main__ import WORKLOADS, Workload, measure
from tests.bench.peers.catalogue import WORKFLOWS
from tests.bench.peers.engines import SERVERS, newest
from tests.bench.peers.environments import NotInstalled
from tests.bench.processes import ended, last_words, started
from tests.bench.report import GOALS, Section
from tests.bench.session import Session
from tests.waiting import eventually


def session(tmp_path: Path, seconds: float = 10.0) -> Session:
    return Session((), tmp_path, 100, 2, 100, frozenset(), seconds)


async def test_a_workload_is_cut_at_its_time_limit(tmp_path: Path, autojump_clock: MockClock) -> None:
    section = Section("W1", "title")
    done = []
    with session(tmp_path, 90).measuring(section):
        for number in range(10):
            done.append(number)
            await trio.sleep(40)
    assert done == [0, 1, 2]
    assert section.notes == ["**Cut at its time limit** of 1.5 minutes. There are fewer runs."]


async def test_a_failure_ends_a_workload_but_keeps_what_it_has(tmp_path: Path) -> None:
    section = Section("W1", "title")
    with session(tmp_path).measuring(section):
        raise AssertionError("the node closed the connection")
    assert section.notes == [
        "**Cut short by a failure**: the node closed the connection. There are fewer runs."
    ]


async def test_a_workload_that_ends_in_time_says_nothing(tmp_path: Path) -> None:
    section = Section("W1", "title")
    with session(tmp_path).measuring(section):
        await trio.lowlevel.checkpoint()
    assert section.notes == []


def test_each_workload_has_its_part_of_the_budget_and_a_failing_one_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "benchmarks.md"
    marks = (GOALS, "W1", "W2", "W3")
    document.write_text("".join(f"<!-- begin: {key} -->\nold\n<!-- end: {key} -->\n" for key in marks))
    limits = {}

    def workload(key: str, weight: float, fails: bool = False) -> Workload:
        async def run(asked: Session) -> Section:
            limits[key] = round(asked.seconds)
            assert not fails, "it fails"
            return Section(key, f"new, {asked.runs} runs")

        return Workload(run, 3, weight)

    known = {"W1": workload("W1", 1), "W2": workload("W2", 2, fails=True), "W3": workload("W3", 1)}
    monkeypatch.setattr(program, "WORKLOADS", known)
    assert measure(list(known), session(tmp_path), 4000, document) == ["W2"]
    assert limits == {"W1": 1000, "W2": 2667, "W3": 4000}
    text = document.read_text()
    assert "### W1: new, 2 runs" in text
    assert "### W3: new, 2 runs" in text
    assert "<!-- begin: W2 -->\nold\n" in text


def test_the_most_important_workloads_come_first() -> None:
    assert list(WORKLOADS) == ["W1", "W5", "W2", "W7", "W8", "W6", "W3", "W4"]


def test_every_engine_that_is_not_ours_has_a_server() -> None:
    assert set(SERVERS) == {peer.name for peer in WORKFLOWS if not peer.headrace}


def test_the_newest_version_of_a_server_is_taken(tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match="PostgreSQL"):
        newest(tmp_path)
    for version in ("9", "15", "common"):
        (tmp_path / version / "bin").mkdir(parents=True)
    assert newest(tmp_path) == tmp_path / "15/bin"


async def test_a_process_group_ends_with_its_block(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    words = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = started([sys.executable, "-c", words], log, os.environ)
    with ended(process):
        await eventually(lambda: log.read_text().endswith("\n"))
    assert process.poll() == -signal.SIGTERM
    await eventually(lambda: not runs(int(log.read_text())))


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        started(["/nowhere/at-all"], tmp_path / "log", {})


def test_the_last_words_are_the_last_line_that_says_something() -> None:
    assert last_words("one\n  two\n \n") == "two"
    assert last_words("") == "it said nothing"


def test_the_bench_refuses_what_it_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--workloads", "W1,W9"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such workload: W9" in done.stderr
