"""What passes between the node that asks a query, the queue it waits in, and the worker."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
from ulid import ULID

from cluster.workflows.records import Payload


@dataclass(frozen=True, slots=True)
class QueryTaskId:
    """``<ULID>.<queue in base64>``: an answer finds the slot of its task queue by the id alone."""

    key: str
    queue: str

    @staticmethod
    def draw(queue: str) -> QueryTaskId:
        return QueryTaskId(str(ULID()), queue)

    def __str__(self) -> str:
        return f"{self.key}.{urlsafe_b64encode(self.queue.encode()).decode().rstrip('=')}"

    @staticmethod
    def parse(text: str) -> QueryTaskId | None:
        """The parts of an id, or None when ``text`` is none."""
        key, _, packed = text.partition(".")
        try:
            ULID.from_str(key)
            queue = urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
        except ValueError:
            return None
        return QueryTaskId(key, queue)


class QuestionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The stored part of a query task: everything but its lease and the run's history."""

    workflow_id: str
    run_id: str
    workflow_type: str
    query_name: str
    payload_codec: str
    arguments: Payload | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A query that a client asks. ``marker`` is the build the run is bound to, or ""."""

    namespace: str
    task_queue: str
    marker: str
    body: QuestionBody


class AnswerState(StrEnum):
    """How a query ended; the value is its stored form."""

    COMPLETED = "c"
    FAILED = "f"
    TIMED_OUT = "t"


@dataclass(frozen=True, slots=True)
class Answer:
    """``fields`` are what the worker sent: result and result_envelope, or the failure."""

    state: AnswerState
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueryPoll:
    """One logical long poll for queries; see :class:`cluster.queues.model.PollRequest`."""

    namespace: str
    queue: str
    worker_id: str
    marker: str = ""
    types: frozenset[str] = field(default_factory=frozenset)
    poll_request_id: str | None = None
    timeout: float = 30.0


@dataclass(frozen=True, slots=True)
class QueryClaim:
    """A query task leased to a worker. ``lease_expires_at_ms`` is Redis time."""

    query_task_id: str
    attempt: int
    lease_expires_at_ms: int
    body: QuestionBody
    token: str
