"""``dw limit:...``: limits of task queues that are set while the server runs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from nodes.cli.dw.arguments import argument, option, read_object
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.views import Block, Facts, Result, Rows, table

Queue = Annotated[str, argument("TASK_QUEUE", "the task queue; '*' for all that have no limits of their own")]


class TaskKind(StrEnum):
    """Kinds of tasks with limits."""

    WORKFLOW = "workflow"
    ACTIVITY = "activity"
    STEP = "step"


_MEMBERS = "namespace task_queue version runtime effective"


def _limits(result: Result) -> Iterable[Block]:
    yield Facts({name: result.get(name) for name in ("namespace", "task_queue")})
    rows = []
    for kind, section in result.get("effective", {}).items():
        for name, limit in section.items():
            if isinstance(limit, dict):
                value = "unlimited" if limit.get("value") is None else limit["value"]
                rows.append({"tasks": kind, "limit": name, "value": value, "from": limit.get("source")})
            elif limit is not None:
                rows.append({"tasks": kind, "limit": name, "value": limit, "from": None})
    yield Rows(rows, ("tasks", "limit", "value", "from"))


@command(
    "limit:list",
    table("limits", "task_queue workflow_tasks activity_tasks"),
    json="namespace version limits",
    examples=("dw limit:list",),
    watch=True,
)
def list_limits(dw: Dw) -> Result:
    """List what was set while the server runs."""
    return dw.get("admission", "limits")


@command("limit:show", _limits, json=_MEMBERS, examples=("dw limit:show payments",), watch=True)
def show(dw: Dw, task_queue: Queue) -> Result:
    """Show the limits that hold for a task queue, and where each comes from."""
    return dw.get("admission", "limits", task_queue)


@command(
    "limit:set",
    _limits,
    json=_MEMBERS,
    examples=(
        "dw limit:set payments --tasks workflow --leases 8 --per-minute 120",
        "dw limit:set '*' --tasks activity --namespace-leases 1200",
        "dw limit:set mail --tasks activity --group mailer --group-per-minute 300",
    ),
)
def set_limits(
    dw: Dw,
    task_queue: Queue,
    tasks: Annotated[
        TaskKind | None, option("--tasks", text="the kind of tasks that the numbers are for")
    ] = None,
    leases: Annotated[int | None, option("--leases", metavar="N", text="most leased at once", min=0)] = None,
    namespace_leases: Annotated[
        int | None, option("--namespace-leases", metavar="N", text="the same for the namespace", min=0)
    ] = None,
    per_minute: Annotated[
        int | None, option("--per-minute", metavar="N", text="most handed out in a minute", min=0)
    ] = None,
    namespace_per_minute: Annotated[
        int | None, option("--namespace-per-minute", metavar="N", text="the same for the namespace", min=0)
    ] = None,
    group: Annotated[str | None, option("--group", metavar="NAME", text="the budget group")] = None,
    group_per_minute: Annotated[
        int | None, option("--group-per-minute", metavar="N", text="the same for the group", min=0)
    ] = None,
    document: Annotated[
        str | None, option("--document", metavar="JSON", text="everything, as the server takes it, instead")
    ] = None,
) -> Result:
    """Set limits of a task queue; they hold on every node when this returns. 0 means no limit.

    What was set for this kind of tasks before stays where nothing else is given; --document replaces
    everything. Needs an administrator's token.
    """
    numbers = {
        "max_active_leases_per_queue": leases,
        "max_active_leases_per_namespace": namespace_leases,
        "max_dispatches_per_minute": per_minute,
        "max_dispatches_per_minute_per_namespace": namespace_per_minute,
        "max_dispatches_per_minute_per_budget_group": group_per_minute,
        "dispatch_budget_group": group,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    whole = read_object(document, "--document")
    if (whole is None) == (not given):
        raise wrong_usage("give limits (such as --leases 8), or all of them with --document")
    if whole is None:
        if tasks is None:
            raise wrong_usage("say for which tasks: --tasks workflow or --tasks activity")
        section = f"{tasks}_tasks"
        whole = dict(dw.get("admission", "limits", task_queue).get("runtime") or {})
        whole[section] = {**whole.get(section, {}), **given}
    return dw.put("admission", "limits", task_queue, body=whole, nulls=True)


@command("limit:clear", _limits, json=_MEMBERS, examples=("dw limit:clear mail",))
def clear(dw: Dw, task_queue: Queue) -> Result:
    """Take back what was set for a task queue; what the server was started with holds again."""
    return dw.delete("admission", "limits", task_queue)
