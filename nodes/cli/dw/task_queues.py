"""``dw task-queue:...``: what queues hold, what limits them, why a task waits, and their builds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from nodes.cli.dw.admission_cells import KINDS, row, standing
from nodes.cli.dw.arguments import TaskQueue, argument, option
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.views import Block, Facts, Result, Rows, Table, Words, facts, table

BuildId = Annotated[str | None, option("--build-id", metavar="BUILD", text="the build")]
Unversioned = Annotated[bool, option("--unversioned", text="workers without a build id")]
_INTENT = "namespace task_queue build_id drain_intent drained_at"


class _List(Table):
    """One line for each queue; ``jsonl`` still has the whole queue."""

    def __call__(self, result: Result) -> Iterable[Block]:
        yield Rows([_summary(queue) for queue in result.get(self.key) or []], self.columns)


def _summary(queue: Mapping[str, Any]) -> dict[str, Any]:
    stats, admission = queue.get("stats", {}), queue.get("admission", {})
    counted = {
        "name": queue.get("name"),
        "backlog": stats.get("approximate_backlog_count"),
        "age": stats.get("approximate_backlog_age"),
        "workers": stats.get("pollers", {}).get("active_count"),
    }
    return counted | {kind: standing(admission.get(kind) or {}) for kind in KINDS}


def _queue(result: Result) -> Iterable[Block]:
    stats, admission = result.get("stats", {}), result.get("admission", {})
    told = _summary(result)
    rates = {name: stats.get(name) for name in ("tasks_added_last_minute", "tasks_dispatched_last_minute")}
    yield Facts({name: result.get(name) for name in ("name", "namespace")} | told | rates)
    yield Rows(
        [row(kind, admission[kind]) for kind in KINDS if admission.get(kind)],
        ("kind", "status", "capacity", "dispatch", "source"),
    )
    if result.get("pollers"):
        yield Rows(result["pollers"], ("worker_id", "status", "build_id", "last_heartbeat_at"))
    if result.get("current_leases"):
        yield Rows(
            result["current_leases"],
            ("task_id", "task_type", "workflow_id", "lease_owner", "lease_expires_at", "is_expired"),
        )


def _why(result: Result) -> Iterable[Block]:
    yield Facts({name: result.get(name) for name in ("task_id", "task_queue", "state", "reason")})
    reasons = result.get("reasons", [])
    if reasons:
        yield Words("\n".join(f"* {reason.get('message')}" for reason in reasons))


@command(
    "task-queue:list",
    _List("task_queues", ("name", "backlog", "age", "workers", *KINDS)),
    json="namespace task_queues",
    examples=("dw task-queue:list", "dw task-queue:list --output jsonl"),
    watch=True,
)
def list_task_queues(dw: Dw) -> Result:
    """List task queues: backlog, workers, and whether they are held back."""
    return dw.get("task-queues")


@command(
    "task-queue:describe",
    _queue,
    json="namespace name stats admission pollers current_leases",
    examples=("dw task-queue:describe orders", "dw task-queue:describe orders --json"),
    watch=True,
)
def describe(dw: Dw, task_queue: TaskQueue) -> Result:
    """Show what a task queue holds, its workers, leases and limits."""
    return dw.get("task-queues", task_queue)


@command(
    "task-queue:why",
    _why,
    json="namespace task_queue task_id waiting reasons",
    examples=("dw task-queue:why payments $WAITING",),
    watch=True,
)
def why(dw: Dw, task_queue: TaskQueue, task_id: Annotated[str, argument("TASK_ID", "the task")]) -> Result:
    """Say why a task is not running, the decisive reason first.

    dw debug shows the ids of a run's open tasks.
    """
    return dw.get("task-queues", task_queue, "why", query={"task": task_id})


@command(
    "why",
    _why,
    json="namespace task_queue task_id waiting reasons",
    examples=("dw why $WAITING",),
    watch=True,
)
def why_anywhere(dw: Dw, task_id: Annotated[str, argument("TASK_ID", "the task")]) -> Result:
    """Say why a task is not running, whichever queue it is in.

    dw debug shows the ids of a run's open tasks.
    """
    answer = dw.get("task-queues", "-", "why", query={"task": task_id}, accept=frozenset({409}))
    if answer.get("reason") != "task_queue_mismatch":
        return answer
    return dw.get("task-queues", answer["task_queue"], "why", query={"task": task_id})


@command(
    "task-queue:build-ids",
    table(
        "build_ids",
        "build_id rollout_status drain_intent active_worker_count draining_worker_count stale_worker_count",
    ),
    json="namespace task_queue build_ids",
    examples=("dw task-queue:build-ids orders",),
    watch=True,
)
def build_ids(dw: Dw, task_queue: TaskQueue) -> Result:
    """List the builds of a task queue's workers."""
    return dw.get("task-queues", task_queue, "build-ids")


def _set_intent(dw: Dw, task_queue: str, verb: str, build_id: str | None, unversioned: bool) -> Result:
    if (build_id is None) != unversioned:
        raise wrong_usage("give exactly one of --build-id and --unversioned")
    body = {"build_id": build_id}
    return dw.post("task-queues", task_queue, "build-ids", verb, body=body, nulls=True)


@command(
    "task-queue:drain",
    facts(_INTENT),
    json=_INTENT,
    examples=("dw task-queue:drain payments --build-id 2026-04",),
)
def drain(
    dw: Dw, task_queue: TaskQueue, build_id: BuildId = None, unversioned: Unversioned = False
) -> Result:
    """Give a build no new tasks; it may finish what it holds."""
    return _set_intent(dw, task_queue, "drain", build_id, unversioned)


@command(
    "task-queue:resume",
    facts(_INTENT),
    json=_INTENT,
    examples=(
        "dw task-queue:resume payments --build-id 2026-04",
        "dw task-queue:resume payments --unversioned",
    ),
)
def resume(
    dw: Dw, task_queue: TaskQueue, build_id: BuildId = None, unversioned: Unversioned = False
) -> Result:
    """Give a drained build tasks again."""
    return _set_intent(dw, task_queue, "resume", build_id, unversioned)


@command(
    "task-queue:promote",
    facts("namespace task_queue build_id"),
    json="namespace task_queue build_id",
    examples=("dw task-queue:promote payments --build-id 2026-04",),
)
def promote(
    dw: Dw, task_queue: TaskQueue, build_id: BuildId = None, unversioned: Unversioned = False
) -> Result:
    """Make a build the one that new runs are bound to."""
    return _set_intent(dw, task_queue, "promote", build_id, unversioned)
