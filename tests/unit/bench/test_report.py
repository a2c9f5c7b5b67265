"""The bench's report: tables, what did not run, the goals of all workloads, the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.__main__ import WORKLOADS
from tests.bench.figures import Goal
from tests.bench.report import GOALS, NothingMeasured, Section, brief, publish, reached_goals, replace, table

DOCUMENT = Path(__file__).parents[3] / "docs/benchmarks.md"
MARKS = "".join(f"<!-- begin: {key} -->\nold\n<!-- end: {key} -->\n" for key in (GOALS, "W1", "W2"))


def test_tables_are_as_wide_as_their_head() -> None:
    assert table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    with pytest.raises(ValueError, match="wide"):
        table(("a", "b"), [["1"]])


def test_what_did_not_run_stands_in_the_table_with_its_reason() -> None:
    section = Section("W1", "title", absent={"A queue": "npm failed: no such package"})
    section.table(("system", "rate", "CPU"), [["ours", "1", "2"]])
    assert section.blocks == [
        "| system | rate | CPU |\n| --- | --- | --- |\n| ours | 1 | 2 |\n"
        "| A queue | not run: npm failed: no such package |  |"
    ]


def test_a_table_of_nothing_is_refused_so_that_an_older_one_stays() -> None:
    section = Section("W1", "title", absent={"A queue": "it stalled"})
    with pytest.raises(NothingMeasured, match="it stalled"):
        section.table(("system", "rate"), [])


def test_a_reason_fits_into_a_cell() -> None:
    assert brief(ValueError("a | b\n  c.")) == "a / b c"
    assert brief(ValueError("it ended:\nin x\nin y\n\nKeyError: 1\n")) == "it ended: ... KeyError: 1"
    assert brief(TimeoutError()) == "TimeoutError"
    assert len(brief(ValueError("x" * 1000))) < 200
    assert brief(ExceptionGroup("several", [OSError("the first"), OSError("the second")])) == "the first"


def test_a_section_replaces_its_own_place_only(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    (tmp_path / "pictures").mkdir()
    document.write_text(f"before\n{MARKS}after\n")
    section = Section("W1", "title", goals=[Goal("fast", False, "0.5 x")])
    section.chart("one", "what it shows", "<svg/>")
    for _ in range(2):
        publish(section, document)
    text = document.read_text()
    assert text.startswith(f"before\n<!-- begin: {GOALS} -->\n\n| workload | goal |")
    assert "![what it shows](pictures/one.svg)" in text
    assert "\n| fast | 0.5 x | **not reached** |" in text
    assert text.endswith("<!-- begin: W2 -->\nold\n<!-- end: W2 -->\nafter\n")
    assert text.count("old") == 1
    assert text.count("### W1") == 1
    assert (tmp_path / "pictures/one.svg").read_text() == "<svg/>"
    with pytest.raises(ValueError, match="W3"):
        replace(text, "W3", "x")


def test_goals_of_all_workloads_are_those_of_their_tables(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(MARKS)
    first = Section("W1", "one", goals=[Goal("fast", True, "3 x"), Goal("small", None, "-")])
    publish(first, document)
    publish(Section("W2", "two", goals=[Goal("late", False, "5 ms")]), document)
    publish(Section("W1", "one", goals=[Goal("fast", False, "1 x")]), document)
    assert reached_goals(document.read_text()).splitlines()[2:] == [
        "| W1 | fast | 1 x | **not reached** |",
        "| W2 | late | 5 ms | **not reached** |",
    ]
    assert reached_goals(document.read_text()) in document.read_text()


def test_the_document_has_a_place_for_every_workload() -> None:
    document = DOCUMENT.read_text()
    for key in (*WORKLOADS, GOALS):
        replace(document, key, "")


def test_the_document_says_of_goals_what_its_tables_say() -> None:
    document = DOCUMENT.read_text()
    assert document == replace(document, GOALS, reached_goals(document))
