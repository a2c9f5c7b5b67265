"""Workers and clients behind a balancer that speaks TLS, as the comments of its configuration show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

from headrace import Decision, Flow, StepContext, Worker, complete, step
from tests.cluster_processes import HOST, TOP, Balancer, Cluster, environment
from tests.ports import free_port
from tests.waiting import eventually

AUTHORITY = trustme.CA()
PLAIN = 'bind "${LISTEN-:8080}"'


@pytest.fixture
async def secure_url(cluster: Cluster, tmp_path: Path) -> AsyncIterator[str]:
    AUTHORITY.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(tmp_path / "site.pem")
    shipped = (TOP / "deploy/haproxy.cfg").read_text()
    assert shipped.count(PLAIN) == 1
    rules = tmp_path / "haproxy.cfg"
    rules.write_text(shipped.replace(PLAIN, f"{PLAIN} ssl crt {tmp_path}/site.pem alpn h2,http/1.1"))
    balancer = Balancer(free_port(), cluster.nodes, tmp_path, rules)
    balancer.start()
    try:
        await eventually(partial(_listens, balancer.port))
        yield f"https://{HOST}:{balancer.port}"
    finally:
        balancer.kill()


async def _listens(port: int) -> bool:
    try:
        stream = await trio.open_tcp_stream(HOST, port)
    except OSError:
        return False
    await stream.aclose()
    return True


async def test_an_example_runs_over_tls(secure_url: str, tmp_path: Path) -> None:
    """``SSL_CERT_FILE`` names whom it trusts."""
    AUTHORITY.cert_pem.write_to_path(tmp_path / "authority.pem")
    done = await trio.run_process(
        [sys.executable, str(TOP / "examples/order.py")],
        env=environment(HEADRACE_URL=secure_url, SSL_CERT_FILE=str(tmp_path / "authority.pem")),
        capture_stdout=True,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()


class Nothing(Flow):
    start = "end"

    @step
    def end(self, ctx: StepContext) -> Decision:
        return complete()


async def test_a_node_that_is_not_trusted_gets_nothing_and_it_is_said_why(
    secure_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "another.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "another.pem"))
    async with Worker(secure_url, [Nothing]) as worker:
        await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)
        assert not worker.is_ready
