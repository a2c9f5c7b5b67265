"""The estimate of Redis time: bounded error, never backwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.clock import Clock


class Host:
    """A host whose local clock and Redis' clock the test turns."""

    def __init__(self) -> None:
        self.local = 100.0
        self.redis = 1_790_000_000.0
        self.clock = Clock(local=lambda: self.local, wall=lambda: 1_790_003_600.0)

    def pass_time(self, seconds: float) -> None:
        self.local += seconds
        self.redis += seconds

    def ask(self, there: float, back: float) -> None:
        sent = self.local
        self.pass_time(there)
        shown = self.redis
        self.pass_time(back)
        self.clock.observe(shown * 1000, sent, self.local)

    @property
    def error(self) -> float:
        return self.clock.now_us() / 1_000_000 - self.redis


def test_follows_the_host_until_redis_was_asked() -> None:
    host = Host()
    assert not host.clock.synchronized
    assert host.clock.now_ms() == 1_790_003_600_000
    host.ask(0.001, 0.001)
    assert host.clock.synchronized
    assert abs(host.error) < 0.0011


def test_the_quickest_of_the_recent_answers_counts() -> None:
    host = Host()
    host.ask(0.0001, 0.0001)
    for _ in range(5):
        host.pass_time(1)
        host.ask(0.0, 0.5)
    assert abs(host.error) < 0.001


def test_a_suspended_host_believes_the_next_answer() -> None:
    host = Host()
    host.ask(0.0001, 0.0001)
    host.redis += 3600
    host.ask(0.001, 0.1)
    assert abs(host.error) < 0.06


def test_stands_still_while_redis_is_behind() -> None:
    host = Host()
    host.ask(0.0001, 0.0001)
    before = host.clock.now_us()
    host.redis -= 2
    host.ask(0.0001, 0.0001)
    assert host.clock.now_us() == before
    host.pass_time(3)
    assert host.clock.now_us() > before
    assert abs(host.error) < 0.001


delays = st.floats(0, 2)
steps = st.one_of(
    st.tuples(st.just("pass"), delays, st.just(0.0)),
    st.tuples(st.just("ask"), delays, delays),
    st.tuples(st.just("jump"), st.floats(-5, 5), st.just(0.0)),
)


@given(st.lists(steps, max_size=40))
def test_never_goes_backwards(plan: list[tuple[str, float, float]]) -> None:
    host = Host()
    host.ask(0.0, 0.0)
    latest = 0
    for what, one, other in plan:
        match what:
            case "pass":
                host.pass_time(one)
            case "ask":
                host.ask(one, other)
            case "jump":
                host.redis += one
        now = host.clock.now_us()
        assert now >= latest
        latest = now


@given(st.lists(st.tuples(delays, delays, delays), min_size=1, max_size=30))
def test_the_error_is_at_most_half_of_a_round_trip(plan: list[tuple[float, float, float]]) -> None:
    host = Host()
    for pause, there, back in plan:
        host.pass_time(pause)
        host.ask(there, back)
    assert abs(host.error) <= (there + back) / 2 + 0.001
