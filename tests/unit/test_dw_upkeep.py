"""``dw`` commands for workers, builds, single workflows and the system, against a made-up server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodes.cli.dw import program
from nodes.cli.dw.client import ApiClient
from nodes.cli.dw.failures import ExitCode

Seen = list[tuple[str, str, Any]]
Serve = Callable[..., Seen]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Answers every request with one body; returns what was asked."""

    def install(body: dict[str, Any], status: int = 200) -> Seen:
        seen: Seen = []

        def handler(request: httpx.Request) -> httpx.Response:
            content = json.loads(request.content) if request.content else None
            target = request.url.raw_path.decode().removeprefix("/api")
            seen.append((request.method, target, content))
            return httpx.Response(status, json=body)

        def connect(server: str, **options: Any) -> ApiClient:
            return ApiClient(server, **options, transport=httpx.MockTransport(handler))

        monkeypatch.setattr(program, "ApiClient", connect)
        return seen

    return install


def run(*argv: str) -> int:
    return program.run(argv, {"DURABLE_WORKFLOW_SERVER_URL": "http://server.test:9"})


@pytest.mark.parametrize(
    ("command", "request_sent"),
    [
        ("worker:list --status stale", ("GET", "/workers?status=stale", None)),
        ("worker:describe a/b", ("GET", "/workers/a%2Fb", None)),
        ("worker:deregister w", ("DELETE", "/workers/w", None)),
        ("task-queue:build-ids q", ("GET", "/task-queues/q/build-ids", None)),
        ("task-queue:drain q --build-id b", ("POST", "/task-queues/q/build-ids/drain", {"build_id": "b"})),
        (
            "task-queue:resume q --unversioned",
            ("POST", "/task-queues/q/build-ids/resume", {"build_id": None}),
        ),
        ("workflow:query w state", ("POST", "/workflows/w/query/state", {})),
        ("workflow:query w state -i 7", ("POST", "/workflows/w/query/state", {"input": [7]})),
        ("workflow:signal w go", ("POST", "/workflows/w/signal/go", {})),
        (
            "workflow:signal w go -i [1,2] --request-id r",
            ("POST", "/workflows/w/signal/go", {"input": [1, 2], "request_id": "r"}),
        ),
        ("workflow:update w add -i 7", ("POST", "/workflows/w/update/add", {"input": [7]})),
        (
            "workflow:update w add --wait",
            ("POST", "/workflows/w/update/add", {"wait_for": "completed"}),
        ),
        ("workflow:cancel w --reason late", ("POST", "/workflows/w/cancel", {"reason": "late"})),
        ("workflow:terminate w -r R", ("POST", "/workflows/w/runs/R/terminate", {})),
        ("workflow:list-runs w", ("GET", "/workflows/w/runs", None)),
        ("workflow:repair w", ("POST", "/workflows/w/repair", {})),
        ("workflow:archive w --reason old", ("POST", "/workflows/w/archive", {"reason": "old"})),
        ("workflow:history-export w r", ("GET", "/workflows/w/runs/r/history/export", None)),
        ("debug workflow w", ("GET", "/workflows/w/debug", None)),
        ("system:repair-status", ("GET", "/system/repair", None)),
        ("system:repair-pass", ("POST", "/system/repair/pass", {})),
        ("system:retention-status", ("GET", "/system/retention", None)),
        (
            "system:retention-pass --run-id a --run-id b",
            ("POST", "/system/retention/pass", {"run_ids": ["a", "b"]}),
        ),
        ("system:activity-timeout-status", ("GET", "/system/activity-timeouts", None)),
        ("system:activity-timeout-pass", ("POST", "/system/activity-timeouts/pass", {})),
        ("system:metrics", ("GET", "/system/metrics", None)),
        ("system:operator-metrics", ("GET", "/system/operator-metrics", None)),
        ("namespace:delete old --yes", ("DELETE", "/namespaces/old", None)),
        (
            "namespace:set-storage-driver n s3 --bucket b --region eu --threshold-bytes 9",
            (
                "PUT",
                "/namespaces/n/external-storage",
                {
                    "driver": "s3",
                    "enabled": True,
                    "threshold_bytes": 9,
                    "config": {"bucket": "b", "region": "eu"},
                },
            ),
        ),
        (
            "storage:test --large-bytes 100",
            ("POST", "/storage/test", {"small_payload_bytes": 64, "large_payload_bytes": 100}),
        ),
        (
            "task-queue:promote q --build-id b",
            ("POST", "/task-queues/q/build-ids/promote", {"build_id": "b"}),
        ),
        ("bridge:webhook github {}", ("POST", "/bridge-adapters/webhook/github", {})),
        ("node:list", ("GET", "/nodes", None)),
        ("scaling q --slots-per-worker 3", ("GET", "/scaling/q?slots_per_worker=3", None)),
        (
            "schedule:create s -t t --every PT1H+PT5M --cron 0_2_*_*_*",
            (
                "POST",
                "/schedules",
                {
                    "schedule_id": "s",
                    "spec": {
                        "cron_expressions": ["0_2_*_*_*"],
                        "intervals": [{"every": "PT1H", "offset": "PT5M"}],
                    },
                    "action": {"workflow_type": "t"},
                },
            ),
        ),
        ("flow:publish f c", ("POST", "/flows/f/channels/c", {"value": None, "request_id": None})),
    ],
)
def test_each_command_asks_its_route(serve: Serve, command: str, request_sent: Any) -> None:
    seen = serve({"workflow_id": "w"})

    assert run(*command.split()) == ExitCode.OK
    assert seen == [request_sent]


@pytest.mark.parametrize("arguments", [[], ["--build-id", "b", "--unversioned"]])
def test_a_drain_says_which_build(serve: Serve, arguments: list[str]) -> None:
    serve({})
    assert run("task-queue:drain", "q", *arguments) == ExitCode.REFUSED


def test_people_see_tables_and_results(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    serve({"workers": [{"worker_id": "w1", "status": "active"}]})
    run("worker:list")
    assert "w1" in capsys.readouterr().out
    serve({"result": {"progress": 3}, "workflow_id": "w"})
    run("workflow:query", "w", "state")
    assert json.loads(capsys.readouterr().out) == {"progress": 3}


def test_an_export_goes_to_a_file(serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = {"schema": "s", "integrity": {"checksum": "abc"}}
    serve(bundle)
    path = tmp_path / "bundle.json"

    assert run("workflow:history-export", "w", "r", "-o", str(path), "--json") == ExitCode.OK
    assert json.loads(path.read_text()) == bundle
    assert json.loads(capsys.readouterr().out)["checksum"] == "abc"
    assert run("workflow:history-export", "w", "r", "-o", str(tmp_path)) == ExitCode.FAILURE


@pytest.mark.parametrize("report", [{"failed": 1}, {"existing_task_failures": [{"run_id": "r"}]}])
def test_a_pass_that_failed_fails_the_command(serve: Serve, report: dict[str, Any]) -> None:
    serve(report, 207)
    assert run("system:retention-pass") == ExitCode.FAILURE
    assert run("system:repair-pass") == ExitCode.FAILURE


def test_input_that_is_no_json_is_refused(serve: Serve) -> None:
    serve({})
    assert run("workflow:query", "w", "state", "-i", "{") == ExitCode.REFUSED
