"""Memories of all partitions together say the same as each by itself."""

from __future__ import annotations

from cluster.queues.heads import Counts
from cluster.queues.partition_heads import PartitionHeads


def known(count: int = 4) -> PartitionHeads:
    """Heads of which all that is known is that nothing waits."""
    heads = PartitionHeads(count)
    heads.learn_rest(heads.counts.mark(), range(count), {})
    return heads


def test_everything_may_have_work_at_first() -> None:
    assert dict(PartitionHeads(3).ready(())) == {0: 0, 1: 0, 2: 0}
    assert dict(known().ready(())) == {}
    assert known().live == set()


def test_a_reply_speaks_of_the_partitions_it_looked_at() -> None:
    heads = PartitionHeads(4)
    mark = heads.counts.mark()
    heads.learn(1, mark, {"a": 7, "b": 9}, complete=True)
    heads.learn_rest(mark, [0, 1, 2], {1: None})
    assert dict(heads.ready(())) == {1: 7, 3: 0}
    assert dict(heads.ready(("b",))) == {1: 9, 3: 0}
    assert dict(heads.ready(("c",))) == {3: 0}


def test_a_wake_that_came_after_the_question_outlives_the_answer() -> None:
    heads = known()
    mark = heads.counts.mark()
    heads.wake(2, "a", 5)
    heads.learn_rest(mark, range(4), {})
    assert dict(heads.ready(("a",))) == {2: 5}
    heads.learn_rest(heads.counts.mark(), range(4), {})
    assert dict(heads.ready(("a",))) == {}


def test_an_answer_to_a_question_from_before_is_void() -> None:
    """Heads that were forgotten, or looked at for the first time, since the question was sent."""
    heads = known()
    mark = heads.counts.mark()
    heads.forget()
    heads.learn_rest(mark, range(4), {})
    heads.learn(1, mark, {}, complete=True)
    assert heads.live == {0, 1, 2, 3}
    counts = Counts()
    mark = counts.mark()
    later = PartitionHeads(2, counts=counts)
    later.learn_rest(mark, range(2), {})
    assert later.live == {0, 1}


def test_one_mark_is_good_for_heads_that_share_their_counts() -> None:
    counts = Counts()
    one, two = PartitionHeads(2, counts=counts), PartitionHeads(2, counts=counts)
    mark = counts.mark()
    one.wake(0, "a", 3)
    for heads in (one, two):
        heads.learn_rest(mark, range(2), {})
    assert (one.live, two.live) == ({0}, set())
    seen = counts.mark()
    one.wake(1, "a", 4)
    assert two.memories[0].denied_since(seen, "a")
    two.learn(0, seen, {}, complete=True)
    assert not two.memories[0].denied_since(seen, "a")
