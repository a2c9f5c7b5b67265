"""Two nodes with tokens behind HAProxy, which shows them below a path of its own; and a real browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import trio
from playwright.sync_api import Browser, sync_playwright

from tests.cluster_processes import HOST, READY_SECONDS, Cluster, make_cluster, wait_ready
from tests.conftest import SharedServers
from tests.e2e.console.seeding import Seeded, seed
from tests.ports import free_ports
from tests.wire import HEADERS, Wire

TOKENS = {"worker": "worker-secret", "operator": "operator-secret", "admin": "admin-secret"}
PREFIX = "/ops/headrace"

_BALANCER = """
global
    log stdout format raw local0 info
defaults
    mode http
    timeout connect 2s
    timeout client 30s
    timeout server 30s
frontend pages
    bind {host}:{port}
    http-request return status 404 unless {{ path_beg {prefix}/ }}
    http-request set-header X-Forwarded-Prefix {prefix}
    http-request replace-path {prefix}(/.*) \\1
    default_backend nodes
backend nodes
    balance roundrobin
    server one {one}
    server two {two}
"""


@dataclass(frozen=True)
class Site:
    """Where browsers go, and what is there: ``seeded`` to look at, ``acted_on`` to do things with."""

    url: str
    cluster: Cluster
    seeded: Seeded
    acted_on: Seeded


def sign(request: httpx.Request) -> httpx.Request:
    """The token a request needs."""
    role = "worker" if request.url.path.startswith("/api/worker/") else "admin"
    request.headers["Authorization"] = f"Bearer {TOKENS[role]}"
    return request


def open_client(url: str) -> httpx.AsyncClient:
    """A client with every right."""
    return httpx.AsyncClient(base_url=url, headers=HEADERS, auth=sign, timeout=30, trust_env=False)


@contextmanager
def below_a_path(cluster: Cluster, directory: Path) -> Iterator[str]:
    """HAProxy in front of the first two nodes; the console's address."""
    (port,) = free_ports(1)
    one, two = (f"{HOST}:{node.port}" for node in cluster.nodes[:2])
    file = directory / "haproxy.cfg"
    file.write_text(_BALANCER.format(host=HOST, port=port, prefix=PREFIX, one=one, two=two))
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    with (directory / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([program, "-db", "-f", str(file)], stdout=log, stderr=log)
    try:
        trio.run(wait_ready, f"http://{HOST}:{port}{PREFIX}", READY_SECONDS)
        yield f"http://{HOST}:{port}{PREFIX}/console/"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def site(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    environ = {f"DW_{role.upper()}_TOKEN": token for role, token in TOKENS.items()}
    environ |= {
        "DW_AUTH_DRIVER": "token",
        "HEADRACE_KEY_PREFIX": f"c{uuid4().hex[:8]}",
        "DW_V2_UPDATE_WAIT_COMPLETION_TIMEOUT_SECONDS": "1",
    }
    url = shared_servers.get("valkey").url

    async def fill(cluster: Cluster) -> tuple[Seeded, Seeded]:
        await cluster.start()
        async with open_client(cluster.nodes[0].url) as client:
            return await seed(Wire(client), "lane"), await seed(Wire(client), "road")

    with make_cluster(2, url, directory, environ) as cluster:
        seeded = trio.run(fill, cluster)
        with below_a_path(cluster, directory) as address:
            yield Site(address, cluster, *seeded)


@pytest.fixture(scope="module")
def chromium(site: Site) -> Iterator[Browser]:
    """Debian's Chromium. It comes after ``site``, because Playwright keeps an event loop of its own."""
    program = shutil.which("chromium")
    assert program is not None, "install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
