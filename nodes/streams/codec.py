"""Messages to frames and back. Whatever a worker sends, only ProtocolError comes out of here."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

import msgspec

from nodes.streams.frames import Limits, NodeFrame, Output, WorkerFrame

MAX_FRAMES: Final = 1024
MAX_DEPTH: Final = 100

_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_frame: Final = msgspec.json.Decoder(WorkerFrame)
_tag: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder: Final = msgspec.json.Encoder()
# Possessive, and at home with a string that does not end: hostile input must not make it look twice.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS: Final = bytes.maketrans(b"[{]}", bytes((1, 1, 0xFF, 0xFF)))
"""One level down and up, as signed bytes."""
_TYPES: Final = frozenset({"hello", "open", "output", "heartbeat", "decline", "half_close", "reset", "pong"})


class ProtocolError(Exception):
    """The worker broke the protocol; the connection ends. ``reason`` is stable."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def limits(max_bytes: int) -> Limits:
    """The bounds of a message, as a worker is told."""
    return Limits(max_message_bytes=max_bytes, max_frames_per_message=MAX_FRAMES, max_depth=MAX_DEPTH)


def decode(message: bytes | str, max_bytes: int) -> list[WorkerFrame]:
    """The frames of one message. Raises ProtocolError."""
    data = message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
    if len(data) > max_bytes:
        raise ProtocolError("message_too_large", f"A message may have {max_bytes} bytes.")
    try:
        data.decode()  # payloads are not decoded below
        parts = _decoder.decode(data)
    except msgspec.ValidationError:
        raise _deep_or(data, "invalid_message", "A message is a JSON array of frames.") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _deep_or(data, "invalid_json", "A message is JSON in UTF-8.") from None
    # A message of many frames has many brackets; those of one frame are few again.
    if _brackets(data) > MAX_DEPTH and any(depth_exceeds(bytes(part), MAX_DEPTH - 1) for part in parts):
        raise _too_deep()
    if len(parts) > MAX_FRAMES:
        raise ProtocolError("too_many_frames", f"A message may hold {MAX_FRAMES} frames.")
    return [_decode_frame(part) for part in parts]


def _deep_or(data: bytes, reason: str, message: str) -> ProtocolError:
    """What is wrong with a message that cannot be read: its depth, if that is too great, else ``reason``."""
    return _too_deep() if depth_exceeds(data, MAX_DEPTH) else ProtocolError(reason, message)


def _too_deep() -> ProtocolError:
    return ProtocolError("message_too_deep", f"A message may be nested {MAX_DEPTH} levels deep.")


def _decode_frame(part: msgspec.Raw) -> WorkerFrame:
    try:
        frame = _frame.decode(part)
    except msgspec.ValidationError as error:
        raise _explain(part, error) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ProtocolError("invalid_json", "A message is JSON in UTF-8.") from None
    if isinstance(frame, Output) and (frame.output is msgspec.UNSET) == (frame.failure is msgspec.UNSET):
        raise ProtocolError("invalid_frame", "output: exactly one of output and failure.")
    return frame


def _explain(part: msgspec.Raw, error: msgspec.ValidationError) -> ProtocolError:
    try:
        name = msgspec.json.decode(_tag.decode(part).get("type", b"null"))
    except msgspec.DecodeError:
        return ProtocolError("invalid_message", "A frame is a JSON object.")
    if isinstance(name, str) and name not in _TYPES:
        return ProtocolError("unknown_frame", f"There is no frame {name[:40]!r}.")
    # The text names places and types, never values.
    text = str(error)
    if text.startswith("Invalid "):
        text = f"invalid value{text[text.rfind(' - at ') :] if ' - at ' in text else ''}"
    return ProtocolError("invalid_frame", f"{name if isinstance(name, str) else 'frame'}: {text}")


def _brackets(data: bytes) -> int:
    """As many levels there are at most."""
    return data.count(b"[") + data.count(b"{")


def depth_exceeds(data: bytes, limit: int) -> bool:
    """Whether JSON ``data`` is nested deeper than ``limit``; what is no JSON is for the parser."""
    if _brackets(data) <= limit:
        return False
    levels = _STRING.sub(b"", data).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(levels).cast("b")), default=0) > limit


def encode(frame: NodeFrame) -> bytes:
    """One frame; frames joined by commas in brackets are a message."""
    return _encoder.encode(frame)
