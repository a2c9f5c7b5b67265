"""Names of scheduled workflows: in the schedule's partition, one per occurrence, always valid."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cluster.ids import partition_of_workflow
from cluster.schedules import names

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)


@given(texts, texts, st.integers(0, 4_000_000_000_000), st.sampled_from([1, 16, 1024]))
def test_a_scheduled_workflow_lives_with_its_schedule(
    namespace: str, schedule_id: str, fire_ms: int, partitions: int
) -> None:
    found = names.workflow_id(namespace, schedule_id, fire_ms, partitions)
    home = names.partition_of_schedule(namespace, schedule_id, partitions)
    assert partition_of_workflow(found, partitions) == home
    assert re.fullmatch(r"[a-zA-Z0-9._:-]{1,128}", found)
    assert names.workflow_id(namespace, schedule_id, fire_ms, partitions) == found


def test_ids_differ_by_namespace_time_and_salt() -> None:
    made = {
        names.workflow_id(namespace, "nightly", fire_ms, 16, salt)
        for namespace in ("a", "b")
        for fire_ms in (1_800_000_000_000, 1_800_000_000_001, 1_800_000_060_000)
        for salt in ("", "backfill")
    }
    assert len(made) == 12
    assert all(name.startswith("nightly-2027") for name in made)


@given(texts, texts)
def test_timers_name_their_schedule(namespace: str, schedule_id: str) -> None:
    for timer in (names.fire_timer(namespace, schedule_id), names.freed_timer(namespace, schedule_id)):
        assert names.parse_timer(timer) == (namespace, schedule_id)
        assert timer.split(" ")[0] in (names.FIRE_TIMER, names.FREED_TIMER)


def test_the_partition_is_written_down() -> None:
    """Never change: schedules would not be found again."""
    found = [names.partition_of_schedule("default", name, 1024) for name in ("nightly", "s1", "ü")]
    assert found == [911, 221, 504]
