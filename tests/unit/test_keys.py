"""Key names: every key parses back, and no two tuples of names share one."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from cluster.store.keys import CLUSTER_SLOTS, Keys, QueueName, decode, encode, partition_tag

KEYS = Keys("hr1", 16)
NASTY = [
    "",
    ":",
    "{",
    "}",
    "{}",
    "*",
    "\0",
    "%",
    "%3A",
    "a:b",
    "a%3Ab",
    "\u0430",  # looks like a
    "a",
    "\uff41",  # full-width a
    "..",
    " ",
    "\n",
    "\u00e9",  # é composed
    "e\u0301",  # é decomposed
]
names = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
partitions = st.integers(0, KEYS.partitions - 1)
queues = st.builds(QueueName, st.sampled_from("wast"), names, names, names)

# Every builder that takes names, as (family, what parse returns after it).
Built = tuple[str, tuple[str, ...]]


@st.composite
def built(draw: st.DrawFn) -> Built:
    """A key and the tuple of names that made it."""
    partition, name, queue = draw(partitions), draw(names), draw(queues)
    tag = partition_tag(partition, KEYS.partitions)
    queue_parts = (queue.kind, queue.namespace, queue.queue, queue.marker)
    choices: list[Built] = [
        (KEYS.workflow(partition, name), (tag, "wf", name)),
        (KEYS.runs(partition, name), (tag, "runs", name)),
        (KEYS.closed(partition, name), (tag, "closed", name)),
        (KEYS.flow(partition, name, queue.queue), (tag, "fl", name, queue.queue)),
        (KEYS.flows(partition, name), (tag, "flows", name)),
        (KEYS.closed_flows(partition, name), (tag, "fclosed", name)),
        (KEYS.channel(partition, "run", name), (tag, "ch", "run", name)),
        (KEYS.heads(partition, queue), (tag, "h", *queue_parts)),
        (KEYS.stream(partition, queue, name), (tag, "q", *queue_parts, name)),
        (KEYS.back(partition, queue, name), (tag, "b", *queue_parts, name)),
        (KEYS.cursors(partition), (tag, "cur")),
        (KEYS.registrations(name), (f"w.{encode(name)}", "reg")),
        (KEYS.heartbeats(name), (f"w.{encode(name)}", "beat")),
        (KEYS.vitals(name), (f"w.{encode(name)}", "vital")),
        (KEYS.fleet(name, queue.queue), (f"w.{encode(name)}", "fleet", queue.queue)),
        (KEYS.cohorts(name), (f"w.{encode(name)}", "cohort")),
        (KEYS.draining(name), (f"w.{encode(name)}", "drain")),
        (
            KEYS.pending_queries(name, queue.queue),
            (f"q:{encode(name)}:{encode(queue.queue)}", "pending"),
        ),
        (KEYS.failing(partition, name), (tag, "failing", name)),
        (KEYS.archived(partition, name), (tag, "archived", name)),
        (KEYS.turn("retention", name), ("", "turn", "retention", name)),
        (KEYS.namespaces(), ("sys", "ns")),
    ]
    return draw(st.sampled_from(choices))


@given(built())
def test_every_key_parses_back_into_its_names(item: Built) -> None:
    key, parts = item
    assert KEYS.parse(key) == parts


@given(built(), built())
def test_no_two_tuples_share_a_key(one: Built, other: Built) -> None:
    assert (one[0] == other[0]) == (one[1] == other[1])


@given(names)
@example("{}:*\0")
def test_an_encoded_name_is_injective_and_harmless(name: str) -> None:
    part = encode(name)
    assert decode(part) == name
    assert re.fullmatch(r"[A-Za-z0-9%._~-]*", part)


@given(partitions, queues, names)
def test_names_cannot_move_a_key_to_another_slot(partition: int, queue: QueueName, name: str) -> None:
    home = key_slot(KEYS.touch(partition).encode())
    for key in (
        KEYS.workflow(partition, name),
        KEYS.stream(partition, queue, name),
        KEYS.heads(partition, queue),
    ):
        assert key_slot(key.encode()) == home


@given(queues)
def test_queue_names_parse_back(queue: QueueName) -> None:
    assert QueueName.parse(queue.encode()) == queue


@pytest.mark.parametrize("count", [1, 2, 3, 16, 48, 1024])
def test_partitions_spread_evenly_over_the_slots(count: int) -> None:
    slots = [key_slot(partition_tag(partition, count).encode()) for partition in range(count)]
    shares = [slot * count // CLUSTER_SLOTS for slot in slots]
    assert sorted(shares) == list(range(count))


@pytest.mark.parametrize("key", ["", "hr1", "hr1:", "hr2:{sys}:ns", "other"])
def test_foreign_keys_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        KEYS.parse(key)
