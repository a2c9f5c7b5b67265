"""Frames on their way to a node: what gathers in one turn of the loop becomes one message."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from nodes.streams.codec import depth_exceeds
from nodes.streams.frames import Frame, Limits

FRAME_BYTES: Final = 2_048
"""Room that a frame needs beside its payload."""
FRAME_DEPTH: Final = 2

_encoder: Final = msgspec.json.Encoder()


class Outbox:
    """Of one connection. ``limits`` are the node's, once it has told them."""

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self._frames: deque[bytes] = deque()

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(self, frame: Frame) -> None:
        self._frames.append(_encoder.encode(frame))

    def take(self) -> bytes:
        """The next message. Before the limits are known there are few frames: hello and opens."""
        if self.limits is None:
            frames = list(self._frames)
            self._frames.clear()
            return b"[" + b",".join(frames) + b"]"
        frames = [self._frames.popleft()]
        size = len(frames[0]) + 2
        while self._frames and len(frames) < self.limits.max_frames_per_message:
            size += len(self._frames[0]) + 1
            if size > self.limits.max_message_bytes:
                break
            frames.append(self._frames.popleft())
        return b"[" + b",".join(frames) + b"]"

    def problem(self, payload: bytes) -> str | None:
        """Why the node would not take a payload, and with it end the whole connection."""
        if self.limits is None:
            return None
        room, levels = self.limits.max_message_bytes - FRAME_BYTES, self.limits.max_depth - FRAME_DEPTH
        if len(payload) > room:
            return f"it has {len(payload)} bytes; {room} are possible"
        if depth_exceeds(payload, levels):
            return f"it is nested deeper than {levels} levels"
        return None
