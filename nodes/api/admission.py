"""Routes of limits that are set while the server runs.

``PUT`` replaces what is set for a queue (``*``: for all queues of the namespace that have no own) with an
object of the form that ``DW_TASK_QUEUE_ADMISSION_OVERRIDES`` has per key. It answers once the limits
hold on every node. The queue of steps is called by their flow type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, MaxLen
from pydantic import ConfigDict, Field

from cluster.admission.limits import GATE_ORDER, LARGEST, SECTION, LimitBook
from cluster.errors import Refused
from cluster.ids import TaskKind
from cluster.queues.overview import EVERY_KIND
from nodes.api.call import Call
from nodes.api.fields import Fields, Integer, Trimmed
from nodes.api.routes import Reply

EVERY_QUEUE: Final = "*"
_LONGEST_QUEUE: Final = 255

_Limit = Annotated[Annotated[int, Ge(0), Le(LARGEST)] | None, Integer]
_Group = Annotated[Annotated[str, MaxLen(255)] | None, Trimmed]


class _Section(Fields):
    """Limits of one kind of tasks; null means the server's own default, 0 no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_active_leases: _Limit = None
    max_active_leases_per_queue: _Limit = None
    max_active_leases_per_namespace: _Limit = None
    max_dispatches_per_minute: _Limit = None
    max_dispatches_per_minute_per_namespace: _Limit = None
    max_dispatches_per_minute_per_budget_group: _Limit = None
    dispatch_budget_group: _Group = None
    budget_group: _Group = None


class _Entry(Fields):
    model_config = ConfigDict(extra="forbid", frozen=True)

    workflow_tasks: _Section | None = Field(None)
    activity_tasks: _Section | None = Field(None)
    step_tasks: _Section | None = Field(None)


async def list_limits(call: Call) -> Reply:
    """``GET /api/admission/limits``: everything that was set at run time in this namespace."""
    book = await call.node.limits.book(call.namespace)
    own = f"{call.namespace}:"
    rows = [{"task_queue": key.removeprefix(own), **entry} for key, entry in sorted(book.runtime.items())]
    return Reply({"namespace": call.namespace, "version": book.version, "limits": rows})


async def show_limits(call: Call) -> Reply:
    """``GET /api/admission/limits/{task_queue}``: what holds for a queue, and where it comes from."""
    return Reply(_show(await call.node.limits.book(call.namespace), call.parameters["task_queue"]))


async def set_limits(call: Call) -> Reply:
    """``PUT /api/admission/limits/{task_queue}``."""
    queue = _queue(call)
    entry = call.fields(_Entry).model_dump(exclude_unset=True)
    entry = {name: section for name, section in entry.items() if section}
    key = f"{call.namespace}:{queue}"

    def change(tree: Mapping[str, Any]) -> Mapping[str, Any]:
        rest = {name: kept for name, kept in tree.items() if name != key}
        return {**rest, key: entry} if entry else rest

    return Reply(_show(await call.node.gate.change_limits(call.namespace, change), queue))


async def remove_limits(call: Call) -> Reply:
    """``DELETE /api/admission/limits/{task_queue}``: what the server was started with holds again."""
    queue = _queue(call)
    key = f"{call.namespace}:{queue}"
    book = await call.node.limits.book(call.namespace)
    if key not in book.runtime:
        raise Refused(
            "admission_limits_not_found",
            "No limits were set for this queue while the server runs.",
            status=404,
            task_queue=queue,
        )
    book = await call.node.gate.change_limits(
        call.namespace, lambda tree: {name: kept for name, kept in tree.items() if name != key}
    )
    return Reply(_show(book, queue))


def _queue(call: Call) -> str:
    queue = call.parameters["task_queue"]
    if len(queue) > _LONGEST_QUEUE:
        raise Refused("task_queue_too_long", "The queue's name is too long.", status=422, task_queue=queue)
    return queue


def _show(book: LimitBook, queue: str) -> dict[str, Any]:
    return {
        "namespace": book.namespace,
        "task_queue": queue,
        "version": book.version,
        "runtime": book.runtime.get(f"{book.namespace}:{queue}", {}),
        "effective": {SECTION[kind]: _effective(book, kind, queue) for kind in EVERY_KIND},
    }


def _effective(book: LimitBook, kind: TaskKind, queue: str) -> dict[str, Any]:
    limits = book.of(kind, queue)
    shown: dict[str, Any] = {
        name.value: {"value": limit.value, "source": limit.source}
        for name, limit in zip(GATE_ORDER, limits.values, strict=True)
    }
    shown["dispatch_budget_group"] = limits.group
    return shown
