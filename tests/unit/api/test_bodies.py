"""JSON bodies and response compression (1.1 step 1, 1.6)."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.api import compression, documents
from nodes.api.messages import Request, Response
from tests.unit.api.conftest import OpenClient
from tests.unit.api.fakes import Client


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "\\u0062": 2}}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": 9223372036854775808}',
        b'{"a": -9223372036854775809}',
        b'{"a": 123456789012345678901234567890}',
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b"{'a': 1}",
    ],
)
async def test_json_that_readers_could_disagree_on_is_refused(client: Client, body: bytes) -> None:
    answer = await client.send("POST", "/api/workflows", body=body)

    assert (answer.status, answer.body["reason"]) == (400, "malformed_json")


@pytest.mark.parametrize(
    "body",
    [
        b'{"a:b": {"a": ":", "b": "\\":\\\\"}, "c": [9223372036854775807, -9223372036854775808, 1e30]}',
        b"[" * 64 + b"]" * 64,
        b'{"\\\\": 1, "\\"": 2}',
    ],
)
def test_unusual_but_clear_json_is_read(body: bytes) -> None:
    documents.read(body)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_what_is_written_can_be_read(value: object) -> None:
    assert documents.read(documents.write(value)) == value


@pytest.mark.parametrize("content_type", ["text/json", "application/xml", "", "application/+json", "json"])
async def test_other_media_types_are_refused(client: Client, content_type: str) -> None:
    answer = await client.send("POST", "/api/workflows", body=b"{}", headers={"content-type": content_type})

    assert answer.status == 415


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_kinds_of_json_are_accepted(client: Client, content_type: str) -> None:
    answer = await client.send("POST", "/api/workflows", body=b"{}", headers={"content-type": content_type})

    assert answer.status == 400
    assert answer.body["reason"] == "missing_control_plane_version"


async def test_a_compressed_body_is_refused(client: Client) -> None:
    headers = {"content-encoding": "gzip"}

    assert (await client.send("POST", "/api/workflows", body=b"{}", headers=headers)).status == 415


async def test_a_declared_length_counts_too(open_client: OpenClient) -> None:
    client = await open_client(max_payload_bytes=100)

    for method in ("POST", "GET"):
        answer = await client.send(method, "/api/namespaces", headers={"content-length": "101"})
        assert answer.status == 413


@pytest.mark.parametrize("body", [b"[]", b"null", b'"x"', b"1"])
async def test_a_body_that_is_no_object_is_a_field_error(client: Client, body: bytes) -> None:
    headers = {"x-durable-workflow-control-plane-version": "2"}

    answer = await client.send("POST", "/api/namespaces", body=body, headers=headers)

    assert (answer.status, list(answer.body["errors"])) == (422, ["body"])


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0.5, deflate", "deflate"),
        ("gzip;q=0, deflate;q=0", None),
        ("*", "gzip"),
        ("*;q=0", None),
        ("gzip;q=0, *", "deflate"),
        ("identity, br", None),
        ("GZIP;Q=1", "gzip"),
        ("gzip;q=x", None),
    ],
)
def test_which_encoding_is_chosen(accept: str, expected: str | None) -> None:
    assert compression.choose(accept) == expected


def _compressed(size: int, *headers: tuple[bytes, bytes]) -> Response:
    request = Request("GET", b"/", b"", ((b"accept-encoding", b"gzip"),))
    response = Response(200, [(b"content-type", b"application/json"), *headers], b"x" * size)
    compression.apply(request, response)
    return response


def test_small_and_encoded_responses_stay_as_they_are() -> None:
    assert _compressed(1023).header(b"content-encoding") is None
    assert _compressed(1024).header(b"content-encoding") == b"gzip"
    assert _compressed(2000, (b"content-encoding", b"br")).body == b"x" * 2000


def test_an_existing_vary_is_kept() -> None:
    assert _compressed(1024).header(b"vary") == b"Accept-Encoding"
    assert _compressed(1024, (b"vary", b"Origin")).header(b"vary") == b"Origin, Accept-Encoding"
    assert _compressed(1024, (b"vary", b"accept-encoding")).header(b"vary") == b"accept-encoding"


async def test_large_answers_are_compressed_on_request(client: Client, open_client: OpenClient) -> None:
    plain = await client.send("GET", "/api/cluster/info")
    packed = await client.send("GET", "/api/cluster/info", headers={"accept-encoding": "gzip"})
    deflated = await client.send("GET", "/api/cluster/info", headers={"accept-encoding": "deflate"})
    off = await open_client(compression_enabled=False)
    refused = await off.send("GET", "/api/cluster/info", headers={"accept-encoding": "gzip"})

    assert gzip.decompress(packed.body) == plain.raw.body
    assert zlib.decompress(deflated.body, wbits=-15) == plain.raw.body
    assert "content-encoding" not in refused.headers
    assert refused.body["capabilities"]["response_compression"] == []


@pytest.mark.parametrize("size", [0, 1, 300, 511, 512, 1_024, 5_000, 16_383, 16_384, 40_000, 200_000])
def test_a_body_of_any_size_is_packed_and_unpacked(size: int) -> None:
    data = bytes(number * number % 251 for number in range(size // 2)) + b"a" * (size - size // 2)

    assert zlib.decompress(compression.compress(data, "gzip"), 31) == data
    assert zlib.decompress(compression.compress(data, "deflate"), -15) == data
