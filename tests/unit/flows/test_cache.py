"""What a node remembers of the runs it changed: within its bounds, the latest ones."""

from __future__ import annotations

import pytest

from cluster.flows import storage
from cluster.flows.records import FlowInfo, FlowRun, FlowState, FlowStatus
from cluster.flows.storage import CACHED_RUN_BYTES, CACHED_SECONDS, FlowCache


def run(name: str, status: FlowStatus = FlowStatus.RUNNING) -> FlowRun:
    info = FlowInfo(
        namespace="n",
        flow_id=name,
        run_id=name,
        flow_type="t",
        start_step="s",
        request_id="r",
        started_at_ms=1,
    )
    return FlowRun(info=info, state=FlowState(status=status))


def known(cache: FlowCache, names: str) -> str:
    return "".join(name for name in names if cache.guess(name) is not None)


def test_what_was_changed_longest_ago_goes_first() -> None:
    cache = FlowCache(max_bytes=100)
    for name in "abca":
        cache.learn(run(name), 25)
    assert known(cache, "abc") == "abc"
    cache.learn(run("d"), 1)
    assert known(cache, "abcd") == "acd"


def test_what_was_not_changed_for_a_while_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node went on with it, as a rule, and ended it."""
    clock = iter([0.0, 1.0, CACHED_SECONDS, CACHED_SECONDS + 0.5, CACHED_SECONDS + 2])
    monkeypatch.setattr(storage, "monotonic", lambda: next(clock))
    cache = FlowCache()
    for name in "abbc":
        cache.learn(run(name), 1)
    assert known(cache, "abc") == "bc"
    cache.learn(run("d"), 1)
    assert known(cache, "bcd") == "bcd", "b was changed since"


def test_what_was_forgotten_takes_no_room() -> None:
    cache = FlowCache(max_bytes=100)
    for _ in range(10):
        cache.learn(run("a"), 60)
        cache.forget("a")
    cache.learn(run("b"), 60)
    cache.learn(run("c"), 40)
    assert known(cache, "abc") == "bc"


def test_a_run_that_is_over_or_too_large_is_forgotten() -> None:
    cache = FlowCache()
    for name in "ab":
        cache.learn(run(name), 1)
    cache.learn(run("a", FlowStatus.COMPLETED), 1)
    cache.learn(run("b"), CACHED_RUN_BYTES)
    assert known(cache, "ab") == ""


def test_what_is_remembered_is_the_last_change() -> None:
    cache = FlowCache()
    for _ in range(2):
        latest = run("a")
        cache.learn(latest, 1)
    picture = cache.guess("a")
    assert picture is not None
    assert picture.run is latest
    assert not picture.sure
