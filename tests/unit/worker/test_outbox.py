"""Messages to a node keep within what it takes (docs/protocol.md 4)."""

from __future__ import annotations

import json

from nodes.streams.frames import Limits, Pong
from nodes.worker.outbox import Outbox


def boxed(count: int, **limits: int) -> Outbox:
    box = Outbox()
    if limits:
        usual = {"max_message_bytes": 1 << 20, "max_frames_per_message": 1024, "max_depth": 100}
        box.limits = Limits(**{**usual, **limits})
    for number in range(count):
        box.put(Pong(nonce=f"{number:04}"))
    return box


def messages(box: Outbox) -> list[list[str]]:
    found = []
    while box:
        found.append([frame["nonce"] for frame in json.loads(box.take())])
    return found


def test_everything_gathered_is_one_message() -> None:
    assert [len(m) for m in messages(boxed(300))] == [300]
    assert [len(m) for m in messages(boxed(300, max_depth=50))] == [300]


def test_messages_are_cut_by_frames_and_by_bytes_and_keep_their_order() -> None:
    assert [len(m) for m in messages(boxed(25, max_frames_per_message=10))] == [10, 10, 5]
    box = boxed(25, max_message_bytes=200)
    parts = messages(box)
    assert len(parts) > 1
    assert [nonce for part in parts for nonce in part] == [f"{n:04}" for n in range(25)]
    box = boxed(25, max_message_bytes=200)
    while box:
        assert len(box.take()) <= 200


def test_payloads_that_a_node_would_refuse() -> None:
    box = boxed(0, max_message_bytes=10_000, max_depth=10)
    assert box.problem(b'"' + b"x" * 5_000 + b'"') is None
    assert "bytes" in (box.problem(b'"' + b"x" * 9_000 + b'"') or "")
    assert box.problem(b"[" * 8 + b"]" * 8) is None
    assert "levels" in (box.problem(b"[" * 9 + b"]" * 9) or "")
    assert boxed(0).problem(b"x" * 100_000_000) is None
