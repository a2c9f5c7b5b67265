"""What handlers return: where a flow goes next, and what a step waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from nodes.worker.errors import DefinitionError
from nodes.worker.options import StepOptions


class _Nothing(StrEnum):
    NOTHING = "nothing"


NOTHING: Final = _Nothing.NOTHING
"""Stands where None would be a value."""


class Next(msgspec.Struct, frozen=True):
    """One step that begins. ``options`` None: those of its definition."""

    step_type: str
    input: Any = None
    options: StepOptions | None = None


class Decision(msgspec.Struct, frozen=True):
    """What ``execute`` returns. Made by goto, fan_out, complete, fail and dead_end."""

    next: tuple[Next, ...] = ()
    result: Any = NOTHING
    failure: tuple[str, str] | None = None
    ends_branch: bool = False
    cancelled_types: tuple[str, ...] = ()
    cancels_siblings: bool = False

    def cancelling(self, *steps: Any) -> Decision:
        """The same, and running or queued executions of these step types are cancelled."""
        self._check_goes_on()
        return replace(self, cancelled_types=(*self.cancelled_types, *map(step_name, steps)))

    def cancelling_siblings(self) -> Decision:
        """The same, and the executions that were started together with this one are cancelled."""
        self._check_goes_on()
        return replace(self, cancels_siblings=True)

    def _check_goes_on(self) -> None:
        if not (self.next or self.ends_branch):
            raise DefinitionError("a decision that ends the flow cancels everything anyway")


def fan_out(*decisions: Decision | Iterable[Decision]) -> Decision:
    """Begin the steps of several ``goto`` at once: ``fan_out(goto(Pack, i) for i in items)``."""
    steps: list[Next] = []
    for decision in decisions:
        for one in (decision,) if isinstance(decision, Decision) else decision:
            if not one.next:
                raise DefinitionError("fan_out takes decisions made by goto")
            steps.extend(one.next)
    return Decision(next=tuple(steps)) if steps else dead_end()


def complete(result: Any = None) -> Decision:
    """The flow is completed with a result; everything else in it ends."""
    return Decision(result=result)


def fail(message: str, *, type: str = "") -> Decision:
    """The flow has failed; everything else in it ends."""
    return Decision(failure=(message, type))


def dead_end() -> Decision:
    """Nothing follows this step. The flow completes when its last open step has ended so."""
    return Decision(ends_branch=True)


# -- conditions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timer:
    """Holds after so many seconds."""

    seconds: float
    id: str = ""


@dataclass(frozen=True, slots=True)
class Channel:
    """Holds when the channel has so many messages; then it takes them."""

    name: str
    count: int = 1
    id: str = ""


Condition = Timer | Channel


class WaitMode(StrEnum):
    """How many of the conditions have to hold."""

    ANY = "any"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Wait:
    """What ``wait_for`` returns. Made by wait_any and wait_all; a condition alone will do, too."""

    mode: WaitMode
    conditions: tuple[Condition, ...]

    def wire(self) -> dict[str, Any]:
        items: list[dict[str, Any]] = []
        taken: set[str] = set()
        for condition in self.conditions:
            name = condition.id or _free_id(condition, taken)
            if name in taken:
                raise DefinitionError(f"two conditions have the id {name!r}")
            taken.add(name)
            if isinstance(condition, Timer):
                items.append({"id": name, "timer_seconds": condition.seconds})
            else:
                items.append({"id": name, "channel": condition.name, "count": condition.count})
        return {"mode": self.mode.value, "items": items}


def timer(seconds: float, *, id: str = "") -> Timer:
    """A condition that holds after ``seconds``. Without an id it is called ``timer``, ``timer-2``, ..."""
    if not seconds >= 0:
        raise DefinitionError("a timer needs 0 seconds or more")
    return Timer(seconds, id)


def channel(name: str, count: int = 1, *, id: str = "") -> Channel:
    """A condition that holds when the channel has ``count`` messages. Without an id it is called as
    the channel is.
    """
    if count < 1:
        raise DefinitionError("a channel condition needs at least one message")
    return Channel(name, count, id)


def wait_any(*conditions: Condition) -> Wait:
    """Go on when one condition holds."""
    return Wait(WaitMode.ANY, conditions)


def wait_all(*conditions: Condition) -> Wait:
    """Go on when all conditions hold; without any, at once."""
    return Wait(WaitMode.ALL, conditions)


def _free_id(condition: Condition, taken: set[str]) -> str:
    base = "timer" if isinstance(condition, Timer) else condition.name
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def step_name(step: Any) -> str:
    """The name of a step class, a step, or the name itself."""
    name = step if isinstance(step, str) else getattr(step, "name", None)
    if not isinstance(name, str) or not name:
        raise DefinitionError(f"{step!r} is no step")
    return name
