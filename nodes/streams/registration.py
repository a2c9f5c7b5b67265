"""What a worker says of itself: checked against the limits of R22 to R24."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cluster.queues.stream_workers import FlowSkill, Skills
from cluster.settings.schema import MatchingSettings
from nodes.streams.frames import FlowTypeSupport, Hello

MOST_NAMES: Final = 256
"""Most step types, and most RPC names, that a worker may list for one flow type."""


class RegistrationRefused(Exception):
    """The text says what is wrong, without quoting a value."""


def read_skills(hello: Hello, matching: MatchingSettings) -> Skills:
    """What the worker serves. Lengths count characters. Raises RegistrationRefused."""
    _check_name("worker_id", hello.worker_id, matching.max_queue_length)
    if hello.reserved_rpc_slots and hello.reserved_rpc_slots >= hello.task_limit:
        raise RegistrationRefused("reserved_rpc_slots must be less than task_limit")
    if not hello.flow_types:
        raise RegistrationRefused("flow_types must name at least one flow type")
    if len(hello.flow_types) > matching.max_flow_types:
        raise RegistrationRefused(f"flow_types may name {matching.max_flow_types} flow types")
    if len({flow.name for flow in hello.flow_types}) < len(hello.flow_types):
        raise RegistrationRefused("flow_types names a flow type twice")
    return Skills(
        tuple(
            sorted(
                (_skill(flow, matching.max_flow_type_length) for flow in hello.flow_types),
                key=lambda skill: skill.flow_type,
            )
        )
    )


def _skill(flow: FlowTypeSupport, longest: int) -> FlowSkill:
    _check_name("the name of a flow type", flow.name, longest)
    return FlowSkill(
        flow.name,
        _names("step_types", flow.step_types, longest),
        _names("rpc_names", flow.rpc_names, longest),
    )


def _names(what: str, names: Iterable[str] | None, longest: int) -> frozenset[str] | None:
    if names is None:
        return None
    distinct = frozenset(names)
    if len(distinct) > MOST_NAMES:
        raise RegistrationRefused(f"{what} may have {MOST_NAMES} names")
    for name in distinct:
        _check_name(f"a name in {what}", name, longest)
    return distinct


def _check_name(what: str, name: str, longest: int) -> None:
    if not name:
        raise RegistrationRefused(f"{what} must not be empty")
    if len(name) > longest:
        raise RegistrationRefused(f"{what} may have {longest} characters")
