"""Flows: steps and RPCs under one stable name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, overload

from nodes.worker.decisions import step_name
from nodes.worker.errors import DefinitionError
from nodes.worker.handlers import Handler
from nodes.worker.options import MethodOptions
from nodes.worker.steps import MethodStep, Step, StepLike, wire_options

LONGEST_NAME: Final = 256
"""Characters."""
_USUAL_OPTIONS: Final = {"execute": MethodOptions().wire()}
"""The server has the same defaults (docs/protocol.md)."""


class Rpc:
    """A synchronous handler of a flow, made by :func:`rpc`."""

    def __init__(self, handler: Callable[..., Any], name: str, lock_attributes: tuple[str, ...]) -> None:
        self.name = name
        self.handler = handler
        self.lock_attributes = lock_attributes


@overload
def rpc(method: Callable[..., Any]) -> Rpc: ...
@overload
def rpc(*, name: str = "", lock_attributes: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Rpc]: ...
def rpc(
    method: Callable[..., Any] | None = None, *, name: str = "", lock_attributes: Sequence[str] = ()
) -> Rpc | Callable[[Callable[..., Any]], Rpc]:
    """Decorator: clients can call this method of a flow. What it returns is the result.

    ``lock_attributes``: no other RPC and no step that locks one of these attributes runs meanwhile;
    a call that finds one locked is refused with RpcLockConflict.
    """

    def decorate(function: Callable[..., Any]) -> Rpc:
        return Rpc(function, name or function.__name__, tuple(lock_attributes))

    return decorate if method is None else decorate(method)


class Flow:
    """A durable program made of steps.

    ``name`` is stored on the server and unique there. ``steps`` lists step classes (or steps, when
    they need arguments); methods decorated with :func:`step` and :func:`rpc` belong to it by
    themselves. The flow begins with ``start``, without it with the first of its steps. ``on_timeout``
    is the step that follows, once, when a run does not end within its timeout: everything else is
    cancelled then, and ``ctx.failure`` says why it runs. ::

        class Order(Flow, name="order"):
            steps = [Charge, Ship]
    """

    name: ClassVar[str]
    steps: Sequence[StepLike] = ()
    start: ClassVar[Any] = None
    on_timeout: ClassVar[Any] = None

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if name or "name" not in vars(cls):
            cls.name = name or cls.__name__


@dataclass(frozen=True)
class FlowShape:
    """What can be said of a flow without an instance of it."""

    name: str
    start: StepLike
    steps: Mapping[str, StepLike]
    rpcs: Mapping[str, Rpc]
    on_timeout: StepLike | None = None

    def options(self, step: StepLike) -> dict[str, Any]:
        """The wire options of one of the flow's steps."""
        return wire_options(step, self.steps)


def shape_of(flow: Flow | type[Flow]) -> FlowShape:
    """Look at a flow. Raises DefinitionError."""
    kind = flow if isinstance(flow, type) else type(flow)
    _check_name("flow", kind.name)
    members = _members(kind)
    steps: dict[str, StepLike] = {}
    for one in (*flow.steps, *(m for m in members if isinstance(m, MethodStep))):
        _check_name("step", one.name)
        if one.name in steps:
            raise DefinitionError(f"flow {kind.name!r} has two steps with the name {one.name!r}")
        steps[one.name] = one
    if not steps:
        raise DefinitionError(f"flow {kind.name!r} has no steps")
    rpcs: dict[str, Rpc] = {}
    for found in (m for m in members if isinstance(m, Rpc)):
        _check_name("RPC", found.name)
        if found.name in rpcs:
            raise DefinitionError(f"flow {kind.name!r} has two RPCs with the name {found.name!r}")
        rpcs[found.name] = found
    start = next(iter(steps)) if kind.start is None else step_name(kind.start)
    if start not in steps:
        raise DefinitionError(f"flow {kind.name!r} starts with {start!r}, which is none of its steps")
    on_timeout = None if kind.on_timeout is None else step_name(kind.on_timeout)
    if on_timeout is not None and on_timeout not in steps:
        raise DefinitionError(f"flow {kind.name!r} has {on_timeout!r} on_timeout, which is none of its steps")
    shape = FlowShape(kind.name, steps[start], steps, rpcs, steps[on_timeout] if on_timeout else None)
    for one in steps.values():
        shape.options(one)
    return shape


@dataclass(frozen=True)
class BoundStep:
    """A step that can be run."""

    wait_for: Handler | None
    execute: Handler
    non_retryable: tuple[type[BaseException], ...]


@dataclass(frozen=True)
class BoundFlow:
    """A flow that can be run."""

    shape: FlowShape
    steps: Mapping[str, BoundStep]
    rpcs: Mapping[str, Handler]
    unusual_options: Mapping[str, dict[str, Any]]
    """Wire options by step, where they are not those that a step has for which none are sent."""


def bind(flow: Flow | type[Flow]) -> BoundFlow:
    """Make a flow ready to run; a class is instantiated. Raises DefinitionError."""
    made = flow() if isinstance(flow, type) else flow
    shape = shape_of(made)
    steps = {name: _bind_step(made, one) for name, one in shape.steps.items()}
    rpcs = {name: Handler(found.handler.__get__(made), f"RPC {name!r}") for name, found in shape.rpcs.items()}
    options = {name: shape.options(one) for name, one in shape.steps.items()}
    unusual = {name: wire for name, wire in options.items() if wire != _USUAL_OPTIONS}
    return BoundFlow(shape, steps, rpcs, unusual)


def _bind_step(flow: Flow, step: StepLike) -> BoundStep:
    ending = step.options.non_retryable
    if isinstance(step, MethodStep):
        waiting = step.waiting and Handler(step.waiting.__get__(flow), f"wait_for of step {step.name!r}")
        return BoundStep(waiting, Handler(step.execute.__get__(flow), f"step {step.name!r}"), ending)
    made: Step[Any] = step() if isinstance(step, type) else step
    waits = Handler(made.wait_for, f"wait_for of step {step.name!r}") if step.waits() else None
    return BoundStep(waits, Handler(made.execute, f"step {step.name!r}"), ending)


def _members(kind: type[Flow]) -> list[object]:
    """Members in the order of their definition, those of base classes first."""
    found: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        found.update(vars(base))
    # A wait_for method stands in the class under its own name, too, as the step it belongs to.
    return list({id(member): member for member in found.values()}.values())


def _check_name(what: str, name: str) -> None:
    if not name or len(name) > LONGEST_NAME:
        raise DefinitionError(f"the name of a {what} must have 1 to {LONGEST_NAME} characters")
