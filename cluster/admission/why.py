"""Why a task is not running: every obstacle there is, the decisive one first. Pure.

The order is that of the hand-out: a task must be due, then the limits are asked, then there must be a
worker that is not draining, of the right build, that knows the type and has a free slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cluster.admission.limits import DISPATCH_LIMITS, GATE_ORDER, LimitName, QueueLimits


class Obstacle(StrEnum):
    NOT_YET_DUE = "not_yet_due"
    CONDITIONS_OPEN = "conditions_open"
    ATTRIBUTES_LOCKED = "attributes_locked"
    FLOW_STOPPING = "flow_stopping"
    LIMIT_REACHED = "limit_reached"
    ADMISSION_UNAVAILABLE = "admission_unavailable"
    NO_WORKER = "no_worker"
    WORKERS_STALE = "workers_stale"
    WORKERS_DRAINING = "workers_draining"
    NO_MATCHING_BUILD = "no_matching_build"
    UNSUPPORTED_TYPE = "unsupported_type"
    NO_SLOT = "no_slot"
    NO_FREE_SLOT = "no_free_slot"
    WAITING_FOR_POLL = "waiting_for_poll"


@dataclass(frozen=True, slots=True)
class Worker:
    """What matters of a registered worker; no ``types`` means that it takes any."""

    worker_id: str
    build_id: str
    types: frozenset[str]
    slots: int
    stale: bool
    draining: bool

    def takes(self, type_name: str, marker: str) -> bool:
        return self.fits(marker) and (not self.types or type_name in self.types)

    def fits(self, marker: str) -> bool:
        return not marker or marker == self.build_id


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that is not leased. Times are Redis' milliseconds."""

    type_name: str
    marker: str
    due_at_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One obstacle, a sentence about it, and its numbers."""

    obstacle: Obstacle
    message: str
    fields: dict[str, Any] = field(default_factory=dict)
    retry_after: float | None = None
    """Seconds after which time alone removes it; None when something must happen first."""


def findings(
    task: Waiting,
    limits: QueueLimits,
    counts: Sequence[int] | None,
    workers: Sequence[Worker],
    leased: int,
) -> list[Finding]:
    """All obstacles. ``counts`` are in gate order, None when they could not be read."""
    found = [*_due(task), *_limits(task, limits, counts), *_workers(task, workers, leased)]
    if not found:
        text = "A worker that takes this task has a free slot; it gets it when it polls next."
        found.append(Finding(Obstacle.WAITING_FOR_POLL, text))
    return found


def step_findings(
    task: Waiting,
    limits: QueueLimits,
    counts: Sequence[int] | None,
    serving: Sequence[int],
    able: Sequence[int],
    leased: int,
) -> list[Finding]:
    """All obstacles of a step that is queued or will be. ``serving`` and ``able`` are workers and slots, of
    the flow type and of those among them that know the step type.
    """
    found = [*_due(task), *_limits(task, limits, counts)]
    if not serving[0]:
        found.append(Finding(Obstacle.NO_WORKER, "No connected worker serves the flow type."))
    elif not able[0]:
        text = f"No connected worker supports the step type {task.type_name!r}."
        found.append(Finding(Obstacle.UNSUPPORTED_TYPE, text, {"type": task.type_name}))
    elif leased >= serving[1]:
        text = "All slots of the flow type's workers are taken."
        numbers = {"configured_slot_count": able[1], "leased_count": leased}
        found.append(Finding(Obstacle.NO_FREE_SLOT, text, numbers))
    if not found:
        text = "A worker that knows this step has a free slot; it gets it now."
        found.append(Finding(Obstacle.WAITING_FOR_POLL, text))
    return found


def _due(task: Waiting) -> Iterable[Finding]:
    wait_ms = task.due_at_ms - task.now_ms
    if wait_ms > 0:
        seconds = wait_ms / 1000
        text = f"The task becomes ready in {seconds:.1f} s."
        yield Finding(Obstacle.NOT_YET_DUE, text, {"due_at_ms": task.due_at_ms}, seconds)


def _limits(task: Waiting, limits: QueueLimits, counts: Sequence[int] | None) -> Iterable[Finding]:
    if counts is None:
        if limits.limited:
            text = "The counters of the limits cannot be read, so nothing may be handed out."
            yield Finding(Obstacle.ADMISSION_UNAVAILABLE, text)
        return
    for name, limit, count in zip(GATE_ORDER, limits.values, counts, strict=True):
        if limit.value is None or count < limit.value:
            continue
        minute_left = (60_000 - task.now_ms % 60_000) / 1000
        of = f" of {limits.group}" if name is LimitName.GROUP_DISPATCHES else ""
        text = f"{count} of {limit.value}: {name.value}{of} is used up."
        fields: dict[str, Any] = {
            "limit": name.value,
            "maximum": limit.value,
            "count": count,
            "source": limit.source,
        }
        if of:
            fields["dispatch_budget_group"] = limits.group
        yield Finding(Obstacle.LIMIT_REACHED, text, fields, minute_left if name in DISPATCH_LIMITS else None)


def _workers(task: Waiting, workers: Sequence[Worker], leased: int) -> Iterable[Finding]:
    fresh = [worker for worker in workers if not worker.stale]
    active = [worker for worker in fresh if not worker.draining]
    builds = [worker for worker in active if worker.fits(task.marker)]
    able = [worker for worker in builds if worker.takes(task.type_name, task.marker)]
    slots = sum(max(0, worker.slots) for worker in able)
    if not workers:
        yield Finding(Obstacle.NO_WORKER, "No worker is registered for this queue.")
    elif not fresh:
        text = "All workers of this queue have been silent for too long."
        yield Finding(Obstacle.WORKERS_STALE, text, {"workers": _ids(workers)})
    elif not active:
        text = "All workers of this queue drain: they take nothing new."
        yield Finding(Obstacle.WORKERS_DRAINING, text, {"workers": _ids(fresh)})
    elif not builds:
        text = f"No active worker has the build {task.marker!r} that the task needs."
        found = sorted({worker.build_id for worker in active})
        yield Finding(Obstacle.NO_MATCHING_BUILD, text, {"build_id": task.marker, "build_ids": found})
    elif not able:
        text = f"No active worker supports the type {task.type_name!r}."
        known = sorted({name for worker in builds for name in worker.types})
        yield Finding(
            Obstacle.UNSUPPORTED_TYPE, text, {"type": task.type_name, "supported_types": known[:50]}
        )
    elif slots == 0:
        text = "The workers that take this task have no slots for its kind."
        yield Finding(Obstacle.NO_SLOT, text, {"workers": _ids(able)})
    elif leased >= sum(max(0, worker.slots) for worker in active):
        text = "All slots of the queue's workers are taken."
        yield Finding(Obstacle.NO_FREE_SLOT, text, {"configured_slot_count": slots, "leased_count": leased})


def _ids(workers: Sequence[Worker]) -> list[str]:
    return sorted(worker.worker_id for worker in workers)[:50]
