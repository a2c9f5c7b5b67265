"""W3: the memory may believe in work that is gone, never in absence of work that is there."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.queues.heads import HeadMemory, Mark

TYPES = ("a", "b")


@dataclass
class World:
    """A store with heads, one node's memory of them, and what travels between the two.

    Replies and wakes arrive in any order. What is lost is made good by a reconnect only.
    """

    memory: HeadMemory = field(default_factory=HeadMemory)
    heads: dict[str, int] = field(default_factory=dict)
    sent: list[Mark] = field(default_factory=list)
    replies: list[tuple[Mark, dict[str, int | None], bool]] = field(default_factory=list)
    wakes: list[tuple[str, int]] = field(default_factory=list)

    def add(self, type_part: str, ready_ms: int) -> None:
        old = self.heads.get(type_part)
        if old is None or ready_ms < old:
            self.heads[type_part] = ready_ms
            self.wakes.append((type_part, ready_ms))

    def take(self, type_part: str, following: int | None) -> None:
        """Somebody takes the oldest work; what follows is younger, so no wake."""
        old = self.heads.pop(type_part)
        if following is not None and following > old:
            self.heads[type_part] = following

    def send(self) -> None:
        self.sent.append(self.memory.mark())

    def execute(self, index: int, *, asked: tuple[str, ...] | None = None) -> None:
        """The store answers with all heads, or with the oldest and those of ``asked``."""
        mark = self.sent.pop(index)
        shown: dict[str, int | None] = dict(self.heads)
        if asked is not None:
            oldest = min(self.heads, key=lambda name: self.heads[name], default=None)
            shown = {name: self.heads[name] for name in self.heads if name == oldest}
            shown |= {name: self.heads.get(name) for name in asked}
        self.replies.append((mark, shown, asked is None))

    def reply(self, index: int) -> None:
        mark, heads, complete = self.replies.pop(index)
        self.memory.learn(mark, heads, complete=complete)

    def wake(self, index: int) -> None:
        self.memory.wake(*self.wakes.pop(index))

    def reconnect(self) -> None:
        self.wakes.clear()
        self.memory.forget()

    def check(self) -> None:
        for name, ready_ms in self.heads.items():
            if any(woken == name and at <= ready_ms for woken, at in self.wakes):
                continue
            believed = self.memory.oldest([name])
            assert believed is not None, f"work of {name} is denied"
            assert believed <= ready_ms
            anything = self.memory.oldest(())
            assert anything is not None
            assert anything <= ready_ms


def test_nothing_is_known_at_first() -> None:
    memory = HeadMemory()
    assert memory.oldest(()) == 0
    assert memory.oldest(["a"]) == 0


def test_a_complete_reply_denies_what_it_does_not_name() -> None:
    memory = HeadMemory()
    memory.learn(memory.mark(), {"a": 5, "b": 3}, complete=True)
    assert memory.oldest(()) == 3
    assert memory.oldest(["a"]) == 5
    assert memory.oldest(["c"]) is None
    assert memory.oldest(["c", "a"]) == 5


def test_an_incomplete_reply_denies_only_what_it_names_as_gone() -> None:
    memory = HeadMemory()
    memory.learn(memory.mark(), {"a": 5, "c": None}, complete=False)
    assert memory.oldest(()) == 0
    assert memory.oldest(["a"]) == 5
    assert memory.oldest(["c"]) is None
    assert memory.oldest(["a", "d"]) == 0


def test_a_wake_outlives_an_answer_that_was_asked_for_before() -> None:
    memory = HeadMemory()
    mark = memory.mark()
    memory.wake("a", 7)
    memory.learn(mark, {}, complete=True)
    assert memory.oldest(["a"]) == 7
    memory.learn(memory.mark(), {}, complete=True)
    assert memory.oldest(["a"]) is None


def test_an_answer_that_was_overtaken_is_ignored() -> None:
    memory = HeadMemory()
    early = memory.mark()
    memory.wake("a", 7)
    memory.learn(memory.mark(), {"a": 7}, complete=True)
    memory.learn(early, {}, complete=True)
    assert memory.oldest(["a"]) == 7


def test_an_answer_from_before_a_reconnect_is_ignored() -> None:
    memory = HeadMemory()
    mark = memory.mark()
    memory.forget()
    memory.learn(mark, {}, complete=True)
    assert memory.oldest(["a"]) == 0


def test_denial_counts_only_when_nothing_happened_since() -> None:
    memory = HeadMemory()
    assert not memory.denied_since(memory.mark(), "a")
    memory.learn(memory.mark(), {"b": 1}, complete=True)
    mark = memory.mark()
    assert memory.denied_since(mark, "a")
    assert not memory.denied_since(mark, "b")
    memory.learn(memory.mark(), {}, complete=True)
    assert not memory.denied_since(mark, "a")


def steps(world: World) -> list[tuple[object, ...]]:
    """Everything that can happen next in a world of one type and at most two of each thing."""
    possible: list[tuple[object, ...]] = []
    if len(world.wakes) < 2:
        possible += [("add", "a", ready_ms) for ready_ms in (1, 2)]
    if "a" in world.heads:
        possible += [("take", "a", None), ("take", "a", 2)]
    if len(world.sent) + len(world.replies) < 2:
        possible.append(("send",))
    possible += [("execute", index) for index in range(len(world.sent))]
    possible += [("reply", index) for index in range(len(world.replies))]
    possible += [("wake", index) for index in range(len(world.wakes))]
    possible.append(("reconnect",))
    return possible


def test_every_short_story_of_one_type() -> None:
    frontier = [World()]
    seen: set[str] = set()
    for _ in range(9):
        following: dict[str, World] = {}
        for world in frontier:
            for name, *arguments in steps(world):
                after = deepcopy(world)
                getattr(after, str(name))(*arguments)
                after.check()
                canonical = repr(rebased(after))
                if canonical not in seen:
                    seen.add(canonical)
                    following[canonical] = after
        frontier = list(following.values())
    assert len(seen) > 1_000


def rebased(world: World) -> World:
    """The same world with counters made small, so that equal situations look equal."""
    copy = deepcopy(world)
    memory = copy.memory
    marks = [*copy.sent, *(reply[0] for reply in copy.replies)]
    counts = memory.counts
    numbers = {counts.wakes, memory._woke, memory._valid_from, *(mark.wakes for mark in marks)}
    numbers |= {sequence for sequence, _ in memory._woken.values()}
    small = {number: index for index, number in enumerate(sorted(numbers))}
    counts.wakes, counts.replies, memory._replied = small[counts.wakes], 0, 0
    memory._woke, memory._valid_from = small[memory._woke], small[memory._valid_from]
    memory._woken = {name: (small[at], ready) for name, (at, ready) in memory._woken.items()}
    copy.sent = [Mark(small[mark.wakes], 0) for mark in copy.sent]
    copy.replies = [(Mark(small[mark.wakes], 0), *rest) for mark, *rest in copy.replies]  # type: ignore[misc]
    return copy


class MemoryMachine(RuleBasedStateMachine):
    """Longer stories of several types, with incomplete replies."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(name=st.sampled_from(TYPES), ready_ms=st.integers(1, 9))
    def add(self, name: str, ready_ms: int) -> None:
        self.world.add(name, ready_ms)

    @rule(data=st.data(), following=st.none() | st.integers(1, 9))
    def take(self, data: st.DataObject, following: int | None) -> None:
        if self.world.heads:
            self.world.take(data.draw(st.sampled_from(sorted(self.world.heads))), following)

    @rule()
    def send(self) -> None:
        self.world.send()

    @rule(data=st.data(), asked=st.none() | st.sets(st.sampled_from(TYPES)))
    def execute(self, data: st.DataObject, asked: set[str] | None) -> None:
        if self.world.sent:
            index = data.draw(st.integers(0, len(self.world.sent) - 1))
            self.world.execute(index, asked=None if asked is None else tuple(asked))

    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        if self.world.replies:
            self.world.reply(data.draw(st.integers(0, len(self.world.replies) - 1)))

    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        if self.world.wakes:
            self.world.wake(data.draw(st.integers(0, len(self.world.wakes) - 1)))

    @rule()
    def reconnect(self) -> None:
        self.world.reconnect()

    @invariant()
    def never_denies_work(self) -> None:
        self.world.check()


MemoryMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestMemoryMachine = pytest.mark.timeout(300)(MemoryMachine.TestCase)
