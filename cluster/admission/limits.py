"""Which limits hold for a queue, and where each came from (server-behaviour 6.1). Pure.

A limit is looked up per field: first in the overrides, key by key (``ns:queue``, ``ns:*``, ``queue``,
``*``), then in the environment's default. At each key what was set while the server runs comes before
what it was started with. The first object that has the field decides, also when its value means
"unlimited"; a null says "stop here and use the default".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cluster.ids import TaskKind

OVERRIDES: Final = "server.admission.queue_overrides"
RUNTIME: Final = "server.admission.runtime_limits"
LARGEST: Final = 10**12
"""Larger limits mean the same: a number that no counter reaches and every component keeps exactly."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")

SECTION: Final = {
    TaskKind.WORKFLOW: "workflow_tasks",
    TaskKind.ACTIVITY: "activity_tasks",
    TaskKind.STEP: "step_tasks",
}
"""What each kind of task is called in overrides and answers."""

Tree = Mapping[str, Any]
"""Overrides by key: ``{"production:payments": {"workflow_tasks": {"max_active_leases": 8}}}``."""


class LimitName(StrEnum):
    """The five limits, in the order in which they are checked; values are the fields' names."""

    QUEUE_LEASES = "max_active_leases_per_queue"
    NAMESPACE_LEASES = "max_active_leases_per_namespace"
    QUEUE_DISPATCHES = "max_dispatches_per_minute"
    NAMESPACE_DISPATCHES = "max_dispatches_per_minute_per_namespace"
    GROUP_DISPATCHES = "max_dispatches_per_minute_per_budget_group"


GATE_ORDER: Final = tuple(LimitName)
LEASE_LIMITS: Final = (LimitName.QUEUE_LEASES, LimitName.NAMESPACE_LEASES)
DISPATCH_LIMITS: Final = tuple(name for name in GATE_ORDER if name not in LEASE_LIMITS)

GROUP_FIELDS: Final = ("dispatch_budget_group", "budget_group")
FIELDS: Final[Mapping[LimitName, tuple[str, ...]]] = {
    name: ("max_active_leases", name.value) if name is LimitName.QUEUE_LEASES else (name.value,)
    for name in GATE_ORDER
}
"""Accepted names of each field; the first one found in an object decides."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: its number (None: unlimited) and the source to show for it."""

    value: int | None
    source: str


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What holds for one kind of task of one queue. ``values`` are in gate order."""

    kind: TaskKind
    values: tuple[Limit, ...]
    group: str | None

    def __getitem__(self, name: LimitName) -> int | None:
        return self.values[GATE_ORDER.index(name)].value

    @property
    def numbers(self) -> tuple[int, ...]:
        """The five numbers in gate order, 0 for unlimited."""
        return tuple(limit.value or 0 for limit in self.values)

    @property
    def counts_leases(self) -> bool:
        return any(self[name] is not None for name in LEASE_LIMITS)

    @property
    def counts_dispatches(self) -> bool:
        return any(self[name] is not None for name in DISPATCH_LIMITS)

    @property
    def limited(self) -> bool:
        return any(limit.value is not None for limit in self.values)

    @property
    def source(self) -> str:
        """The distinct sources of the limits that are set, or where the first would come from."""
        sources = dict.fromkeys(limit.source for limit in self.values if limit.value is not None)
        return ";".join(sources) or self.values[0].source


def parse_limit(value: Any) -> int | None:
    """A limit as people write it: a number above 0, also as text; anything else is unlimited."""
    if isinstance(value, str):
        text = value.strip()
        value = float(text) if _NUMBER.fullmatch(text) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return LARGEST if value > 0 else None
    number = int(value)
    return min(number, LARGEST) if number > 0 else None


def parse_group(value: Any) -> str | None:
    """A budget group's name, or None for no group."""
    return (value.strip() or None) if isinstance(value, str) else None


def override_keys(namespace: str, queue: str) -> tuple[str, str, str, str]:
    """The keys that may hold limits of a queue, in the order in which they count."""
    return f"{namespace}:{queue}", f"{namespace}:*", queue, "*"


class LimitBook:
    """All limits of one namespace: the server's settings and what was set at run time.

    ``defaults`` are the environment's limits per kind, ``overrides`` its override tree, ``runtime`` the
    namespace's own tree (keys ``ns:queue`` and ``ns:*``), ``version`` the version of the latter.
    """

    def __init__(
        self,
        namespace: str,
        defaults: Mapping[TaskKind, Mapping[LimitName, int | None]],
        overrides: Tree,
        runtime: Tree,
        version: int = 0,
    ) -> None:
        self.namespace = namespace
        self.version = version
        self.runtime = runtime
        self._defaults = defaults
        self._overrides = overrides
        self._resolved: dict[tuple[TaskKind, str], QueueLimits] = {}
        self._free: dict[tuple[TaskKind, str], bool] = {}
        self._counting = {kind: self._counts_leases_somewhere(kind) for kind in TaskKind}

    def of(self, kind: TaskKind, queue: str) -> QueueLimits:
        """The limits of ``queue`` for tasks of ``kind``."""
        found = self._resolved.get((kind, queue))
        if found is None:
            if len(self._resolved) >= _MOST_REMEMBERED:
                self._resolved.clear()
            found = self._resolved[kind, queue] = self._resolve(kind, queue)
        return found

    def is_free(self, kind: TaskKind, queue: str) -> bool:
        """Whether nothing is counted for tasks of ``kind`` in ``queue``."""
        found = self._free.get((kind, queue))
        if found is None:
            limited = self.of(kind, queue).limited
            if len(self._free) >= _MOST_REMEMBERED:
                self._free.clear()
            found = self._free[kind, queue] = not (limited or self.counts_leases(kind))
        return found

    def counts_leases(self, kind: TaskKind) -> bool:
        """Whether a lease limit applies to any queue of the namespace.

        Then the leases of all its queues are counted: a namespace's limit may be written under one
        queue, and a queue's limit may come while its tasks are leased.
        """
        return self._counting[kind]

    def _resolve(self, kind: TaskKind, queue: str) -> QueueLimits:
        group = self._group(kind, queue)
        values = []
        for name in GATE_ORDER:
            limit = self._limit(kind, queue, name)
            if name is LimitName.GROUP_DISPATCHES and group is None:
                limit = Limit(None, limit.source)
            values.append(limit)
        return QueueLimits(kind, tuple(values), group)

    def _limit(self, kind: TaskKind, queue: str, name: LimitName) -> Limit:
        for section, source in self._sections(kind, override_keys(self.namespace, queue)):
            for field in FIELDS[name]:
                if field in section:
                    value = section[field]
                    if value is None:
                        return self._default(kind, name)
                    return Limit(parse_limit(value), source)
        return self._default(kind, name)

    def _default(self, kind: TaskKind, name: LimitName) -> Limit:
        source = f"server.admission.{SECTION[kind]}.{name.value}"
        return Limit(self._defaults.get(kind, {}).get(name), source)

    def _group(self, kind: TaskKind, queue: str) -> str | None:
        for section, _ in self._sections(kind, override_keys(self.namespace, queue)):
            for field in GROUP_FIELDS:
                if field in section:
                    return parse_group(section[field])
        return None

    def _sections(self, kind: TaskKind, keys: tuple[str, ...]) -> Iterator[tuple[Mapping[str, Any], str]]:
        for key in keys:
            for tree, source in ((self.runtime, RUNTIME), (self._overrides, OVERRIDES)):
                entry = tree.get(key)
                section = entry.get(SECTION[kind]) if isinstance(entry, dict) else None
                if isinstance(section, dict):
                    yield section, source

    def _counts_leases_somewhere(self, kind: TaskKind) -> bool:
        if any(self._defaults.get(kind, {}).get(name) is not None for name in LEASE_LIMITS):
            return True
        ours = f"{self.namespace}:"
        keys = {key for key in (*self._overrides, *self.runtime) if key.startswith(ours) or ":" not in key}
        return any(
            parse_limit(section.get(field)) is not None
            for section, _ in self._sections(kind, tuple(keys))
            for name in LEASE_LIMITS
            for field in FIELDS[name]
        )


_MOST_REMEMBERED: Final = 10_000
