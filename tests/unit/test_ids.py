"""Run ids carry their partition."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from cluster.ids import MAX_PARTITIONS, new_run_id, partition_of_run


@given(st.integers(0, MAX_PARTITIONS - 1), st.integers(0, (1 << 48) - 1), st.integers())
def test_the_partition_is_read_back(partition: int, now_ms: int, seed: int) -> None:
    run_id = new_run_id(partition, now_ms, Random(seed))
    assert partition_of_run(run_id) == partition
    assert partition_of_run(run_id) == int(ULID.from_str(run_id)) % MAX_PARTITIONS


@pytest.mark.parametrize("text", ["", "x", "U" * 26, "0" * 25, "0" * 27, "é" * 26, "0" * 25 + "\n"])
def test_other_texts_have_none(text: str) -> None:
    assert partition_of_run(text) is None
