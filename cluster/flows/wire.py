"""What workers and clients send about steps: options, outputs, failures.

Payloads inside stay bytes: they are checked to be JSON and never turned into objects. Unknown
members are refused, because a misspelt one would silently change what a flow does.

Options of a step (all members may be missing)::

    {"wait_for": METHOD,             # the step has a wait_for method; {} for all defaults
     "execute": METHOD,
     "proceed_on_wait_for_failure": false,
     "recovery": {"step_type": TYPE, "options": OPTIONS},
     "lock_attributes": [NAME]}

    METHOD = {"timeout_seconds": 7200, "heartbeat_timeout_seconds": 60,
              "retry": {"initial_interval_seconds": 1, "backoff_coefficient": 2,
                        "maximum_interval_seconds": 100, "maximum_attempts": 0,
                        "total_duration_seconds": 14400}}
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
import orjson
from msgspec import Meta, Raw

from cluster.errors import Refused
from cluster.flows.limits import MESSAGES_AT_ONCE
from cluster.flows.records import USUAL_METHOD, USUAL_OPTIONS, MethodOptions, Mode, StepOptions
from cluster.plain_numbers import number_problem
from cluster.times import milliseconds

NAME_LENGTH: Final = 256
TEXT_LENGTH: Final = 16_384
"""Longest message or stack trace of a failure that is kept, in characters."""
LONGEST_SECONDS: Final = 100 * 365 * 24 * 3600

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)]
Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)]
Delay = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of messages."""


class RetryFields(Wire, frozen=True):
    initial_interval_seconds: Seconds = 1
    backoff_coefficient: Annotated[float, Meta(ge=1, le=100)] = 2
    maximum_interval_seconds: Seconds = 100
    maximum_attempts: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    total_duration_seconds: Seconds = 14_400


class MethodFields(Wire, frozen=True):
    timeout_seconds: Seconds = 7_200
    heartbeat_timeout_seconds: Annotated[float, Meta(ge=10, le=LONGEST_SECONDS)] = 60
    retry: RetryFields = RetryFields()

    def read(self) -> MethodOptions:
        options = MethodOptions(
            timeout_ms=milliseconds(self.timeout_seconds),
            heartbeat_ms=milliseconds(self.heartbeat_timeout_seconds),
            initial_ms=milliseconds(self.retry.initial_interval_seconds),
            coefficient=self.retry.backoff_coefficient,
            longest_ms=milliseconds(self.retry.maximum_interval_seconds),
            max_attempts=self.retry.maximum_attempts,
            total_ms=milliseconds(self.retry.total_duration_seconds),
        )
        return USUAL_METHOD if options == USUAL_METHOD else options


class RecoveryFields(Wire, frozen=True):
    step_type: Name
    options: OptionFields | None = None


class OptionFields(Wire, frozen=True):
    wait_for: MethodFields | None = None
    execute: MethodFields = MethodFields()
    proceed_on_wait_for_failure: bool = False
    recovery: RecoveryFields | None = None
    lock_attributes: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()

    def read(self) -> StepOptions:
        if self is _NO_OPTIONS or self == _NO_OPTIONS:
            return USUAL_OPTIONS
        recovery = self.recovery
        return StepOptions(
            wait_for=self.wait_for.read() if self.wait_for is not None else None,
            execute=self.execute.read(),
            proceed=self.proceed_on_wait_for_failure,
            recovery=recovery.step_type if recovery else "",
            recovery_options=recovery.options.read() if recovery and recovery.options else None,
            locks=tuple(dict.fromkeys(self.lock_attributes)),
        )


_NO_OPTIONS: Final = OptionFields()
"""What a step has for which none were sent."""


class NextStep(Wire, frozen=True):
    step_type: Name
    input: Raw = Raw(b"null")
    options: OptionFields = _NO_OPTIONS


class Publication(Wire, frozen=True):
    channel: Name
    value: Raw


class ConditionFields(Wire, frozen=True):
    id: Name
    timer_seconds: Delay | None = None
    channel: Name | None = None
    count: Annotated[int, Meta(ge=1, le=MESSAGES_AT_ONCE)] = 1


class WaitFields(Wire, frozen=True):
    mode: Mode = Mode.ALL
    items: tuple[ConditionFields, ...] = ()


class WaitOutput(Wire, frozen=True):
    """What wait_for returns."""

    conditions: WaitFields = WaitFields()
    attributes: dict[Name, Raw] = {}
    publish: tuple[Publication, ...] = ()


class FailFields(Wire, frozen=True):
    message: str
    type: str = ""


class CancelFields(Wire, frozen=True):
    step_types: tuple[Name, ...] = ()
    siblings: bool = False


class DecisionFields(Wire, frozen=True):
    """Exactly one of next, complete, fail and dead_end; cancel may go along with next and dead_end."""

    next: tuple[NextStep, ...] = ()
    complete: Raw = Raw()
    fail: FailFields | None = None
    dead_end: bool = False
    cancel: CancelFields | None = None


class ExecuteOutput(Wire, frozen=True):
    """What execute returns."""

    decision: DecisionFields
    attributes: dict[Name, Raw] = {}
    publish: tuple[Publication, ...] = ()


class RpcOutput(Wire, frozen=True):
    """What an RPC handler returns."""

    result: Raw = Raw(b"null")
    attributes: dict[Name, Raw] = {}
    publish: tuple[Publication, ...] = ()
    next: tuple[NextStep, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """How an attempt failed; what else a worker tells about it is not kept."""

    message: str = ""
    type: str = "Error"
    non_retryable: bool = False
    retry_after_seconds: Delay | None = None
    stack_trace: str | None = None

    def shown(self) -> dict[str, Any]:
        """What is kept and shown of it."""
        shown: dict[str, Any] = {"message": self.message[:TEXT_LENGTH], "type": self.type[:NAME_LENGTH]}
        if self.non_retryable:
            shown["non_retryable"] = True
        if self.stack_trace:
            shown["stack_trace"] = self.stack_trace[:TEXT_LENGTH]
        return shown


Output = TypeVar("Output", WaitOutput, ExecuteOutput, RpcOutput)

_outputs: Final[dict[type[Wire], msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind) for kind in (WaitOutput, ExecuteOutput, RpcOutput)
}
_options = msgspec.json.Decoder(OptionFields)
_step = msgspec.json.Decoder(NextStep)


def read_output(kind: type[Output], output: bytes | dict[str, Any] | None) -> Output:
    """A worker's output. Raises Refused ``invalid_output`` (422)."""
    try:
        raw = output if isinstance(output, bytes) else orjson.dumps(output if output is not None else {})
        raw.decode()  # payloads are not looked into below
        problem = number_problem(raw)
        if problem is not None:
            raise invalid_output(problem)
        found: Output = _outputs[kind].decode(raw)
    except (msgspec.DecodeError, orjson.JSONEncodeError, UnicodeDecodeError) as error:
        raise invalid_output(str(error)) from None
    if isinstance(found, ExecuteOutput):
        _check_decision(found.decision)
    elif isinstance(found, WaitOutput):
        _check_conditions(found.conditions)
    return found


def read_failure(failure: dict[str, Any] | None) -> Failure:
    """A worker's failure; one that is malformed is a failure all the same, and not tried again where the
    worker said so.
    """
    told = failure or {}
    try:
        return msgspec.convert(told, Failure)
    except msgspec.ValidationError as error:
        message = told.get("message")
        text = message if isinstance(message, str) else f"malformed failure: {error}"
        final = told.get("non_retryable") is True
        return Failure(message=text, type="MalformedFailure", non_retryable=final)


def read_options(options: object) -> StepOptions:
    """Step options as a client sent them. Raises ValueError with a text that names the member."""
    try:
        return _options.decode(orjson.dumps(options if options is not None else {})).read()
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def read_step(step: object) -> NextStep:
    """A step as a client sent it: type, input and options. Raises ValueError naming the member."""
    try:
        return _step.decode(orjson.dumps(step))
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def invalid_output(text: str) -> Refused:
    return Refused("invalid_output", f"The output is not valid: {text}", status=422)


def _check_conditions(wait: WaitFields) -> None:
    for item in wait.items:
        if (item.timer_seconds is None) == (item.channel is None):
            raise invalid_output(f"condition {item.id!r} needs either timer_seconds or channel")
    if len({item.id for item in wait.items}) < len(wait.items):
        raise invalid_output("two conditions have the same id")


def _check_decision(decision: DecisionFields) -> None:
    ends = (bool(decision.next), bool(bytes(decision.complete)), decision.fail is not None, decision.dead_end)
    if sum(ends) != 1:
        raise invalid_output("a decision has exactly one of next, complete, fail and dead_end")
    if decision.cancel is not None and not (decision.next or decision.dead_end):
        raise invalid_output("a decision that ends the flow cancels everything anyway")
