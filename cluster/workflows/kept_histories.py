"""Histories that workers keep between two workflow tasks of a run (sdk-wire 2.10, "sticky").

A worker with such a cache says with a completion that it keeps what it just replayed. The run then
remembers the worker's registration and how many events that were, in the commit of that completion.
When the same process is handed the run's next workflow task, the hand-out carries the first events
only, by which it recognises what it has, and it asks for the page at which its own last page began.

::

    what it keeps   1 2 | 3 ... 500 | 501 ... 740          the bars are where its pages began
    hand-out        1 2                                    "sticky_hit_expected"
    page 500                          501 ... 740          ends where its own history ends, so that
    page 740                                      741 ...  this is where it begins next time

So nothing is ever left out that the worker could not ask for: what it gets is the beginning of the
whole history and the token that follows, and one that lost its cache reads on from there (or from the
start, ``MA==``). That the run remembers too much costs a page, never an event.

A history that fits into the hand-out is sent whole: the worker needs no further request then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cluster.errors import ValidationFailed
from cluster.workflows.records import KeptHistory, Lease, Run, RunState

ANCHOR: Final = 2
"""Events by which a worker knows its history again: the SDK looks for both events of a run's start."""
RESENT: Final = 100
"""So many events that a worker has already are sent again rather than that it asks once more."""


class ReplayMode(StrEnum):
    """What a hand-out tells a worker to expect of its cache."""

    HIT = "sticky_hit_expected"
    COLD = "forced_cold_replay"
    """A history was kept, but not by this process, or no longer."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a completion says of the worker's cache."""

    worker_id: str
    workflow_id: str
    run_id: str
    ttl_seconds: int


def keep(run: Run, lease: Lease, said: Keeping, now_ms: int) -> KeptHistory:
    """What the run remembers of a worker that keeps the history it was leased.

    Raises ValidationFailed when the worker speaks of another run or for another worker.
    """
    expected: Mapping[str, tuple[str, str]] = {
        "worker_id": (said.worker_id, lease.owner),
        "workflow_id": (said.workflow_id, run.info.workflow_id),
        "run_id": (said.run_id, run.info.run_id),
    }
    wrong = {
        f"sticky_cache.{name}": [f"The sticky_cache.{name} field is not that of the workflow task."]
        for name, (given, own) in expected.items()
        if given != own
    }
    if wrong:
        raise ValidationFailed(wrong)
    return KeptHistory(
        registration=lease.registration,
        events=run.state.history_length,
        until_ms=now_ms + said.ttl_seconds * 1000,
    )


def forgotten(kept: KeptHistory | None) -> KeptHistory | None:
    """What remains after something that makes the cache doubtful: a failure, a lapse, a repair."""
    return None if kept is None else KeptHistory()


def replay_mode(state: RunState, registration: str, page_size: int, leased_at_ms: int) -> ReplayMode | None:
    """What to tell a worker; None when nobody kept anything, or pages are too small to recognise it by."""
    kept = state.kept
    if kept is None or page_size < ANCHOR:
        return None
    same = bool(registration) and kept.registration == registration
    return ReplayMode.HIT if same and leased_at_ms < kept.until_ms else ReplayMode.COLD


def stored(kept: KeptHistory) -> str:
    """What ``claim.lua`` reads of it."""
    return f"{kept.registration} {kept.events} {kept.until_ms}"


def lost(run: Run, lease: Lease, start: int, page_size: int) -> bool:
    """Whether the holder of ``lease`` reads on after what it should have recognised: its cache is gone."""
    kept = run.state.kept
    if kept is None or kept.registration != lease.registration or kept.events <= page_size:
        return False
    return start < ANCHOR or (start == ANCHOR and page_size > ANCHOR)


def page_length(run: Run, lease: Lease, start: int, page_size: int) -> int:
    """Events on the page after the first ``start`` events for the holder of ``lease``."""
    kept = run.state.kept
    if kept is None or kept.registration != lease.registration:
        return page_size
    known = kept.events - start
    return known if RESENT <= known < page_size else page_size
