"""What nodes say to each other about RPCs, over pub/sub (rule F6).

====================  ==========================================================================
origin to a node      ``Ask`` (have you a slot?), ``Grant`` (run it on the one you reserved),
                      ``Release`` (not needed any more)
node to the origin    ``Yes`` (a slot is reserved for a moment), ``No``, ``Result``
====================  ==========================================================================

Messages may get lost; none is answered twice in a way that matters.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cluster.queues.rpc_run import RpcEnd


class Refusal(StrEnum):
    """Why a node has no slot for an RPC."""

    BUSY = "busy"
    """It has workers for it; a ``Yes`` may follow when one is free."""
    NOBODY = "nobody"
    """None of its workers serves the flow type."""
    UNKNOWN = "unknown"
    """All its workers of the flow type are known not to have the RPC."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """``call`` names the search for a slot; ``node`` is the session of the sender."""

    call: str
    node: str


class Ask(Message, frozen=True, kw_only=True, tag="ask"):
    """``prefer`` is the only worker wanted ("": any), ``excluded`` are ones that are not.

    ``wait_ms`` is how long a late ``Yes`` is of use.
    """

    namespace: str
    flow_type: str
    name: str
    prefer: str
    excluded: list[str]
    wait_ms: int


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    rpc_id: str
    body: msgspec.Raw


class Release(Message, frozen=True, kw_only=True, tag="release"):
    pass


class Yes(Message, frozen=True, kw_only=True, tag="yes"):
    pass


class No(Message, frozen=True, kw_only=True, tag="no"):
    why: Refusal


class Result(Message, frozen=True, kw_only=True, tag="result"):
    """``payload`` is the JSON of output or failure, null where there is none."""

    worker_id: str
    end: RpcEnd
    payload: msgspec.Raw


AnyMessage = Ask | Grant | Release | Yes | No | Result

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyMessage)

encode = _encoder.encode
decode = _decoder.decode
