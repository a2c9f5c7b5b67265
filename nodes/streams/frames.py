"""The frames of the stream protocol (docs/protocol.md 5 and 6), as they stand on the wire.

Payloads stay undecoded: they are passed on as the bytes that came.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from cluster.queues.slot_kind import SlotKind

SlotId = Annotated[int, msgspec.Meta(ge=1, le=2_147_483_647)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Payload = msgspec.Raw


class DeclineReason(StrEnum):
    """Why a worker did not run a task."""

    UNSUPPORTED = "unsupported"
    NO_CAPACITY = "no_capacity"


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of all frames; the member ``type`` names the class."""


# -- of the worker ----------------------------------------------------------------------------


class FlowTypeSupport(msgspec.Struct, frozen=True):
    """A flow type a worker serves; a list that is given is complete."""

    name: str
    step_types: list[str] | None = None
    rpc_names: list[str] | None = None


class Hello(Frame, frozen=True, kw_only=True, tag="hello"):
    worker_id: str
    flow_types: list[FlowTypeSupport]
    task_limit: Count
    reserved_rpc_slots: Count
    build: str = ""
    sdk: str = ""


class Open(Frame, frozen=True, kw_only=True, tag="open"):
    slot: SlotId
    kind: SlotKind


class Output(Frame, frozen=True, kw_only=True, tag="output"):
    slot: SlotId
    attempt_id: str
    output: Payload | msgspec.UnsetType = msgspec.UNSET
    failure: Payload | msgspec.UnsetType = msgspec.UNSET


class Heartbeat(Frame, frozen=True, kw_only=True, tag="heartbeat"):
    slot: SlotId
    attempt_id: str
    checkpoint: Payload | msgspec.UnsetType = msgspec.UNSET


class Decline(Frame, frozen=True, kw_only=True, tag="decline"):
    slot: SlotId
    attempt_id: str
    reason: DeclineReason


class HalfClose(Frame, frozen=True, kw_only=True, tag="half_close"):
    slot: SlotId


class Reset(Frame, frozen=True, kw_only=True, tag="reset"):
    slot: SlotId
    reason: str = ""


class Pong(Frame, frozen=True, kw_only=True, tag="pong"):
    nonce: str = ""


WorkerFrame = Hello | Open | Output | Heartbeat | Decline | HalfClose | Reset | Pong

# -- of the node ------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """What a message of the worker may be."""

    max_message_bytes: int
    max_frames_per_message: int
    max_depth: int


class Welcome(Frame, frozen=True, kw_only=True, tag="welcome"):
    version: int
    session: str
    connection: str
    namespace: str
    max_concurrent_tasks: int
    ping_interval_ms: int
    limits: Limits


class Registered(Frame, frozen=True, kw_only=True, tag="registered"):
    slot: int


class Rejected(Frame, frozen=True, kw_only=True, tag="rejected"):
    slot: int | None
    reason: str
    message: str
    permanent: bool
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET


class Task(Frame, frozen=True, kw_only=True, tag="task"):
    slot: int
    task: Payload


class Confirmed(Frame, frozen=True, kw_only=True, tag="confirmed"):
    slot: int
    attempt_id: str
    accepted: bool
    reason: str | msgspec.UnsetType = msgspec.UNSET


class Cancel(Frame, frozen=True, kw_only=True, tag="cancel"):
    slot: int
    attempt_id: str
    reason: str


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    nonce: str


class Reconnect(Frame, frozen=True, kw_only=True, tag="reconnect"):
    reason: str


class Error(Frame, frozen=True, kw_only=True, tag="error"):
    reason: str
    message: str
    slot: int | msgspec.UnsetType = msgspec.UNSET


class CloseReason(StrEnum):
    """Why a slot is over."""

    HALF_CLOSED = "half_closed"
    RESET = "reset"
    RECONNECT = "reconnect"
    FENCED = "fenced"
    STORE_LOST = "store_lost"


class Closed(Frame, frozen=True, kw_only=True, tag="closed"):
    slot: int
    reason: CloseReason


NodeFrame = Welcome | Registered | Rejected | Task | Confirmed | Cancel | Ping | Reconnect | Error | Closed
