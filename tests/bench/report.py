"""The report of a session: tables, charts and goals, written into the documentation between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.figures import Goal

BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"


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

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.blocks.append(table(head, rows))

    def chart(self, name: str, alt: str, svg: str) -> None:
        """Add a chart; ``name`` is the file's, without its ending."""
        self.charts[f"{name}.svg"] = svg
        self.blocks.append(f"![{alt}](pictures/{name}.svg)")

    def markdown(self) -> str:
        parts = [f"### {self.key}: {self.title}", *self.notes, *self.blocks]
        if self.goals:
            parts.append(table(("goal", "measured", ""), [goal.row() for goal in self.goals]))
        return "\n\n".join(parts)


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


def publish(section: Section, document: Path) -> None:
    """Write a section into its place and its charts beside it."""
    text = replace(document.read_text(), section.key, section.markdown())
    pictures = document.parent / "pictures"
    for name, svg in section.charts.items():
        (pictures / name).write_text(svg)
    document.write_text(text)
