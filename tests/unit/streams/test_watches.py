"""What a node remembers of heads over partitions: W3 for slots."""

from __future__ import annotations

from cluster.queues.watches import Watch
from cluster.store.keys import QueueName

QUEUE = QueueName("s", "ns", "F")


def learn(watch: Watch, partition: int, heads: dict[str, int | None], complete: bool = True) -> None:
    watch.learn(partition, watch.counts.mark(), heads, complete=complete)


def test_everything_may_have_work_at_first() -> None:
    watch = Watch(3, QUEUE)
    assert (
        dict(watch.oldest(None, frozenset()))
        == dict(watch.oldest(frozenset("a"), frozenset()))
        == {
            0: 0,
            1: 0,
            2: 0,
        }
    )


def test_only_partitions_with_work_are_live() -> None:
    watch = Watch(3, QUEUE)
    learn(watch, 0, {})
    learn(watch, 1, {"a": 5, "b": 3})
    learn(watch, 2, {"a": None})
    assert watch.live == {1}
    assert dict(watch.oldest(frozenset("a"), frozenset())) == {1: 5}
    assert dict(watch.oldest(None, frozenset("b"))) == {1: 5}
    assert dict(watch.oldest(frozenset("a"), frozenset("a"))) == {}
    assert dict(watch.oldest(None, frozenset("ab"))) == {}


def test_a_wake_brings_a_partition_to_life() -> None:
    watch = Watch(2, QUEUE)
    for partition in range(2):
        learn(watch, partition, {})
    watch.wake(1, "a", 7)
    assert dict(watch.oldest(None, frozenset())) == {1: 7}
    watch.forget()
    assert watch.live == {0, 1}


def test_a_reply_that_was_asked_for_before_the_wake_does_not_hide_it() -> None:
    watch = Watch(1, QUEUE)
    mark = watch.counts.mark()
    watch.wake(0, "a", 7)
    watch.learn(0, mark, {}, complete=True)
    assert dict(watch.oldest(None, frozenset())) == {0: 7}


def test_types_beyond_those_read_may_have_work() -> None:
    watch = Watch(1, QUEUE)
    learn(watch, 0, {"a": None}, complete=False)
    assert dict(watch.oldest(frozenset("a"), frozenset())) == {}
    assert dict(watch.oldest(frozenset("z"), frozenset())) == {0: 0}
    assert dict(watch.oldest(None, frozenset("a"))) == {0: 0}


def test_older_work_is_known_only_where_it_was_seen() -> None:
    watch = Watch(2, QUEUE)
    assert not watch.has_older("a", 10)
    learn(watch, 0, {"a": 5})
    assert watch.has_older("a", 5)
    assert not watch.has_older("a", 4)
    assert not watch.has_older("b", 10)
