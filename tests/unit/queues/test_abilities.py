"""What the partitions are told of a worker's slots."""

from __future__ import annotations

from cluster.queues.abilities import LONGEST, UNKNOWN, abilities
from cluster.queues.stream_workers import FlowSkill, NameKind, Skills, StreamWorker, item


def worker(*declined: str) -> StreamWorker:
    items = {item(NameKind.STEP, "F", name) for name in declined}
    return StreamWorker("ns", "w", declined=items | {item(NameKind.RPC, "F", "look")})


def test_lists_name_their_types_but_for_those_that_were_declined() -> None:
    skills = Skills((FlowSkill("F", frozenset({"a", "b c"})), FlowSkill("ä:", frozenset({"*"}))))
    assert abilities(worker("a"), [skills]) == " %C3%A4%3A:%2A F:b%20c "


def test_without_a_list_it_is_all_types_but_for_those_that_were_declined() -> None:
    listed, all_types = Skills((FlowSkill("F", frozenset({"a"})),)), Skills((FlowSkill("F"),))
    assert abilities(worker("b"), [listed, all_types]) == " !F:b F:* F:a "


def test_slots_that_can_run_nothing_are_no_secret() -> None:
    assert abilities(worker("a"), [Skills((FlowSkill("F", frozenset({"a"})),))]) != UNKNOWN


def test_of_those_with_very_long_lists_nothing_is_said() -> None:
    names = frozenset(f"step-{number}" for number in range(LONGEST // 4))
    assert abilities(worker(), [Skills((FlowSkill("F", names),))]) == UNKNOWN
