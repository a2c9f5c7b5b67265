"""Steps: classes with ``execute`` and perhaps ``wait_for``, or decorated methods of a flow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar, overload

from nodes.worker.context import StepContext
from nodes.worker.decisions import Condition, Decision, Next, Wait, step_name, wait_all
from nodes.worker.errors import DefinitionError
from nodes.worker.options import StepOptions

In = TypeVar("In")

ExecuteResult = Decision | Awaitable[Decision]
WaitResult = Wait | Condition | Awaitable[Wait | Condition]


class Step(ABC, Generic[In]):
    """A unit of durable work; ``In`` is the type of its input.

    Handlers are async functions or plain ones, which run in threads. Their last parameter, the
    input, may be left out; its annotation decides what the JSON is converted to. An attempt may run
    more than once: use ``ctx.idempotency_key`` for effects on the outside.

    ``name`` is stored on the server and must stay the same when the class is renamed::

        class Charge(Step[Order], name="charge"):
            options = StepOptions(execute=MethodOptions(retry=RetryPolicy(maximum_attempts=5)))

            async def execute(self, ctx: StepContext, order: Order) -> Decision: ...
    """

    name: ClassVar[str]
    options: ClassVar[StepOptions] = StepOptions()

    def __init_subclass__(cls, *, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if name or "name" not in vars(cls):
            cls.name = name or cls.__name__

    def wait_for(self, ctx: StepContext, input: In) -> WaitResult:
        """What has to hold before ``execute`` is called. Override it or leave it out."""
        return wait_all()

    @abstractmethod
    def execute(self, ctx: StepContext, input: In) -> ExecuteResult:
        """Do the work and decide what comes next."""

    @classmethod
    def waits(cls) -> bool:
        """Whether the step has a ``wait_for`` of its own."""
        return cls.wait_for is not Step.wait_for


Execute = Callable[[Any, StepContext, In], ExecuteResult]
WaitFor = Callable[[Any, StepContext, In], WaitResult]


class MethodStep(Generic[In]):
    """A step made of methods of a flow by :func:`step`."""

    def __init__(self, execute: Callable[..., ExecuteResult], name: str, options: StepOptions) -> None:
        self.name = name
        self.options = options
        self.execute = execute
        self.waiting: Callable[..., WaitResult] | None = None

    def wait_for(self, method: Callable[..., WaitResult]) -> MethodStep[In]:
        """Decorator: ``method`` says what has to hold before the step is executed."""
        self.waiting = method
        return self

    def waits(self) -> bool:
        return self.waiting is not None


StepLike = type[Step[Any]] | Step[Any] | MethodStep[Any]
"""Whatever stands for a step in a flow's definition."""


class StepDecorator(Protocol):
    """Makes a step of a method, with or without an input."""

    @overload
    def __call__(self, method: Execute[In], /) -> MethodStep[In]: ...
    @overload
    def __call__(self, method: Callable[[Any, StepContext], ExecuteResult], /) -> MethodStep[None]: ...


@overload
def step(method: Execute[In]) -> MethodStep[In]: ...
@overload
def step(method: Callable[[Any, StepContext], ExecuteResult]) -> MethodStep[None]: ...
@overload
def step(*, name: str = "", options: StepOptions | None = None) -> StepDecorator: ...
def step(
    method: Callable[..., ExecuteResult] | None = None,
    *,
    name: str = "",
    options: StepOptions | None = None,
) -> Any:
    """Decorator: a method of a flow is the ``execute`` of a step.

    ::

        class Order(Flow):
            @step
            async def ship(self, ctx: StepContext, address: str) -> Decision: ...

            @ship.wait_for
            def ship_when(self, ctx: StepContext, address: str) -> Wait: ...
    """

    def decorate(function: Callable[..., ExecuteResult]) -> MethodStep[Any]:
        return MethodStep(function, name or function.__name__, options or StepOptions())

    return decorate if method is None else decorate(method)


@overload
def goto(
    step: type[Step[In]] | Step[In] | MethodStep[In], input: In, *, options: StepOptions | None = None
) -> Decision: ...
@overload
def goto(
    step: type[Step[None]] | Step[None] | MethodStep[None], *, options: StepOptions | None = None
) -> Decision: ...
@overload
def goto(step: str, input: Any = None, *, options: StepOptions | None = None) -> Decision: ...
def goto(step: Any, input: Any = None, *, options: StepOptions | None = None) -> Decision:
    """Begin a step of this flow. Without ``options`` those of its definition hold."""
    return Decision(next=(Next(step_name(step), input, options),))


def wire_options(
    step: StepLike, steps: Mapping[str, StepLike], options: StepOptions | None = None
) -> dict[str, Any]:
    """The options of a step as the server takes them; ``steps`` are those of its flow, by name.

    Raises DefinitionError when recoveries go in circles.
    """
    return _wire_options(step, steps, options or step.options, ())


def _wire_options(
    step: StepLike, steps: Mapping[str, StepLike], options: StepOptions, above: tuple[str, ...]
) -> dict[str, Any]:
    wire: dict[str, Any] = {"execute": options.execute.wire()}
    if step.waits():
        wire["wait_for"] = options.wait_for.wire()
        wire["proceed_on_wait_for_failure"] = options.proceed_on_wait_for_failure
    if options.lock_attributes:
        wire["lock_attributes"] = list(options.lock_attributes)
    if options.recovery is not None:
        name = step_name(options.recovery)
        path = (*above, step.name)
        if name in path:
            raise DefinitionError(f"recoveries go in circles: {' -> '.join((*path, name))}")
        found = steps.get(name) if isinstance(options.recovery, str) else options.recovery
        wire["recovery"] = {"step_type": name}
        if found is not None:
            wire["recovery"]["options"] = _wire_options(found, steps, found.options, path)
    return wire
