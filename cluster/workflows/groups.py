"""Parallel groups: commands whose results the workflow awaits together (sdk-wire 4.7).

The SDK resumes only when every member of the *outermost* group is over, and repeats all commands
of the group when it is woken earlier. So a member's end wakes the run only when it was the last
one, and a member that comes again is ignored. Every event of a member carries the group fields of
its command unchanged, or replay breaks.

A *race* (select) is decided by its first member that completes or fails; each member that is over
wakes the run, the decided race too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

PREFIXES: Final = ("parallel_group_", "selection_member_")
SELECT: Final = "select"
_IDENTITIES: Final = {
    "activity": "activity_execution_id",
    "timer": "timer_id",
    "child": "child_workflow_run_id",
    "condition": "condition_wait_id",
}
MAX_STEP: Final = 999_999_999
"""Largest workflow sequence; ids carry it in nine digits."""


def fields(command: Mapping[str, Any]) -> dict[str, Any]:
    """The group fields of a raw command, to be copied into its events; empty outside a group."""
    return {name: value for name, value in command.items() if name.startswith(PREFIXES) and value is not None}


def outermost(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """The level of ``group`` that decides when the run is woken."""
    path = group.get("parallel_group_path")
    return path[0] if path else group


def key(group: Mapping[str, Any]) -> str | None:
    """Identifies the outermost group in its run; None outside a group."""
    if not group:
        return None
    level = outermost(group)
    return f"{level['parallel_group_base_sequence']}:{level['parallel_group_size']}"


def step(group: Mapping[str, Any]) -> int | None:
    """The workflow sequence a member brings along; None outside a group."""
    if not group:
        return None
    level = outermost(group)
    index: int = level["parallel_group_index"]
    return int(level["parallel_group_base_sequence"]) + index


def is_race(group: Mapping[str, Any]) -> bool:
    """Whether the outermost level is a durable race, which its first member decides."""
    return bool(group) and outermost(group).get("parallel_group_mode") == SELECT


@dataclass(frozen=True, slots=True)
class Member:
    """One contender of a race; it covers ``size`` steps from ``base``."""

    key: str | int
    index: int
    base: int
    size: int
    kind: str

    @property
    def place(self) -> str:
        """Names it among the members of its race."""
        return str(self.index)

    def identity(self, payload: Mapping[str, Any]) -> str | None:
        """What the operation is called in SelectionResolved; ``payload`` is that of an event of it."""
        if self.kind == "group":
            return f"group:{self.base}:{self.size}"
        name = _IDENTITIES.get(self.kind)
        return None if name is None else payload.get(name)


def contender(group: Mapping[str, Any]) -> Member:
    """The member of the race that ``group`` belongs to."""
    level = outermost(group)
    return Member(
        key=level["selection_member_key"],
        index=level["selection_member_index"],
        base=level["selection_member_base_sequence"],
        size=level["selection_member_size"],
        kind=level["selection_member_kind"],
    )


def problem(group: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with the group fields of a raw command: (field, text), or None."""
    path = group.get("parallel_group_path", [])
    if not isinstance(path, list) or not all(isinstance(level, dict) for level in path):
        return "parallel_group_path", "must be a list of objects."
    if not group:
        return None
    levels = {"": group} | {f"parallel_group_path.{number}.": level for number, level in enumerate(path)}
    for prefix, level in levels.items():
        base = level.get("parallel_group_base_sequence")
        size = level.get("parallel_group_size")
        index = level.get("parallel_group_index")
        if not _in(base, 1, MAX_STEP):
            return f"{prefix}parallel_group_base_sequence", "must be an integer of at least 1."
        if not _in(size, 1, MAX_STEP - base):
            return f"{prefix}parallel_group_size", "must be an integer of at least 1."
        if not _in(index, 0, size - 1):
            return f"{prefix}parallel_group_index", "must be an integer below the size of the group."
    if is_race(group):
        return _race_problem(outermost(group))
    return None


def _race_problem(level: Mapping[str, Any]) -> tuple[str, str] | None:
    key, kind = level.get("selection_member_key"), level.get("selection_member_kind")
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        return "selection_member_key", "must be an integer or a string that is not empty."
    if not isinstance(kind, str) or not kind:
        return "selection_member_kind", "must be a string that is not empty."
    base, size = level["parallel_group_base_sequence"], level["parallel_group_size"]
    bounds = {"base_sequence": (base, base + size - 1), "size": (1, size), "index": (0, size - 1)}
    for name, (low, high) in bounds.items():
        if not _in(level.get(f"selection_member_{name}"), low, high):
            return f"selection_member_{name}", "must be an integer that fits into the group."
    return None


def _in(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def opened(open_members: Mapping[str, int], group: Mapping[str, Any]) -> dict[str, int]:
    """Counts one more unresolved member of the outermost group."""
    name = key(group)
    return dict(open_members) if name is None else {**open_members, name: open_members.get(name, 0) + 1}


def resolved(open_members: Mapping[str, int], group: Mapping[str, Any]) -> tuple[dict[str, int], bool]:
    """Counts one member less; the second value is whether the run may be woken now."""
    name = key(group)
    left = dict(open_members)
    if name is None:
        return left, True
    count = left.pop(name, 1) - 1
    if count > 0:
        left[name] = count
    return left, count <= 0
