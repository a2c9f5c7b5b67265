"""The bench's own arithmetic, charts and report; nothing here takes a time."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench.charts import Bar, bar_chart
from tests.bench.figures import cell, noted, percentile, ratio, spread
from tests.bench.measuring import (
    Usage,
    cpu_seconds,
    resident_bytes,
    stat_cpu_seconds,
    tree,
    tree_cpu_seconds,
    usage,
)
from tests.bench.peers import environments
from tests.bench.peers.catalogue import QUEUES, WORKFLOWS, chosen, named
from tests.bench.peers.environments import NotInstalled, install, place
from tests.bench.peers.peer import PROGRAMS, Peer
from tests.bench.workloads.drains import Drained, goals

EVERYTHING = (*QUEUES, *WORKFLOWS)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile([7.0], 0.99) == 7
    assert percentile([1.0, 2.0], 0) == 1


def test_medians_and_ranges() -> None:
    assert cell([3.0, 1.0, 2000.0]) == "3 (1 to 2,000)"
    assert cell([1.25], 1) == "1.2"
    assert cell([]) == "-"
    assert spread([1.0, 2.0, 4.0], "s", 1) == "2.0 s (min 1.0, max 4.0, 3 runs)"


def test_a_ratio_compares_runs_that_followed_each_other() -> None:
    assert ratio([10, 20, 90], [10, 10, 30]) == 2
    assert ratio([10, 20, 90], [10, 20]) == 1


def test_usage_counts_between_two_moments_and_for_each_task() -> None:
    used = Usage(3, 2, 1, 40, 100, 1000) - Usage(1, 1, 1, 20, 0, 0)
    assert used.per(10) == Usage(0.2, 0.1, 0.0, 2, 10, 100)
    assert used.cpu == 3


def test_a_process_name_may_hold_anything() -> None:
    rest = " ".join(["S", "1", *["0"] * 9, str(3 * os.sysconf("SC_CLK_TCK")), "0", "0"])
    assert stat_cpu_seconds(f"7 (a) b (c)) {rest}") == 3


def test_processes_are_found_with_what_descends_from_them() -> None:
    program = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        family = tree(parent.pid)
        assert family[0] == parent.pid
        assert len(family) == 2
        assert resident_bytes(family[1]) > 1_000_000
        assert usage(None, [parent.pid]).server == pytest.approx(sum(map(cpu_seconds, family)), abs=0.1)
        parent.communicate(b"\n")
    assert tree(parent.pid) == []


def test_cpu_of_children_that_have_ended_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.6: pass"
    program = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]);"
        "print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert tree(parent.pid) == [parent.pid]
        assert tree_cpu_seconds(parent.pid) >= 0.5  # the system counts in hundredths
        parent.communicate(b"\n")


def test_notes_of_several_processes_are_read_up_to_the_last_whole_one(tmp_path: Path) -> None:
    assert noted(tmp_path / "missing") == []
    notes = tmp_path / "notes"
    notes.write_bytes(struct.pack("<dd", 0.5, 1.5) + b"torn")
    assert noted(notes) == [0.5, 1.5]


def test_programs_note_how_late_their_tasks_are(tmp_path: Path) -> None:
    program = "from noting import note, paced\nfor due in paced(1000, 5): note(due - 1)"
    environ = {"BENCH_NOTES": str(tmp_path / "notes"), "PYTHONPATH": str(PROGRAMS)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    late = noted(tmp_path / "notes")
    assert len(late) == 5
    assert min(late) >= 1


def test_programs_of_engines_say_how_long_a_closed_loop_took_and_its_cpu() -> None:
    program = (
        "import asyncio, noting\nran = []\nasync def one(): ran.append(1)\n"
        "asyncio.run(noting.closed_loop(one, 3, 10))\nassert len(ran) == 10"
    )
    environ = {"PYTHONPATH": str(PROGRAMS)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, check=True, capture_output=True, text=True
    )
    seconds, used = map(float, done.stdout.split())
    assert seconds > 0
    assert used >= 0


def test_a_chart_is_valid_and_says_what_it_shows() -> None:
    svg = bar_chart("A < B", "ms", [Bar("x & y", 5, 4, 10, True), Bar("z", 2.5, 2.5, 2.5)], 1)
    root = ElementTree.fromstring(svg)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"A < B", "x & y", "z", "5.0", "2.5"} <= set(texts)
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[0] == pytest.approx(2 * widths[1])


@pytest.mark.parametrize("bars", [[], [Bar("x", 1, -1, 2)]])
def test_a_chart_without_bars_or_below_zero_is_refused(bars: list[Bar]) -> None:
    with pytest.raises(ValueError, match="chart"):
        bar_chart("t", "u", bars)


def test_a_chart_of_nothing_but_zeros_is_drawn() -> None:
    ElementTree.fromstring(bar_chart("t", "u", [Bar("x", 0, 0, 0)]))


def test_goals_compare_steps_with_each_peer() -> None:
    found = {
        "steps": Drained(rates=[3000, 3300]),
        "dramatiq": Drained(rates=[1000, 1000]),
        "celery": Drained(rates=[1000, 1000]),
    }
    assert [(goal.text, goal.reached, goal.measured) for goal in goals(found)][:4] == [
        ("Steps at least 3 x dramatiq", True, "3.15 x"),
        ("Steps at least 3 x taskiq", None, "-"),
        ("Steps at least 6 x celery", False, "3.15 x"),
        ("Steps at least 0.5 x bullmq", None, "-"),
    ]


def test_peers_are_chosen_by_name_and_ours_are_among_them() -> None:
    ours = [peer.name for peer in QUEUES if peer.headrace]
    assert [peer.name for peer in chosen("")] == [peer.name for peer in QUEUES]
    assert [peer.name for peer in chosen("celery, dramatiq")] == [*ours, "dramatiq", "celery"]
    assert [peer.name for peer in chosen("steps,celery")] == ["steps", "celery"]
    with pytest.raises(ValueError, match="nobody"):
        chosen("celery,nobody")


@pytest.mark.parametrize("peer", EVERYTHING, ids=lambda peer: peer.name)
def test_every_peer_is_pinned_and_its_programs_are_there(peer: Peer) -> None:
    assert named(peer.name) is peer
    assert all("==" in requirement for requirement in peer.requirements)
    assert all("@" in package[1:] for package in peer.packages)
    assert 0 < peer.share <= 1
    known = {"bin": "", "python": "", "programs": str(PROGRAMS), "BENCH_SERVICE": "127.0.0.1:1"}
    for line in (peer.sender, peer.worker):
        for part in (part.format(**known) for part in line):
            assert not part.startswith(str(PROGRAMS)) or Path(part).exists()


def test_an_environment_is_named_after_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BENCH_CACHE", str(tmp_path))
    one, other = (Peer("p", "P", (), (), packages=(f"p@{version}",)) for version in "12")
    assert place(one).parent == tmp_path
    assert place(one) != place(other)
    place(one).mkdir()
    (place(one) / ".ready").touch()
    assert install(one) == place(one)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match="npm"):
        install(other)


def test_an_environment_that_cannot_be_made_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BENCH_CACHE", str(tmp_path / "cache"))
    calls = tmp_path / "calls"
    need = tmp_path / "need"
    need.write_text(f'#!/bin/sh\necho "$@" >>{calls}\necho there is >&2\necho no such package >&2\nexit 1\n')
    need.chmod(0o755)
    monkeypatch.setattr(environments, "_NEED", need)
    peer = Peer("p", "P", (), (), debian=("a", "b"))
    for _ in range(2):
        with pytest.raises(NotInstalled, match="need failed: no such package"):
            install(peer)
    assert calls.read_text() == "a b\n"
    assert peer.version == "a, b"
