"""The table of pages: their names are their addresses below ``console/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodes.console.views import overview, workflows
from nodes.console.visits import Look


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``section`` is the entry of the navigation it belongs to."""

    name: str
    title: str
    template: str
    look: Look
    section: str


_ALL: Final = (
    Page("", "Overview", "overview", overview.overview, ""),
    Page("workflows", "Workflows", "workflows", workflows.workflows, "workflows"),
)
PAGES: Final[Mapping[str, Page]] = {page.name: page for page in _ALL}
SECTIONS: Final = tuple(page for page in _ALL if page.name == page.section)
"""What the navigation shows."""
