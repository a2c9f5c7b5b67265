"""The avro payload codec, against worked examples and against fastavro."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.payloads import MAX_NESTING, PayloadError, decode, encode, is_envelope, nested_too_deep
from cluster.workflows.records import Payload

HEADER = bytes.fromhex("c301e2a33dff55802237")
NAMESPACE = "durable_workflow.protocol"


def _record(name: str, field: str, inner: Any) -> dict[str, Any]:
    return {"type": "record", "name": f"{NAMESPACE}.{name}", "fields": [{"name": field, "type": inner}]}


SCHEMA = fastavro.parse_schema(
    _record(
        "Value",
        "value",
        [
            "null",
            _record("BooleanValue", "value", "boolean"),
            _record("LongValue", "value", "long"),
            _record("DoubleValue", "value", "double"),
            _record("BytesValue", "value", "bytes"),
            _record("StringValue", "value", "string"),
            _record("ArrayValue", "items", {"type": "array", "items": f"{NAMESPACE}.Value"}),
            _record("MapValue", "entries", {"type": "map", "values": f"{NAMESPACE}.Value"}),
        ],
    )
)

EXAMPLES = [
    (["world"], "wwHioz3/VYAiNwwCCgp3b3JsZAA="),
    ("hello, world", "wwHioz3/VYAiNwoYaGVsbG8sIHdvcmxk"),
    (None, "wwHioz3/VYAiNwA="),
    (True, "wwHioz3/VYAiNwIB"),
    (42, "wwHioz3/VYAiNwRU"),
    (-1, "wwHioz3/VYAiNwQB"),
    (1.5, "wwHioz3/VYAiNwYAAAAAAAD4Pw=="),
    (b"\x00\x01", "wwHioz3/VYAiNwgEAAE="),
    ([], "wwHioz3/VYAiNwwA"),
    ({}, "wwHioz3/VYAiNw4A"),
    ({"a": 1}, "wwHioz3/VYAiNw4CAmEEAgA="),
    (
        {"greeting": "hello", "n": 2, "tags": ["x", None, True]},
        "wwHioz3/VYAiNw4GEGdyZWV0aW5nCgpoZWxsbwJuBAQIdGFncwwGCgJ4AAIBAAA=",
    ),
]

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def payload(body: bytes) -> Payload:
    return Payload(codec="avro", blob=base64.b64encode(HEADER + body).decode())


def as_fastavro(value: Any) -> dict[str, Any]:
    """``value`` as fastavro wants it, every branch of the union named."""
    names = {bool: "Boolean", int: "Long", float: "Double", bytes: "Bytes", str: "String"}
    match value:
        case None:
            return {"value": None}
        case list():
            return {"value": (f"{NAMESPACE}.ArrayValue", {"items": [as_fastavro(item) for item in value]})}
        case dict():
            entries = {key: as_fastavro(item) for key, item in value.items()}
            return {"value": (f"{NAMESPACE}.MapValue", {"entries": entries})}
        case _:
            return {"value": (f"{NAMESPACE}.{names[type(value)]}Value", {"value": value})}


@pytest.mark.parametrize(("value", "blob"), EXAMPLES)
def test_worked_examples(value: object, blob: str) -> None:
    assert encode(value) == Payload(codec="avro", blob=blob)
    decoded = decode(Payload(codec="avro", blob=blob))
    assert decoded == value
    assert type(decoded) is type(value)


@given(VALUES)
def test_round_trip(value: Any) -> None:
    assert decode(encode(value)) == value


@given(VALUES)
def test_the_same_bytes_as_fastavro(value: Any) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, as_fastavro(value))
    assert base64.b64decode(encode(value).blob) == HEADER + out.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        1 << 63,
        -(1 << 63) - 1,
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        (1, 2),
        {1, 2},
        object(),
        [math.nan],
        {"a": [1 << 64]},
    ],
)
def test_values_that_cannot_be_encoded(value: object) -> None:
    with pytest.raises(PayloadError):
        encode(value)


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, (1 << 63) - 1, -(1 << 63)])
def test_the_whole_range_of_numbers(number: int) -> None:
    assert decode(encode(number)) == number


def test_blocks_with_a_negative_count_carry_their_size() -> None:
    # -1 item, 2 bytes: long 1; then 1 item: long 2; then the end
    assert decode(payload(b"\x0c" + b"\x01\x04\x04\x02" + b"\x02\x04\x04" + b"\x00")) == [1, 2]
    assert decode(payload(b"\x0e" + b"\x01\x08\x02a\x04\x02" + b"\x00")) == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x10",
        b"\x01",
        b"\x02",
        b"\x02\x02",
        b"\x04\x80",
        b"\x04" + b"\xff" * 9 + b"\x7f",
        b"\x04" + b"\xff" * 11,
        b"\x06\x00\x00",
        b"\x08\x04\x00",
        b"\x08\x01",
        b"\x0a\x02\xff",
        b"\x0a" + b"\xfe" + b"\xff" * 8 + b"\x01",
        b"\x0c\x02",
        b"\x0c" + b"\xfe" + b"\xff" * 8 + b"\x01",
        b"\x0c\x01\x02\x00",
        b"\x0e\x02\x02a",
        b"\x00\x00",
        b"\x04\x02trailing",
    ],
)
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(PayloadError):
        decode(payload(body))


@pytest.mark.parametrize(
    ("codec", "blob"),
    [
        ("json", "wwHioz3/VYAiNwA="),
        ("", "wwHioz3/VYAiNwA="),
        ("avro", ""),
        ("avro", "wwHioz3/VYAiNwA"),
        ("avro", "wwHioz3/VYAi NwA="),
        ("avro", "wwHioz3_VYAiNwA="),
        ("avro", "é"),
        ("avro", base64.b64encode(b"\xc3\x01" + b"\x00" * 9).decode()),
    ],
)
def test_payloads_that_are_refused(codec: str, blob: str) -> None:
    with pytest.raises(PayloadError):
        decode(Payload(codec=codec, blob=blob))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(body: bytes) -> None:
    try:
        value = decode(payload(body))
    except PayloadError:
        return
    reader = io.BytesIO(body)
    assert fastavro.schemaless_reader(reader, SCHEMA, None) is not None
    assert reader.tell() == len(body)
    del value


def test_nesting_is_bounded_both_ways() -> None:
    value: Any = []
    for _ in range(MAX_NESTING - 1):
        value = [value]
    assert decode(encode(value)) == value
    with pytest.raises(PayloadError, match="nested"):
        encode([value])
    with pytest.raises(PayloadError, match="nested"):
        decode(payload(b"\x0c\x02" * 100_000 + b"\x00" * 100_001))


def test_nesting_of_plain_json() -> None:
    value: Any = 1
    for _ in range(4):
        value = {"x": [value]}
    assert not nested_too_deep(value, 8)
    assert nested_too_deep(value, 7)
    assert not nested_too_deep(1, 0)
    assert nested_too_deep([], 0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"codec": "avro", "blob": "x"}, True),
        ({"codec": "json", "blob": None}, True),
        ({"codec": "avro"}, False),
        ({"codec": "avro", "blob": "x", "more": 1}, False),
        ("x", False),
        (None, False),
        ([], False),
    ],
)
def test_envelopes(value: object, expected: bool) -> None:
    assert is_envelope(value) is expected
