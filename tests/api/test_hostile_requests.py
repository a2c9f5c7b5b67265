"""Every route, with what no client should send: a clear answer with a reason, and nothing left behind.

The routing table gives the routes. HEADRACE_FUZZ_EXAMPLES makes the random part larger.
"""

from __future__ import annotations

import gzip
import os
from itertools import product
from typing import Any
from urllib.parse import quote

import orjson
import pytest
import redis
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodes.api.messages import Request, Response
from nodes.api.metrics import Metrics
from nodes.api.openapi.document import build
from nodes.api.pipeline import Pipeline
from nodes.api.routes import Plane, Route
from nodes.api.table import ROUTES
from nodes.api.versions import CONTROL_HEADER, WORKER_HEADER, WORKER_VERSION
from nodes.node import Node

EXAMPLES = int(os.environ.get("HEADRACE_FUZZ_EXAMPLES", "30"))
WRITES = [route for route in ROUTES if route.method != "GET"]
EXPECTED = {"update_validation_execution_timeout", "query_worker_timeout", "rpc_unavailable", "rpc_timeout"}
"""Reasons of 5xx answers that say what happened: nobody was there to answer."""

IDS = [
    "<script>alert(1)</script>",
    "javascript:alert(1)",
    "{a}:*",
    "..",
    "a/b",
    "a\x00b",
    "\r\nx: y",
    "\u202e\ufeff",
    "\U0001f600" * 100,
    "x" * 2000,
    "%",
    "0",
    "'; FLUSHALL; --",
]
NOT_JSON: dict[str, bytes] = {
    "nothing": b"{",
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "lone-surrogate": b'{"a": "\\ud800"}',
    "not-utf-8": b'{"a": "\xff"}',
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": "{}".encode("utf-16"),
    "huge-integer": b'{"a": ' + b"9" * 5000 + b"}",
    "huge-exponent": b'{"a": 1e999999}',
    "duplicate-key": b'{"workflow_id": "a", "workflow_id": "b"}',
    "duplicate-in-escapes": b'{"a": 1, "\\u0061": 2}',
    "deep-lists": b"[" * 100_000,
    "deep-objects": b'{"a":' * 65 + b"1" + b"}" * 65,
    "two-documents": b"{}{}",
    "nul": b"{}\x00",
}
WRONG: list[Any] = [[], {"a": {"b": 1}}, -1, 1e300, True, "", "\x00", "x" * 70_000, [None] * 200]
NO_OBJECTS = [b"[]", b"null", b'"x"', b"1", b"true", b"[{}]"]


def request(route: Route, path: str, body: bytes = b"", query: bytes = b"", **headers: str) -> Request:
    version = (
        (WORKER_HEADER, WORKER_VERSION.encode()) if route.plane is Plane.WORKER else (CONTROL_HEADER, b"2")
    )
    lines = {"content-type": "application/json", **{n.replace("_", "-"): v for n, v in headers.items()}}
    pairs = [version, *((name.encode(), value.encode()) for name, value in lines.items() if value)]
    return Request(route.method, path.encode(), query, tuple(pairs), body)


def path_of(route: Route, name: str = "nobody") -> str:
    path = route.template
    for part in route.segments:
        if part.startswith("{"):
            path = path.replace(part, quote(name, safe=""))
    return path


def check(response: Response, about: object) -> dict[str, Any]:
    """A refusal says in JSON why; a good answer is no business of these tests."""
    assert b"Traceback" not in response.body, about
    assert b'File "' not in response.body, about
    if response.status < 400:
        return {}
    assert response.header(b"content-type") == b"application/json", about
    body: dict[str, Any] = orjson.loads(response.body)
    assert isinstance(body["reason"], str), (about, body)
    assert body["reason"], (about, body)
    assert isinstance(body.get("message", body.get("error")), str), (about, body)
    assert response.status < 500 or body["reason"] in EXPECTED, (about, response.status, body)
    return body


def fields() -> list[str]:
    """The names of all members that any body has."""
    schemas = build(ROUTES)["components"]["schemas"].values()
    return sorted({name for schema in schemas for name in schema.get("properties", {})})


@pytest.fixture
def redis_url(valkey_url: str) -> str:
    """One kind of server: nothing of this gets that far."""
    return valkey_url


@pytest.fixture(params=[False, True], ids=["main", "workers"])
def pipeline(request: pytest.FixtureRequest, node: Node) -> Pipeline:
    return Pipeline(node, Metrics(node), for_workers=request.param)


async def test_what_is_no_json_is_refused_on_every_route(pipeline: Pipeline) -> None:
    for route, name in product(WRITES, NOT_JSON):
        response = await pipeline.handle(request(route, path_of(route), NOT_JSON[name]))
        body = check(response, route.template)
        assert (response.status, body["reason"]) == (400, "malformed_json"), route.template


async def test_other_bodies_and_headers_are_refused_on_every_route(pipeline: Pipeline) -> None:
    bomb = gzip.compress(b" " * 10_000_000)
    for route in WRITES:
        path = path_of(route)
        for encoding in ("gzip", "deflate", "br", "identity, gzip"):
            packed = await pipeline.handle(request(route, path, bomb, content_encoding=encoding))
            assert check(packed, route.template)["reason"] == "unsupported_media_type"
        plain = await pipeline.handle(request(route, path, b"{}", content_type="text/plain"))
        assert check(plain, route.template)["reason"] == "unsupported_media_type"
        large = await pipeline.handle(request(route, path, b'"' + b"x" * 10_000_000 + b'"'))
        assert check(large, route.template)["reason"] == "payload_too_large"
    for route in ROUTES:
        for query in (b"%", b"%ff", b"a=%zz", b"&".join(b"a%d=1" % number for number in range(65))):
            response = await pipeline.handle(request(route, path_of(route), query=query))
            if not route.public:
                assert check(response, (route.template, query))["reason"] in (
                    "malformed_request",
                    "not_for_workers",
                )


async def test_hostile_names_in_paths_and_headers(pipeline: Pipeline) -> None:
    """Of reads and of deletes: what was never there is not found, or is no name."""
    for route, hostile in product(ROUTES, IDS):
        namespace = quote(hostile, safe="")
        if route.method not in ("GET", "DELETE"):
            continue
        query = (
            f"namespace={namespace}&task_queue={namespace}&page_token={namespace}&limit={namespace}".encode()
        )
        for asked in (
            request(route, path_of(route, hostile)),
            request(route, path_of(route, hostile), query=query),
            request(route, path_of(route), x_namespace=hostile.replace("\r\n", " ").replace("\x00", "")),
        ):
            check(await pipeline.handle(asked), (route.template, asked.query_string))


async def test_a_refused_request_writes_nothing(node: Node, redis_url: str, prefix: str) -> None:
    """Objects that lack everything, and others with everything of a wrong type."""
    pipeline = Pipeline(node, Metrics(node))
    names = fields()
    bodies = [b"{}", *NO_OBJECTS]
    bodies += [orjson.dumps(dict.fromkeys(names, wrong)) for wrong in WRONG]
    with redis.Redis.from_url(redis_url) as store:

        def keys() -> set[bytes]:
            return set(store.scan_iter(f"{prefix}*", count=10_000))

        kept = keys()
        for route in WRITES:
            for body in bodies:
                response = await pipeline.handle(request(route, path_of(route), body))
                check(response, (route.template, body[:80]))
                now = keys()
                if response.status >= 400:
                    assert not now - kept, (route.method, route.template, body[:80], response.body)
                kept = now


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(IDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(fields()), inner, max_size=4),
    max_leaves=8,
)
_REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(ROUTES),
        st.sampled_from(["known", "nobody", *IDS]),
        st.dictionaries(st.sampled_from(fields()), _VALUES, max_size=8),
    ),
    max_size=20,
)


async def test_random_requests(node: Node) -> None:
    """In any order, of any content: none fails the server."""
    pipeline = Pipeline(node, Metrics(node))
    found: list[tuple[Route, str, dict[str, Any]]] = []

    @settings(
        max_examples=EXAMPLES // 10, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(_REQUESTS)
    def collect(requests: list[tuple[Route, str, dict[str, Any]]]) -> None:
        found.extend(requests)

    collect()
    for route, name, members in found:
        short = {key: 0.1 for key in members if "timeout" in key or "seconds" in key}
        body = b"" if route.method == "GET" else orjson.dumps({**members, **short})
        with trio.fail_after(60):
            response = await pipeline.handle(request(route, path_of(route, name), body))
        check(response, (route.method, route.template, name, members))
