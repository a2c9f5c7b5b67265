"""The report of a session: tables, charts and goals, written into the documentation between marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.figures import Goal

BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"
GOALS = "goals"
"""Marks the place of the goals of all workloads."""
_GOAL_HEAD = ("goal", "measured", "")
_BRIEF = 140


@dataclass
class Section:
    """What one workload found."""

    key: str
    """``W1`` and so on; marks its place in the document."""
    title: str
    notes: list[str] = field(default_factory=list)
    """Sentences under the title: sizes, settings, what is not comparable."""
    blocks: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    charts: dict[str, str] = field(default_factory=dict)
    """File name to SVG document."""
    absent: dict[str, str] = field(default_factory=dict)
    """Title of each system that did not run, or not to its end, and why."""

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; what did not run stands at its end. Raises NothingMeasured without rows."""
        if not rows:
            raise NothingMeasured("; ".join([*self.absent.values(), *self.notes]))
        empty = [""] * (len(head) - 2)
        missing = [[title, f"not run: {why}", *empty] for title, why in self.absent.items()]
        self.blocks.append(table(head, [*rows, *missing]))

    def chart(self, name: str, alt: str, svg: str) -> None:
        """Add a chart; ``name`` is the file's, without its ending."""
        self.charts[f"{name}.svg"] = svg
        self.blocks.append(f"![{alt}](pictures/{name}.svg)")

    def markdown(self) -> str:
        parts = [f"### {self.key}: {self.title}", *self.notes, *self.blocks]
        if self.goals:
            parts.append(table(_GOAL_HEAD, [goal.row() for goal in self.goals]))
        return "\n\n".join(parts)


class NothingMeasured(Exception):
    """A workload without one whole run; the text says why. What was published of it earlier stays."""


def brief(error: BaseException) -> str:
    """What happened, short and on one line, for a cell of a table."""
    if isinstance(error, BaseExceptionGroup):
        return brief(error.exceptions[0])
    lines = [line for line in str(error).replace("|", "/").splitlines() if line.strip()]
    told = lines if len(lines) < 3 else [lines[0], "...", lines[-1]]
    text = " ".join(" ".join(told).split()).rstrip(".") or type(error).__name__
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}..."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table. Raises ValueError when a row has another width than the head."""
    if any(len(row) != len(head) for row in rows):
        raise ValueError("a row is not as wide as the head")
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replace(document: str, key: str, text: str) -> str:
    """``document`` with ``text`` between the marks of ``key``. Raises ValueError without the marks."""
    begin, end = BEGIN.format(key), END.format(key)
    before, found, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the document has no marks for {key}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def reached_goals(document: str) -> str:
    """One table of the goals of all workloads, read from their published tables, so that it cannot differ."""
    rows = []
    for number in range(1, 10):
        key = f"W{number}"
        part = document.partition(BEGIN.format(key))[2].partition(END.format(key))[0]
        goals = part.partition(table(_GOAL_HEAD, []))[2].strip().splitlines()
        rows += [[key, *(cell.strip() for cell in line.strip("|").split("|"))] for line in goals]
    return table(("workload", *_GOAL_HEAD), rows)


def publish(section: Section, document: Path) -> None:
    """Write a section into its place, its charts beside it, and the goals of all workloads anew."""
    text = replace(document.read_text(), section.key, section.markdown())
    pictures = document.parent / "pictures"
    for name, svg in section.charts.items():
        (pictures / name).write_text(svg)
    document.write_text(replace(text, GOALS, reached_goals(text)))
