"""Secrets come out nowhere: not in logs, answers, pages, metrics or the printed configuration."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import trio

from tests.cluster_processes import make_cluster, run_command
from tests.servers import run_server
from tests.stream_client import connect
from tests.wire import HEADERS

PASSWORD = "PLANTED-redis-password"
TOKENS = {role: f"PLANTED-{role}-token-0123456789" for role in ("WORKER", "OPERATOR", "ADMIN")}
OTLP = "PLANTED-otlp-header"
GUESS = "PLANTED-wrong-guess"
PAYLOAD = "PLANTED-payload"
PLANTED = [PASSWORD, OTLP, GUESS, PAYLOAD, *TOKENS.values(), base64.b64encode(PAYLOAD.encode()).decode()[:-4]]
READS = (
    "/metrics",
    "/api/system/metrics",
    "/api/cluster/info",
    "/api/health",
    "/openapi.json",
    "/api/workers",
)
PAGES = ("", "workflows", "workers", "queues", "cluster", "nowhere", "login")


def telling(text: str) -> list[str]:
    return [secret for secret in PLANTED if secret in text]


async def test_planted_secrets_stay_where_they_were_planted(prefix: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with run_server("valkey", tmp_path / "store", password=PASSWORD) as store:
        environ = {
            "HEADRACE_KEY_PREFIX": prefix,
            "HEADRACE_LOG_LEVEL": "debug",
            "HEADRACE_TRACING": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={OTLP}",
            "DW_AUTH_DRIVER": "token",
            **{f"DW_{role}_TOKEN": token for role, token in TOKENS.items()},
        }
        printed = run_command("config", **environ, REDIS_URL=store.url)
        assert not telling(printed.stdout + printed.stderr), printed.stdout
        with make_cluster(1, store.url, tmp_path / "nodes", environ) as cluster:
            await cluster.start()
            (node,) = cluster.nodes
            seen = await _ask_everything(node.url)
            await _stream(node.url)
            # A store that fails in the middle of a request is what makes logs long.
            store.kill()
            async with httpx.AsyncClient(base_url=node.url, trust_env=False, timeout=30) as http:
                headers = {**HEADERS, "authorization": f"Bearer {TOKENS['OPERATOR']}"}
                lost = await http.post("/api/workflows", headers=headers, json=_start("lost"))
                assert lost.status_code == 503
                seen.append(lost.text)
            node.kill()
            assert node.log
            assert not telling(node.log), [line for line in node.log.splitlines() if telling(line)]
        assert not [answer for answer in seen if telling(answer)]


def _start(workflow_id: str) -> dict[str, object]:
    return {"workflow_id": workflow_id, "workflow_type": "t", "task_queue": "q", "input": [PAYLOAD]}


async def _ask_everything(url: str) -> list[str]:
    """Bodies and headers of answers to requests that carry secrets, and need not tell them."""
    seen: list[str] = []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http:

        async def ask(method: str, path: str, token: str, **more: object) -> None:
            headers = {**HEADERS, "authorization": f"Bearer {token}"}
            answer = await http.request(method, path, headers=headers, **more)  # type: ignore[arg-type]
            seen.append(f"{answer.headers} {answer.text}")

        for token in (GUESS, *TOKENS.values()):
            for path in READS:
                await ask("GET", path, token)
            for body in (_start("one"), {**_start("x" * 5000)}, {"input": PAYLOAD}, [PAYLOAD]):
                await ask("POST", "/api/workflows", token, json=body)
            await ask("POST", "/api/workflows", token, content=b'{"input": "%b' % PAYLOAD.encode())
            await ask("POST", "/api/workflows/one/signal/s", token, json={"input": [PAYLOAD]})
            await ask("POST", "/api/worker/workflow-tasks/none/complete", token, json={"commands": [PAYLOAD]})
            for page in PAGES:
                await ask("GET", f"/console/{page}", token)
            await ask("POST", "/console/login", token, data={"credential": token})
    return seen


async def _stream(url: str) -> None:
    async with connect(url, "websocket", authorization=f"Bearer {TOKENS['WORKER']}") as worker:
        await worker.hello("w", "F")
        await worker.send({"type": "output", "slot": 1, "attempt_id": PAYLOAD, "output": PAYLOAD})
        with trio.fail_after(20):
            await worker.wait_ended()
        assert not telling(str(worker.frames))
