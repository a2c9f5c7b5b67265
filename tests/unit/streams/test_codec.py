"""Whatever a worker sends is either frames or a protocol error with a stable reason."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.streams.codec import MAX_DEPTH, MAX_FRAMES, ProtocolError, decode
from nodes.streams.frames import Heartbeat, Output
from tests.unit.streams.cores import HELLO

REASONS = {
    "invalid_json",
    "invalid_message",
    "message_too_large",
    "too_many_frames",
    "message_too_deep",
    "unknown_frame",
    "invalid_frame",
}
OUTPUT = {"type": "output", "slot": 1, "attempt_id": "a", "output": 1}


def reason_of(data: bytes | str, limit: int = 100_000) -> str:
    with pytest.raises(ProtocolError) as caught:
        decode(data, limit)
    return caught.value.reason


def refusal(data: bytes | str, limit: int) -> ProtocolError | None:
    """The refusal of a message; nothing else may come out of it."""
    try:
        decode(data, limit)
    except ProtocolError as error:
        return error
    return None


def check(data: bytes | str, limit: int = 100_000, reasons: set[str] = REASONS) -> None:
    refused = refusal(data, limit)
    assert refused is None or refused.reason in reasons
    assert refused is None or "x" * 41 not in refused.message


def nested(levels: int) -> bytes:
    return b'[{"type":"output","slot":1,"attempt_id":"a","output":' + b"[" * levels + b"]" * levels + b"}]"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "invalid_json"),
        (b"[", "invalid_json"),
        (b"[1,]", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b'["\xff"]', "invalid_json"),
        (b'[{"type":"output","slot":1,"attempt_id":"a","output":"\xff"}]', "invalid_json"),
        (b'[{"type":"output","slot":1,"attempt_id":"a","output":NaN}]', "invalid_json"),
        (b'[{"type":"output","slot":1,"attempt_id":"a","output":Infinity}]', "invalid_json"),
        (b'[{"type":"pong","nonce":"\\ud800"}]', "invalid_json"),
        ('["\ud800"]', "invalid_json"),
        (b"{}", "invalid_message"),
        (b"null", "invalid_message"),
        (b"[1]", "invalid_message"),
        (b"[[]]", "invalid_message"),
        (b"[null]", "invalid_message"),
        (b"[{}]", "invalid_frame"),
        (b'[{"type":5}]', "invalid_frame"),
        (b'[{"type":"nonsense"}]', "unknown_frame"),
        (b'[{"type":"welcome"}]', "unknown_frame"),
        (b"[" * 100_000, "message_too_deep"),
        (nested(MAX_DEPTH), "message_too_deep"),
        (b"[" + b'{"type":"pong"},' * MAX_FRAMES + b'{"type":"pong"}]', "too_many_frames"),
    ],
)
def test_what_is_no_message(data: bytes | str, reason: str) -> None:
    assert reason_of(data, 1_000_000) == reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"[" * (MAX_DEPTH + 1) + b'\\"' * 1_000_000, "message_too_deep"),
        (b"[" * (MAX_DEPTH + 1) + b'"' + b"\\" * 2_000_001, "message_too_deep"),
        (b"[}" * 1_000_000, "invalid_json"),
        (b"[{" * 1_000_000, "message_too_deep"),
    ],
)
def test_hostile_messages_are_refused_in_linear_time(data: bytes, reason: str) -> None:
    began = time.process_time()
    assert reason_of(data, 1 << 22) == reason
    assert time.process_time() - began < 2


def test_size_counts_bytes() -> None:
    data = json.dumps([{**OUTPUT, "output": "é" * 100}], ensure_ascii=False).encode()
    assert decode(data, len(data))
    assert reason_of(data, len(data) - 1) == "message_too_large"


def test_many_shallow_frames_are_not_deep_and_a_deep_one_among_them_is() -> None:
    shallow = b'{"type":"output","slot":1,"attempt_id":"a","output":[[[]]]}'
    many = [shallow] * MAX_DEPTH
    deepest = nested(MAX_DEPTH - 2)[1:-1]
    assert len(decode(b"[" + b",".join([*many, deepest]) + b"]", 1_000_000)) == MAX_DEPTH + 1
    deep = nested(MAX_DEPTH - 1)[1:-1]
    assert reason_of(b"[" + b",".join([*many, deep, *many]) + b"]", 1_000_000) == "message_too_deep"
    assert reason_of(b"[" + b",".join([*many, deep, b"oops"]), 1_000_000) == "message_too_deep"
    assert reason_of(b"[" + b",".join([*many, b"oops"]), 1_000_000) == "invalid_json"


def test_depth_does_not_count_brackets_in_strings() -> None:
    text = '[{"' * 200 + '\\"'
    assert decode(json.dumps([{**OUTPUT, "output": text}]).encode(), 100_000)
    assert decode(nested(MAX_DEPTH - 2), 100_000)


def test_payloads_stay_the_bytes_that_came() -> None:
    data = b'[{"type":"output","slot":1,"attempt_id":"a","output":{"b":1.0,  "a":12345678901234567890}}]'
    (frame,) = decode(data, 1000)
    assert isinstance(frame, Output)
    assert bytes(frame.output) == b'{"b":1.0,  "a":12345678901234567890}'  # type: ignore[arg-type]


def test_null_is_an_output_and_a_checkpoint() -> None:
    output, beat, bare = decode(
        json.dumps(
            [
                {**OUTPUT, "output": None},
                {"type": "heartbeat", "slot": 1, "attempt_id": "a", "checkpoint": None},
                {"type": "heartbeat", "slot": 1, "attempt_id": "a"},
            ]
        ).encode(),
        1000,
    )
    assert isinstance(output, Output)
    assert bytes(output.output) == b"null"  # type: ignore[arg-type]
    assert isinstance(beat, Heartbeat)
    assert isinstance(bare, Heartbeat)
    assert bytes(beat.checkpoint) == b"null"  # type: ignore[arg-type]
    assert not isinstance(bare.checkpoint, bytes | memoryview)


@pytest.mark.parametrize("both", [{}, {"output": 1, "failure": {}}])
def test_an_output_is_a_result_or_a_failure(both: dict[str, Any]) -> None:
    frame = {"type": "output", "slot": 1, "attempt_id": "a", **both}
    assert reason_of(json.dumps([frame]).encode()) == "invalid_frame"


def test_unknown_members_are_ignored() -> None:
    assert decode(json.dumps([{**OUTPUT, "later": 1}]).encode(), 1000)


VALID: list[dict[str, Any]] = [
    HELLO,
    {"type": "open", "slot": 1, "kind": "rpc_only"},
    OUTPUT,
    {"type": "heartbeat", "slot": 1, "attempt_id": "a"},
    {"type": "decline", "slot": 1, "attempt_id": "a", "reason": "unsupported"},
    {"type": "half_close", "slot": 1},
    {"type": "reset", "slot": 1},
    {"type": "pong", "nonce": "n"},
]
PAYLOADS = ("output", "failure", "checkpoint")
WRONG: list[Any] = [None, True, -1, 0, 2**31, 1.5, "", "x" * 50, [], {}, [{}]]


@pytest.mark.parametrize("valid", VALID, ids=lambda frame: str(frame["type"]))
def test_members_of_wrong_types(valid: dict[str, Any]) -> None:
    for name in valid:
        if name in PAYLOADS:
            continue
        for value in WRONG:
            check(json.dumps([{**valid, name: value}]).encode(), reasons={"invalid_frame", "unknown_frame"})
        if name not in ("nonce",):
            without = {key: value for key, value in valid.items() if key != name}
            assert reason_of(json.dumps([without]).encode()) == "invalid_frame"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    check(data, 150)


@given(
    st.sampled_from(VALID),
    st.dictionaries(st.sampled_from(sorted({k for f in VALID for k in f})), json_values),
)
def test_any_json(valid: dict[str, Any], changes: dict[str, Any]) -> None:
    check(json.dumps([{**valid, **changes}]).encode())


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    check(text)
