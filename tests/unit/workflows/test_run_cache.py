"""What a node remembers of workflows: those it handled last, for a while."""

from __future__ import annotations

from cluster.workflows.records import Run, RunInfo, RunState, RunStatus
from cluster.workflows.storage import CACHED_SECONDS, RunCache


def run(name: str, status: RunStatus = RunStatus.PENDING) -> Run:
    info = RunInfo(
        namespace="n", workflow_id=name, run_id=name, workflow_type="t", task_queue="q", started_at_us=1
    )
    return Run(info=info, state=RunState(status=status), version=1)


def known(cache: RunCache, names: str) -> str:
    return "".join(name for name in names if cache.guess(name) is not None)


def test_what_was_not_handled_for_a_while_goes() -> None:
    """Another node went on with it, as a rule, and ended it."""
    now = 0.0
    cache = RunCache(timer=lambda: now)
    cache.learn_commit(run("a"), 1)
    cache.learn_commit(run("b"), 1)
    now = CACHED_SECONDS - 1
    cache.learn_commit(run("b"), 1)
    assert known(cache, "ab") == "ab"
    now = CACHED_SECONDS + 1
    assert known(cache, "ab") == "b"


def test_a_run_that_is_over_or_too_large_is_forgotten() -> None:
    cache = RunCache(max_bytes=100)
    cache.learn_commit(run("a"), 1)
    cache.learn_commit(run("a", RunStatus.COMPLETED), 1)
    cache.learn_commit(run("b"), 101)
    assert known(cache, "ab") == ""
