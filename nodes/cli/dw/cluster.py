"""``dw node:list``, ``partition:list``, ``scaling``: the cluster itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from nodes.cli.dw.arguments import argument, option
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.views import Block, Facts, Result, Rows, table

_SCALING = (
    "task_queue backlog oldest_age_seconds slots_in_use registered_slots active_workers desired_workers"
)


def _scaling(result: Result) -> Iterable[Block]:
    if "total" not in result:
        yield Facts(result)
        return
    rows = [*result.get("task_queues", []), {"task_queue": "(total)", **result["total"]}]
    yield Rows(rows, tuple(_SCALING.split()))


@command(
    "node:list",
    table(
        "nodes",
        "name status version address draining partition_count parked_polls streams last_heartbeat_at",
    ),
    json="generated_at answered_by nodes",
    examples=("dw node:list", "dw node:list --output jsonl"),
    watch=True,
)
def nodes(dw: Dw) -> Result:
    """List the nodes of the cluster."""
    return dw.get("nodes")


@command(
    "partition:list",
    table(
        "partitions",
        "partition owner_name epoch lease_expires_at backlog oldest_age_seconds leased_tasks timers",
    ),
    json="generated_at partition_count unowned_count partitions",
    examples=("dw partition:list",),
    watch=True,
)
def partitions(dw: Dw) -> Result:
    """List the partitions: who keeps each, and what waits there."""
    return dw.get("partitions")


@command(
    "scaling",
    _scaling,
    examples=("dw scaling", "dw scaling orders --slots-per-worker 20"),
    watch=True,
)
def scaling(
    dw: Dw,
    task_queue: Annotated[str | None, argument("TASK_QUEUE", "only this queue")] = None,
    slots: Annotated[
        int | None,
        option("--slots-per-worker", metavar="N", text="of a queue that has no worker (100)", min=1),
    ] = None,
) -> Result:
    """Show how many workers each task queue needs.

    JSON of all queues: namespace, generated_at, total, task_queues; of one: a flat object.
    """
    path = ("scaling",) if task_queue is None else ("scaling", task_queue)
    return dw.get(*path, query={"slots_per_worker": slots})
