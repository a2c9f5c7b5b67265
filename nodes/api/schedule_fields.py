"""What requests about schedules contain, and the records that are made of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from annotated_types import Ge, Le, MaxLen
from pydantic import AwareDatetime, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from cluster.errors import Refused, ValidationFailed
from cluster.schedules.records import Action, Interval, Overlap, Spec, Status
from nodes.api.fields import Fields, Integer, OptionalText, Seconds, ShortText, Trimmed
from nodes.api.payloads import read_payload

_DEFAULT_EVENTS: Final = 100
_MOST_EVENTS: Final = 500
_MOST_TIMES: Final = 100
"""Most cron expressions, and most intervals, of one schedule."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(value: Any) -> Any:
    """A date or a date-time; without an offset it is UTC."""
    if not isinstance(value, str):
        raise PydanticCustomError("datetime_type", "The value must be a date.")
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise PydanticCustomError("datetime_parsing", "The value is not a valid date.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_Note = Annotated[Annotated[str, MaxLen(1000)] | None, Trimmed]
_Short = Annotated[Annotated[str, MaxLen(64)] | None, Trimmed]
_ScheduleId = Annotated[Annotated[str, MaxLen(128)] | None, Trimmed]
_Jitter = Annotated[Annotated[int, Ge(0), Le(3600)] | None, Integer]
_Runs = Annotated[Annotated[int, Ge(1), Le((1 << 53) - 1)] | None, Integer]
_Overlap = Annotated[Overlap | None, Trimmed]
_Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]


class _Interval(Fields):
    every: Annotated[str, MaxLen(64), Trimmed]
    offset: _Short = None


class _Spec(Fields):
    cron_expressions: Annotated[list[Annotated[str, MaxLen(255), Trimmed]], MaxLen(_MOST_TIMES)] | None = None
    intervals: Annotated[list[_Interval], MaxLen(_MOST_TIMES)] | None = None
    timezone: _Short = None


class _Timeouts(Fields):
    """Time-outs of the workflow; the legacy names are read as the present ones."""

    execution_timeout_seconds: Seconds = None
    run_timeout_seconds: Seconds = None
    workflow_execution_timeout: Seconds = None
    workflow_run_timeout: Seconds = None


class _Action(_Timeouts):
    workflow_type: ShortText
    task_queue: OptionalText = None
    input: Any = None


class _ChangedAction(_Timeouts):
    workflow_type: OptionalText = None
    task_queue: OptionalText = None
    input: Any = None


class Options(Fields):
    overlap_policy: _Overlap = None
    jitter_seconds: _Jitter = None
    max_runs: _Runs = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    note: _Note = None


class Create(Options):
    schedule_id: _ScheduleId = None
    spec: _Spec
    action: _Action
    paused: bool | None = None


class Update(Options):
    spec: _Spec | None = None
    action: _ChangedAction | None = None


class Noted(Fields):
    note: _Note = None


class Trigger(Fields):
    overlap_policy: _Overlap = None


class Backfill(Fields):
    start_time: _Moment
    end_time: _Moment
    overlap_policy: _Overlap = None


class Listed(Fields):
    status: Annotated[Status | None, Trimmed] = None
    workflow_type: OptionalText = None
    query: OptionalText = None
    page_size: Annotated[Annotated[int, Ge(1), Le(200)] | None, Integer] = None
    next_page_token: Annotated[str | None, Trimmed] = None


class HistoryPage(Fields):
    limit: str | None = Field(default=None, description="1 to 500; anything else means 100")
    after_sequence: str | None = Field(default=None, description="a whole number, 0 or more")


def spec_of(spec: _Spec) -> Spec:
    """The times of a schedule, as they are kept."""
    return Spec(
        cron_expressions=tuple(spec.cron_expressions or ()),
        intervals=tuple(Interval(every=i.every, offset=i.offset) for i in spec.intervals or ()),
        timezone=spec.timezone,
    )


def action_of(action: _Action) -> Action:
    """What a new schedule does."""
    return Action(**{"input": _input([]), **changes_of_action(action)})


def changes_of_action(action: _Action | _ChangedAction) -> dict[str, Any]:
    """The members that a request gives, by the names of the record; legacy names are read too."""
    given: dict[str, Any] = {
        "workflow_type": action.workflow_type,
        "task_queue": action.task_queue,
        "input": None if action.input is None else _input(action.input),
        "execution_timeout_seconds": action.execution_timeout_seconds or action.workflow_execution_timeout,
        "run_timeout_seconds": action.run_timeout_seconds or action.workflow_run_timeout,
    }
    return {name: value for name, value in given.items() if value is not None}


def _input(value: Any) -> Any:
    if not isinstance(value, list | dict):
        raise ValidationFailed({"action.input": ["The action.input field must be a list or an envelope."]})
    return read_payload(value, "action.input")


def milliseconds(moment: datetime) -> int:
    """A moment, in milliseconds since 1970."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def sequence_after(text: str | None) -> int:
    """The number of the event after which a page begins. Raises Refused."""
    if text is None or not text.strip():
        return 0
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise Refused(
            "invalid_after_sequence", "after_sequence must be a whole number, 0 or more.", status=422
        )
    return int(digits)


def most_events(text: str | None) -> int:
    """How many events a page has at most."""
    digits = (text or "").strip()
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else 0
    return min(number, _MOST_EVENTS) or _DEFAULT_EVENTS
