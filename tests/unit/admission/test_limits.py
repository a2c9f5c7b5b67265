"""Which limit holds for which queue: every field, every level, every kind of value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.admission.limits import (
    FIELDS,
    GATE_ORDER,
    GROUP_FIELDS,
    LARGEST,
    OVERRIDES,
    RUNTIME,
    SECTION,
    LimitBook,
    LimitName,
    parse_group,
    parse_limit,
)
from cluster.ids import TaskKind

KEYS = ("production:payments", "production:*", "payments", "*")
GROUPED = LimitName.GROUP_DISPATCHES

SEED: dict[str, Any] = {
    "production:payments": {
        "workflow_tasks": {
            "max_active_leases_per_queue": 8,
            "max_dispatches_per_minute": 120,
            "dispatch_budget_group": "downstream-openai",
            "max_dispatches_per_minute_per_budget_group": 600,
        },
        "activity_tasks": {"max_active_leases_per_queue": 12, "max_dispatches_per_minute": 240},
    },
    "production:*": {
        "workflow_tasks": {
            "max_active_leases_per_namespace": 300,
            "max_dispatches_per_minute_per_namespace": 6000,
        },
        "activity_tasks": {
            "max_active_leases_per_namespace": 1200,
            "max_dispatches_per_minute_per_namespace": 12000,
        },
    },
    "email": {
        "activity_tasks": {
            "max_active_leases_per_queue": 4,
            "max_dispatches_per_minute": 60,
            "dispatch_budget_group": "downstream-sendgrid",
            "max_dispatches_per_minute_per_budget_group": 300,
        }
    },
    "*": {"workflow_tasks": {"max_active_leases_per_queue": 50}},
}


def book(
    overrides: Mapping[str, Any] | None = None,
    *,
    namespace: str = "production",
    defaults: Mapping[TaskKind, Mapping[LimitName, int | None]] | None = None,
    runtime: Mapping[str, Any] | None = None,
) -> LimitBook:
    return LimitBook(namespace, defaults or {}, overrides or {}, runtime or {})


def section(kind: TaskKind, **fields: Any) -> dict[str, Any]:
    return {SECTION[kind]: fields}


def test_the_documented_example() -> None:
    limits = book(SEED)
    payments = limits.of(TaskKind.WORKFLOW, "payments")
    assert payments.numbers == (8, 300, 120, 6000, 600)
    assert payments.group == "downstream-openai"
    assert payments.source == OVERRIDES
    assert limits.of(TaskKind.ACTIVITY, "payments").numbers == (12, 1200, 240, 12000, 0)
    email = limits.of(TaskKind.ACTIVITY, "email")
    assert email.numbers == (4, 1200, 60, 12000, 300)
    assert email.group == "downstream-sendgrid"
    assert limits.of(TaskKind.WORKFLOW, "other").numbers == (50, 300, 0, 6000, 0)
    elsewhere = book(SEED, namespace="staging")
    assert elsewhere.of(TaskKind.WORKFLOW, "payments").numbers == (50, 0, 0, 0, 0)
    assert elsewhere.of(TaskKind.ACTIVITY, "email").numbers == (4, 0, 60, 0, 300)
    assert not elsewhere.of(TaskKind.ACTIVITY, "payments").limited


@pytest.mark.parametrize("kind", list(TaskKind))
@pytest.mark.parametrize("name", GATE_ORDER)
@pytest.mark.parametrize("present", list(product((False, True), repeat=4)))
def test_the_first_key_that_has_the_field_decides(
    kind: TaskKind, name: LimitName, present: tuple[bool, ...]
) -> None:
    overrides = {
        key: section(kind, **{FIELDS[name][-1]: number})
        for number, (key, there) in enumerate(zip(KEYS, present, strict=True), 1)
        if there
    }
    overrides.setdefault("*", section(kind))[SECTION[kind]]["dispatch_budget_group"] = "g"
    limits = book(overrides, defaults={kind: {name: 99}})
    expected = present.index(True) + 1 if any(present) else 99
    found = limits.of(kind, "payments")
    assert found[name] == expected
    source = OVERRIDES if any(present) else f"server.admission.{SECTION[kind]}.{name.value}"
    assert found.values[GATE_ORDER.index(name)].source == source
    other = next(k for k in TaskKind if k is not kind)
    assert limits.of(other, "payments")[name] is None


@pytest.mark.parametrize("runtime_level", range(4))
@pytest.mark.parametrize("override_level", range(4))
def test_a_more_exact_key_beats_a_later_change_and_the_same_key_does_not(
    runtime_level: int, override_level: int
) -> None:
    kind, name = TaskKind.ACTIVITY, LimitName.QUEUE_LEASES
    limits = book(
        {KEYS[override_level]: section(kind, **{name.value: 1})},
        runtime={KEYS[runtime_level]: section(kind, **{name.value: 2})},
    )
    found = limits.of(kind, "payments").values[0]
    wins = runtime_level <= override_level
    assert (found.value, found.source) == ((2, RUNTIME) if wins else (1, OVERRIDES))


def test_fields_of_one_queue_may_come_from_different_keys() -> None:
    kind = TaskKind.WORKFLOW
    names = (*GATE_ORDER[:4],)
    overrides = {
        key: section(kind, **{name.value: n})
        for n, (key, name) in enumerate(zip(KEYS, names, strict=True), 1)
    }
    assert book(overrides).of(kind, "payments").numbers == (1, 2, 3, 4, 0)


@pytest.mark.parametrize("unlimited", [0, -1, "0", "-3", "abc", "", True, [], {}, 0.9, "nan", "inf"])
def test_an_override_that_means_unlimited_ends_the_search(unlimited: Any) -> None:
    kind, name = TaskKind.ACTIVITY, LimitName.QUEUE_DISPATCHES
    overrides = {KEYS[0]: section(kind, **{name.value: unlimited}), "*": section(kind, **{name.value: 5})}
    found = book(overrides, defaults={kind: {name: 7}}).of(kind, "payments")
    assert found[name] is None
    assert found.values[2].source == OVERRIDES


def test_a_null_ends_the_search_at_the_default() -> None:
    kind, name = TaskKind.ACTIVITY, LimitName.QUEUE_DISPATCHES
    overrides = {KEYS[0]: section(kind, **{name.value: None}), "*": section(kind, **{name.value: 5})}
    found = book(overrides, defaults={kind: {name: 7}}).of(kind, "payments")
    assert found[name] == 7
    assert found.source == "server.admission.activity_tasks.max_dispatches_per_minute"
    assert not book(overrides).of(kind, "payments").limited


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        ("25", 25),
        (" 25 ", 25),
        ("+3", 3),
        (2.9, 2),
        ("2.9", 2),
        ("1e3", 1000),
        (".5", None),
        ("12x", None),
        ("0x10", None),
        ("1_000", None),
        (None, None),
        (False, None),
        (float("inf"), LARGEST),
        (float("nan"), None),
        ("9" * 40, LARGEST),
        (10**30, LARGEST),
        ("1e999", LARGEST),
        ("٣", None),
    ],
)
def test_values(value: Any, number: int | None) -> None:
    assert parse_limit(value) == number


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
def test_any_value_is_a_positive_whole_number_or_unlimited(value: Any) -> None:
    number = parse_limit(value)
    assert number is None or (type(number) is int and 0 < number <= LARGEST)
    group = parse_group(value)
    assert group is None or group == group.strip() != ""


def test_both_names_of_the_lease_limit_work_and_the_short_one_wins_in_one_object() -> None:
    kind, name = TaskKind.WORKFLOW, LimitName.QUEUE_LEASES
    short, long = FIELDS[name]
    assert (short, long) == ("max_active_leases", "max_active_leases_per_queue")
    assert book({"*": section(kind, **{short: 3})}).of(kind, "q")[name] == 3
    assert book({"*": section(kind, **{long: 4})}).of(kind, "q")[name] == 4
    assert book({"*": section(kind, **{long: 4, short: 3})}).of(kind, "q")[name] == 3
    split = {KEYS[0]: section(kind, **{long: 4}), "*": section(kind, **{short: 3})}
    assert book(split).of(kind, "payments")[name] == 4


def test_both_names_of_the_group_are_looked_up_key_by_key() -> None:
    kind = TaskKind.WORKFLOW
    canonical, alias = GROUP_FIELDS
    limit = {GROUPED.value: 5}
    split = {KEYS[0]: section(kind, **{alias: " near "}), "*": section(kind, **{canonical: "far", **limit})}
    found = book(split).of(kind, "payments")
    assert (found.group, found[GROUPED]) == ("near", 5)
    both = {"*": section(kind, **{canonical: "a", alias: "b", **limit})}
    assert book(both).of(kind, "payments").group == "a"


@pytest.mark.parametrize("group", ["", "  ", None, 3, [], {}])
def test_a_group_limit_without_a_group_is_no_limit(group: Any) -> None:
    kind = TaskKind.ACTIVITY
    overrides = {
        KEYS[0]: section(kind, dispatch_budget_group=group),
        "*": section(kind, dispatch_budget_group="g", **{GROUPED.value: 5}),
    }
    found = book(overrides).of(kind, "payments")
    assert (found.group, found[GROUPED], found.limited) == (None, None, False)


def test_keys_are_literal() -> None:
    kind = TaskKind.ACTIVITY
    eight = section(kind, max_active_leases=8)
    for key in ("Production:payments", "prod*:payments", "*:payments", "PAYMENTS", "production:"):
        assert not book({key: eight}).of(kind, "payments").limited
    assert book({"*": eight}).of(kind, "*")[LimitName.QUEUE_LEASES] == 8
    assert book({"a:b:c": eight}, namespace="a").of(kind, "b:c")[LimitName.QUEUE_LEASES] == 8


@pytest.mark.parametrize("broken", [None, 3, "text", [], {"workflow_tasks": 3}, {"workflow_tasks": []}])
def test_a_misshapen_entry_is_as_good_as_none(broken: Any) -> None:
    kind = TaskKind.WORKFLOW
    found = book({KEYS[0]: broken, "*": section(kind, max_active_leases=2)}).of(kind, "payments")
    assert found[LimitName.QUEUE_LEASES] == 2


def test_leases_are_counted_where_any_queue_of_the_namespace_has_a_lease_limit() -> None:
    kind, other = TaskKind.ACTIVITY, TaskKind.WORKFLOW
    for key in (*KEYS, "production:elsewhere"):
        limits = book({key: section(kind, max_active_leases=1)})
        assert limits.counts_leases(kind)
        assert not limits.counts_leases(other)
    assert not book({"staging:payments": section(kind, max_active_leases=1)}).counts_leases(kind)
    assert not book({"*": section(kind, max_dispatches_per_minute=1)}).counts_leases(kind)
    assert book(defaults={kind: {LimitName.NAMESPACE_LEASES: 1}}).counts_leases(kind)
    assert book(runtime={"production:x": section(kind, max_active_leases=1)}).counts_leases(kind)


def test_sources_stand_once_each_in_the_order_of_the_gate() -> None:
    kind = TaskKind.WORKFLOW
    limits = book(
        {"*": section(kind, max_dispatches_per_minute=3, max_dispatches_per_minute_per_namespace=4)},
        defaults={kind: {LimitName.NAMESPACE_LEASES: 2}},
        runtime={"production:q": section(kind, max_active_leases=1)},
    )
    assert limits.of(kind, "q").source == ";".join(
        (RUNTIME, "server.admission.workflow_tasks.max_active_leases_per_namespace", OVERRIDES)
    )
    default = "server.admission.workflow_tasks.max_active_leases_per_queue"
    assert book().of(kind, "q").source == default
