"""The ``avro`` payload codec: JSON-like values in one fixed, recursive Avro schema.

A payload is ``{"codec": "avro", "blob": <base64>}``. The blob is the base64 of a header (the Avro
single-object marker and the fingerprint of the schema) and one value: a union index, then the body.

=====  =======  =========================================================
index  type     body
=====  =======  =========================================================
0      null     nothing
1      boolean  one byte, 0 or 1
2      long     zigzag varint, 64 bits
3      double   8 bytes, little endian
4      bytes    length, then as many bytes
5      string   length, then UTF-8
6      array    blocks of (count, values...), closed by a count of 0
7      map      blocks of (count, (string, value)...), closed by a count of 0
=====  =======  =========================================================

Payloads pass through the server as they came. It decodes one only to show or to merge it, and
encodes only what came as plain JSON. The codec is written out here because fastavro follows
nested values on the C stack: 5,000 nested arrays, a blob of 15 kB, end its process with a
segmentation fault, and blobs come from outside. The tests compare both.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterator
from typing import Any, Final

from cluster.errors import HeadraceError
from cluster.workflows.records import Payload

CODEC: Final = "avro"
MAX_NESTING: Final = 100
"""Arrays and maps inside each other, in payloads and in free-form JSON that events keep."""

_HEADER: Final = bytes.fromhex("c301e2a33dff55802237")
_ENVELOPE: Final = frozenset(("codec", "blob"))
_DOUBLE: Final = struct.Struct("<d")
_NULL, _BOOLEAN, _LONG, _DOUBLE_INDEX, _BYTES, _STRING, _ARRAY, _MAP = (bytes((2 * n,)) for n in range(8))


class PayloadError(HeadraceError):
    """A value that the codec cannot express, or a blob that it did not write."""

    reason = "invalid_payload"


def is_envelope(value: object) -> bool:
    """Whether ``value`` is an object with exactly the keys ``codec`` and ``blob``."""
    return isinstance(value, dict) and value.keys() == _ENVELOPE


def nested_too_deep(value: object, limit: int = MAX_NESTING) -> bool:
    """Whether more than ``limit`` arrays and objects stand inside each other."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(limit):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            break
    return bool(level)


def encode(value: object) -> Payload:
    """``value`` (None, bool, int, float, str, bytes, list or dict) as a payload.

    Raises PayloadError for other types, tuples, keys that are no strings, integers outside 64 bits,
    NaN and the infinities, lone surrogates and more than MAX_NESTING levels.
    """
    out = bytearray(_HEADER)
    _write_value(out, value, 0)
    return Payload(codec=CODEC, blob=base64.b64encode(out).decode("ascii"))


def decode(payload: Payload) -> Any:
    """The value of a payload; the inverse of :func:`encode`. Raises PayloadError."""
    if payload.codec != CODEC:
        raise PayloadError(f"unknown payload codec {payload.codec!r}")
    try:
        data = base64.b64decode(payload.blob, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PayloadError(f"the blob is not base64: {error}") from error
    if not data.startswith(_HEADER):
        raise PayloadError("the blob does not start with the marker and fingerprint of the schema")
    reader = _Reader(data, len(_HEADER))
    try:
        value = reader.value(0)
    except IndexError as error:
        raise PayloadError("the blob ends in the middle of a value") from error
    if reader.position != len(data):
        raise PayloadError("the blob has bytes after its value")
    return value


def json_view(value: Any) -> Any:
    """A decoded value as JSON can show it: bytes as text, unreadable ones replaced."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [json_view(item) for item in value]
    if isinstance(value, dict):
        return {key: json_view(item) for key, item in value.items()}
    return value


def _write_value(out: bytearray, value: object, depth: int) -> None:
    match value:
        case None:
            out += _NULL
        case bool():
            out += _BOOLEAN
            out.append(value)
        case int():
            out += _LONG
            _write_long(out, value)
        case float():
            if not math.isfinite(value):
                raise PayloadError(f"{value} cannot be encoded")
            out += _DOUBLE_INDEX + _DOUBLE.pack(value)
        case bytes():
            out += _BYTES
            _write_bytes(out, value)
        case str():
            out += _STRING
            _write_bytes(out, _utf8(value))
        case list():
            out += _ARRAY
            inside = _inside(depth)
            if value:
                _write_long(out, len(value))
                for item in value:
                    _write_value(out, item, inside)
            out.append(0)
        case dict():
            out += _MAP
            inside = _inside(depth)
            if value:
                _write_long(out, len(value))
                for key, item in value.items():
                    if not isinstance(key, str):
                        raise PayloadError(f"a key must be a string, not {type(key).__name__}")
                    _write_bytes(out, _utf8(key))
                    _write_value(out, item, inside)
            out.append(0)
        case _:
            raise PayloadError(f"{type(value).__name__} cannot be encoded")


def _inside(depth: int) -> int:
    """The depth inside one more array or map."""
    if depth >= MAX_NESTING:
        raise PayloadError(f"a value may not be nested deeper than {MAX_NESTING}")
    return depth + 1


def _write_long(out: bytearray, value: int) -> None:
    if not -(1 << 63) <= value < 1 << 63:
        raise PayloadError(f"{value} does not fit into 64 bits")
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _write_bytes(out: bytearray, value: bytes) -> None:
    _write_long(out, len(value))
    out += value


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError("text with a lone surrogate cannot be encoded") from error


class _Reader:
    """Reads values of one blob; IndexError means that the blob is too short."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def value(self, depth: int) -> Any:
        match self._long():
            case 0:
                return None
            case 1:
                return self._boolean()
            case 2:
                return self._long()
            case 3:
                return _DOUBLE.unpack(self._take(8))[0]
            case 4:
                return self._take(self._long())
            case 5:
                return self._text()
            case 6:
                inside = _inside(depth)
                return [self.value(inside) for count in self._blocks() for _ in range(count)]
            case 7:
                inside = _inside(depth)
                return {self._text(): self.value(inside) for count in self._blocks() for _ in range(count)}
            case index:
                raise PayloadError(f"the schema has no branch {index}")

    def _blocks(self) -> Iterator[int]:
        """The item count of each block; a negative count is followed by the block's size in bytes."""
        while count := self._long():
            if count < 0:
                self._long()
                count = -count
            if count > len(self.data) - self.position:
                raise IndexError
            yield count

    def _boolean(self) -> bool:
        (byte,) = self._take(1)
        if byte > 1:
            raise PayloadError(f"{byte} is no boolean")
        return bool(byte)

    def _long(self) -> int:
        raw = 0
        for shift in range(0, 70, 7):
            byte = self.data[self.position]
            self.position += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                if raw >= 1 << 64:
                    break
                return (raw >> 1) ^ -(raw & 1)
        raise PayloadError("a number does not fit into 64 bits")

    def _text(self) -> str:
        try:
            return self._take(self._long()).decode()
        except UnicodeDecodeError as error:
            raise PayloadError("text is not UTF-8") from error

    def _take(self, count: int) -> bytes:
        if count < 0:
            raise PayloadError(f"a length of {count}")
        end = self.position + count
        if end > len(self.data):
            raise IndexError
        taken = self.data[self.position : end]
        self.position = end
        return taken
