"""Who may open a stream: docs/protocol.md 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import trio

from tests.cluster_processes import Cluster, make_cluster
from tests.conftest import SharedServers
from tests.stream_client import CARRIERS, Refused, connect

WORKER, OPERATOR = {"authorization": "Bearer w0rker"}, {"authorization": "Bearer 0perator"}


@pytest.fixture(scope="module")
def guarded(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node with tokens."""
    environ = {
        "HEADRACE_KEY_PREFIX": "doors",
        "DW_AUTH_DRIVER": "token",
        "DW_WORKER_TOKEN": "w0rker",
        "DW_OPERATOR_TOKEN": "0perator",
    }
    directory = tmp_path_factory.mktemp("guarded")
    with make_cluster(1, shared_servers.get("valkey").url, directory, environ) as made:
        trio.run(made.start)
        yield made


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({}, 401, "unauthorized"),
        ({"authorization": "Bearer wrong"}, 401, "unauthorized"),
        ({**OPERATOR, "x-namespace": "missing"}, 403, "forbidden"),
        ({**WORKER, "x-headrace-stream-versions": ""}, 400, "unsupported_protocol_version"),
        ({**WORKER, "x-headrace-stream-versions": "2-9"}, 400, "unsupported_protocol_version"),
        ({**WORKER, "x-namespace": "missing"}, 404, "namespace_not_found"),
    ],
)
async def test_refusals_are_http_responses(
    guarded: Cluster, carrier: str, headers: dict[str, str], status: int, reason: str
) -> None:
    with pytest.raises(Refused) as caught:
        async with connect(guarded.url, carrier, **headers):
            pass
    assert (caught.value.status, caught.value.body["reason"]) == (status, reason)
    if status == 400:
        assert caught.value.body["supported_versions"] == "1-1"


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_r99_the_highest_common_version_is_spoken(guarded: Cluster, carrier: str) -> None:
    headers = {**WORKER, "x-headrace-stream-versions": "1-7", "x-namespace": "DEFAULT"}
    async with connect(guarded.url, carrier, **headers) as worker:
        welcome = await worker.hello("w", "F")
        assert (welcome["version"], welcome["namespace"]) == (1, "default")


async def test_http1_cannot_carry_a_stream(guarded: Cluster) -> None:
    async with httpx.AsyncClient(base_url=guarded.url, trust_env=False) as http:
        answer = await http.post("/api/streams", headers=WORKER, content=b"[]\n")
        assert (answer.status_code, answer.json()["reason"]) == (426, "upgrade_required")
        assert (await http.get("/api/streams", headers=WORKER)).status_code == 404
