"""The reference of ``dw`` is up to date, and its words are the server's."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from cluster.fleet import WorkerStatus
from cluster.flows.machine import StopType
from cluster.flows.starts import IdReuse
from cluster.search_attributes import AttributeType
from nodes.api.standalone import ActivityStatus
from nodes.cli.dw import choices
from nodes.cli.dw.reference import document
from nodes.cli.dw.server import within

PAGE = Path(__file__).parents[2] / "docs/dw.md"


def test_the_reference_is_what_the_commands_say() -> None:
    assert PAGE.read_text() == document(), "run python -m nodes.cli.dw.reference docs/dw.md"


@pytest.mark.parametrize("theirs", [WorkerStatus, AttributeType, ActivityStatus, StopType, IdReuse])
def test_words_to_choose_from_are_the_server_s(theirs: type[StrEnum]) -> None:
    ours: type[StrEnum] = getattr(choices, theirs.__name__)
    assert {word.value for word in ours} == {word.value for word in theirs}


@pytest.mark.parametrize(
    ("version", "ranges", "expected"),
    [
        ("0.1.0", ">=0.1,<1.0", True),
        ("0.1", ">=0.1.0,<1.0", True),
        ("1.0.0", ">=0.1,<1.0", False),
        ("1.0.1", "<=1.0", False),
        ("0.9", ">0.9", False),
        ("0.9.1", ">0.9", True),
        ("2.0", "==2", True),
        ("2.0", "anything", True),
        ("0.1.0.dev3", ">=0.1", True),
    ],
)
def test_versions_in_ranges(version: str, ranges: str, *, expected: bool) -> None:
    assert within(version, ranges) is expected
