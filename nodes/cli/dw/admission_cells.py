"""How the admission of a task queue is put in words (``server-behaviour 10.3``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KINDS: Final = {
    "workflow_tasks": "Workflow Tasks",
    "activity_tasks": "Activity Tasks",
    "step_tasks": "Step Tasks",
    "query_tasks": "Query Tasks",
}
Section = Mapping[str, Any]

_SERVER_LIMITS: Final = (
    "server_max_active_leases_per_queue",
    "server_max_active_leases_per_namespace",
    "server_max_dispatches_per_minute",
    "server_max_dispatches_per_minute_per_namespace",
    "server_max_dispatches_per_minute_per_budget_group",
)


def standing(section: Section) -> str | None:
    """``throttled (0 leases left, 151 namespace leases left, 0/min left)``."""
    status = section.get("status")
    if status is None:
        return None
    if "max_pending_per_queue" in section:
        left = section.get("remaining_pending_capacity")
        return status if left is None else f"{status} ({left} left)"
    leases = section.get("server_remaining_active_lease_capacity")
    if leases is None:
        leases = section.get("available_slot_count")
    told = [
        (leases, "{} leases left"),
        (section.get("server_remaining_namespace_active_lease_capacity"), "{} namespace leases left"),
        (section.get("server_remaining_dispatch_capacity"), "{}/min left"),
        (section.get("server_remaining_namespace_dispatch_capacity"), "{} namespace/min left"),
        (
            section.get("server_remaining_budget_group_dispatch_capacity"),
            f"group {section.get('server_dispatch_budget_group')} {{}}/min left",
        ),
    ]
    said = ", ".join(text.format(left) for left, text in told if left is not None)
    return f"{status} ({said})" if said else status


def row(kind: str, section: Section) -> dict[str, Any]:
    """One line of the table that ``task-queue:describe`` shows."""
    is_query = "max_pending_per_queue" in section
    has_limit = any(section.get(name) is not None for name in _SERVER_LIMITS)
    return {
        "kind": KINDS[kind],
        "status": section.get("status"),
        "capacity": _pending(section) if is_query else _capacity(section),
        "dispatch": None if is_query else _dispatch(section),
        "source": section.get("server_budget_source") if has_limit else section.get("budget_source"),
    }


def _pending(section: Section) -> str:
    pending, most = section.get("approximate_pending_count"), section.get("max_pending_per_queue")
    left = section.get("remaining_pending_capacity")
    return f"pending {_number(pending)}/{_number(most)}; remaining {_number(left)}"


def _capacity(section: Section) -> str:
    limit = section.get("server_max_active_leases_per_queue")
    if limit is None:
        active, most = section.get("leased_count"), section.get("configured_slot_count")
        left = section.get("available_slot_count")
    else:
        active, most = section.get("server_active_lease_count"), limit
        left = section.get("server_remaining_active_lease_capacity")
    text = f"active {_number(active)}/{_number(most)}; remaining {_number(left)}"
    wide = section.get("server_max_active_leases_per_namespace")
    if wide is not None:
        text += f"; namespace active {_number(section.get('server_namespace_active_lease_count'))}/{wide}"
    return text


def _dispatch(section: Section) -> str | None:
    parts = []
    for limit, count, text in (
        ("server_max_dispatches_per_minute", "server_dispatch_count_this_minute", "dispatch"),
        (
            "server_max_dispatches_per_minute_per_namespace",
            "server_namespace_dispatch_count_this_minute",
            "namespace dispatch",
        ),
        (
            "server_max_dispatches_per_minute_per_budget_group",
            "server_budget_group_dispatch_count_this_minute",
            f"group {section.get('server_dispatch_budget_group')}",
        ),
    ):
        if section.get(limit) is not None:
            parts.append(f"{text} {_number(section.get(count))}/{section[limit]}/min")
    return "; ".join(parts) or None


def _number(value: Any) -> str:
    return "?" if value is None else str(value)
