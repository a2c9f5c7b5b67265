"""``dw`` as people and scripts meet it: exit codes, terminals, pipes, signals, tokens, waiting."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from nodes.cli.dw.failures import ExitCode
from nodes.cli.dw.program import load
from nodes.cli.dw.views import Rows
from tests.cluster_processes import make_cluster
from tests.conftest import SharedServers
from tests.e2e.dw.world import World
from tests.e2e.programs import DW, TOP, environment
from tests.ports import free_ports

TOKENS = {
    "DW_WORKER_TOKEN": "worker-secret",
    "DW_OPERATOR_TOKEN": "operator-secret",
    "DW_ADMIN_TOKEN": "admin-secret",
}


def dw(*argv: str, env: Mapping[str, str], fed: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DW, *argv],
        cwd=TOP,
        env=dict(env),
        input=fed,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@contextmanager
def running(argv: Sequence[str], env: Mapping[str, str], **streams: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*DW, *argv], cwd=TOP, env=dict(env), text=True, **{"stdout": -1, "stderr": -1, **streams}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="session")
def guarded(shared_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node that wants tokens."""
    environ = {"HEADRACE_KEY_PREFIX": f"g{uuid4().hex[:8]}", "DW_AUTH_DRIVER": "token", **TOKENS}
    directory = tmp_path_factory.mktemp("guarded")
    with make_cluster(1, shared_servers.get("valkey").url, directory, environ) as cluster:
        trio.run(cluster.start)
        yield cluster.url


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment({"DW_CONFIG_HOME": str(tmp_path / "config")})


@contextmanager
def answering(status: int, body: Any, **headers: str) -> Iterator[str]:
    """A server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# -- exit codes -------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_one_line(env: dict[str, str]) -> None:
    (port,) = free_ports(1)

    done = dw("workflow:list", "-s", f"http://127.0.0.1:{port}", env=env)

    assert (done.returncode, done.stdout) == (ExitCode.NETWORK, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dw: cannot reach http://127.0.0.1:{port}: ")
    assert "--server" in line


def test_a_server_that_does_not_answer_is_a_timeout(env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = dw("node:list", "-s", url, "--timeout", "0.2", "--json", env=env)

    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == ExitCode.TIMEOUT
    assert report["recommendations"]
    assert (report["command"], report["status_code"]) == ("node:list", None)


def test_another_version_is_told_apart(env: dict[str, str]) -> None:
    refusal = {"message": "Version 2 is over.", "reason": "unsupported_control_plane_version"}
    with answering(200, {}, X_Durable_Workflow_Control_Plane_Version="3") as url:
        newer = dw("workflow:list", "-s", url, env=env)
    with answering(400, refusal) as url:
        refused = dw("workflow:list", "-s", url, env=env)

    for done in (newer, refused):
        assert done.returncode == ExitCode.INCOMPATIBLE
        assert len(done.stderr.splitlines()) == 1
    assert "speaks control plane version 3" in newer.stderr


@pytest.mark.parametrize("version", [">=0.0,<0.1", "<0.1", ">=9", "==7.1"])
def test_a_server_that_does_not_support_this_dw_is_incompatible(env: dict[str, str], version: str) -> None:
    info = {
        "control_plane": {
            "version": "2",
            "request_contract": {
                "schema": "durable-workflow.v2.control-plane-request.contract",
                "version": 1,
            },
        },
        "worker_protocol": {"version": "1.20"},
        "client_compatibility": {"clients": {"cli": {"supported_versions": version}}},
    }
    with answering(200, info) as url:
        done = dw("server:info", "-s", url, env=env)

    assert done.returncode == ExitCode.INCOMPATIBLE
    assert version in done.stderr


def test_tokens_and_roles(guarded: str, env: dict[str, str]) -> None:
    def code(*argv: str, token: str) -> int:
        return dw(*argv, "-s", guarded, env={**env, "DURABLE_WORKFLOW_AUTH_TOKEN": token}).returncode

    nobody = dw("workflow:list", "-s", guarded, env=env)
    wrong = dw("workflow:list", "-s", guarded, "--token", "guess-7", env=env)
    denied = dw("system:metrics", "-s", guarded, "--token", "operator-secret", env=env)

    assert (nobody.returncode, wrong.returncode, denied.returncode) == (4, 4, 4)
    assert "DURABLE_WORKFLOW_AUTH_TOKEN" in nobody.stderr
    assert "guess-7" not in wrong.stderr + wrong.stdout
    assert "use a token of the role admin" in denied.stderr
    assert code("workflow:list", token="operator-secret") == 0
    assert code("node:list", token="operator-secret") == 0
    assert code("node:list", token="worker-secret") == 4
    assert code("limit:set", "q", "--tasks", "workflow", "--leases", "1", token="operator-secret") == 4
    assert code("worker:register", "w", token="operator-secret") == 4
    assert code("worker:register", "w", token="worker-secret") == 0
    assert code("system:store", token="admin-secret") == 0


def test_the_doctor_says_what_to_do(guarded: str, world: World, env: dict[str, str]) -> None:
    (port,) = free_ports(1)
    away = dw("doctor", "-s", f"http://127.0.0.1:{port}", "--json", env=env)
    stranger = dw("doctor", "-s", guarded, "--json", env=env)
    operator = dw("doctor", "-s", guarded, "--json", "--token", "operator-secret", env=env)
    well = dw("doctor", env=world.environ)

    def found(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
        return {check["check"]: check["status"] for check in json.loads(done.stdout)["checks"]}

    assert (away.returncode, stranger.returncode, operator.returncode, well.returncode) == (3, 4, 0, 0)
    assert found(away) == {"reachable": "failed"} | dict.fromkeys(
        ("ready", "versions", "namespace", "clock", "nodes", "partitions", "store", "queues"), "skipped"
    )
    assert found(stranger)["versions"] == "failed"
    assert found(operator)["store"] == "skipped"
    assert found(operator)["queues"] == "ok"
    assert json.loads(stranger.stdout)["checks"][2]["advice"]
    assert (
        "admin" in next(c for c in json.loads(operator.stdout)["checks"] if c["check"] == "store")["advice"]
    )


# -- terminals, pipes, signals ----------------------------------------------------------------------


def _on_a_terminal(*argv: str, env: Mapping[str, str]) -> str:
    """What a person sees."""
    ours, theirs = pty.openpty()
    try:
        with running(argv, {**env, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    chunk = os.read(ours, 4096)
                except OSError:
                    break
                if not chunk:
                    break
                shown += chunk
            assert process.wait(30) == 0
    finally:
        os.close(ours)
    return shown.decode()


def test_colours_are_for_terminals(world: World) -> None:
    coloured = _on_a_terminal("node:list", env=world.environ)
    plain = _on_a_terminal("node:list", env={**world.environ, "NO_COLOR": "1"})
    piped = dw("node:list", env=world.environ).stdout

    assert "\x1b[32malive" in coloured
    assert "\x1b[32m" not in plain
    assert "alive" in plain
    assert "\x1b" not in piped
    assert piped.splitlines()[0].split()[:3] == ["NAME", "STATUS", "VERSION"]


def test_what_a_server_says_cannot_drive_the_terminal(env: dict[str, str]) -> None:
    evil = {"nodes": [{"name": "\x1b]0;owned\x07node\r\n\x1b[2J", "status": "alive"}]}
    with answering(200, evil) as url:
        piped = dw("node:list", "-s", url, env=env).stdout
        shown = _on_a_terminal("node:list", "-s", url, env=env)

    assert "\x1b" not in piped
    assert "\x1b]0" not in shown
    assert "\x1b[2J" not in shown


def test_a_reader_that_has_enough_is_no_error(world: World) -> None:
    line = f"{' '.join(DW)} completion bash | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=TOP,
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("0\n", "")


def test_watching_ends_with_ctrl_c(world: World) -> None:
    with running(["node:list", "--watch", "--interval", "0.1"], world.environ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("NAME")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == ExitCode.INTERRUPTED
        assert process.stderr.read() == ""


def test_a_watched_list_is_shown_again_when_it_changed(world: World) -> None:
    world.environ.pop("DW_ENV", None)
    own = f"watched-{uuid4().hex[:8]}"
    argv = ["workflow:list", "--query", own, "--watch", "--interval", "0.1", "--json"]
    with running(argv, world.environ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        world.post("workflows", {"workflow_type": "pay", "workflow_id": own, "task_queue": "idle"})
        second = json.loads(process.stdout.readline())

    assert [len(page["workflows"]) for page in (first, second)] == [0, 1]


def test_a_history_is_followed_to_its_end(world: World) -> None:
    own = f"followed-{uuid4().hex[:8]}"
    world.open_order(own)
    with running(["workflow:history", own, "--follow", "--json"], world.environ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        world.post(f"workflows/{own}/signal/approve", {"input": [True]})
        rest = [json.loads(line) for line in process.stdout]
        assert process.wait(60) == 0

    events = [first, *rest]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["event_type"] == "WorkflowCompleted"


def test_a_development_server_is_started_and_ends_with_its_signal(
    env: dict[str, str], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    argv = ["server:start-dev", "--port", str(port), "--data-dir", str(tmp_path / "data")]
    with running(argv, env) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headrace: ready")
        assert dw("server:ready", "-s", f"http://127.0.0.1:{port}", env=env).returncode == 0
        process.send_signal(signal.SIGTERM)
        process.wait(60)


# -- waiting ----------------------------------------------------------------------------------------


def test_waiting_for_a_run(world: World) -> None:
    start = ("workflow:start", "--task-queue", "orders", "--wait", "--json", "-t")
    good = dw(*start, "greet", "-i", '["you"]', env=world.environ)
    bad = dw(*start, "report", env=world.environ)
    late = dw(*start, "order", "--wait-timeout", "0", env=world.environ)

    assert good.returncode == 0
    assert json.loads(good.stdout)["output"] == "hello you"
    assert bad.returncode == ExitCode.FAILURE
    assert json.loads(bad.stdout)["server_response"]["status"] == "failed"
    assert late.returncode == ExitCode.TIMEOUT
    assert "--follow" in json.loads(late.stdout)["recommendations"][0]


def test_waiting_for_a_flow(world: World) -> None:
    own = f"parcel-{uuid4().hex[:8]}"
    world.open_parcel(own)

    late = dw("flow:wait", own, "--wait-timeout", "0", env=world.environ)
    dw("flow:stop", own, "--type", "fail", "--reason", "lost", env=world.environ)
    failed = dw("flow:wait", own, "--json", env=world.environ)

    assert late.returncode == ExitCode.TIMEOUT
    assert failed.returncode == ExitCode.FAILURE
    assert json.loads(failed.stdout)["server_response"]["close_reason"] == "lost"


def test_what_keeps_a_workflow_fits_a_screen(world: World) -> None:
    own = f"stuck-{uuid4().hex[:8]}"
    dw("workflow:start", "-t", "order", "-w", own, "--task-queue", own, env=world.environ)
    shown = dw("debug", "workflow", own, env=world.environ).stdout
    (task_id,) = (line.split()[0] for line in shown.splitlines() if "-w1 " in line)
    why = dw("why", task_id, env=world.environ)

    assert "diagnostic_status: no_active_workers\n" in shown
    assert "WorkflowStarted" in shown
    assert len(shown.splitlines()) < 30
    assert f"task_queue: {own}\n" in why.stdout


def test_steps_of_a_flow_are_listed_with_what_they_failed_of() -> None:
    failed = {"at": "2026-04-02T08:00:00Z", "event": "failed", "failure": {"message": "no", "type": "E"}}
    (rows,) = load()["flow:steps"].view({"steps": [failed, {"event": "completed"}]})
    assert isinstance(rows, Rows)
    assert [one["failure"] for one in rows.records] == ["no", None]
    assert {"at", "failure"} <= set(rows.columns)


def test_the_list_of_commands_cuts_nothing_short() -> None:
    shown = dw("--help", env={**environment({}), "COLUMNS": "80"})
    assert shown.returncode == 0
    assert "..." not in shown.stdout.partition("Commands:")[2]
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_many_are_cancelled_only_with_consent(world: World) -> None:
    own = f"trial-{uuid4().hex[:8]}"
    for number in range(3):
        world.post(
            "workflows", {"workflow_type": "pay", "workflow_id": f"{own}-{number}", "task_queue": "idle"}
        )

    asked = dw("workflow:cancel", "--all-matching", own, env=world.environ, fed="")
    done = dw("workflow:cancel", "--all-matching", own, "--yes", "--json", env=world.environ)
    none = dw("workflow:cancel", "--all-matching", own, "--json", env=world.environ)
    both = dw("workflow:cancel", own, "--all-matching", own, env=world.environ)

    assert asked.returncode == ExitCode.REFUSED
    assert "--yes" in asked.stderr
    report = json.loads(done.stdout)
    assert (report["matched"], report["cancelled"], report["failed"]) == (3, 3, 0)
    assert len(report["results"]) == 3
    assert (none.returncode, json.loads(none.stdout)["matched"]) == (0, 0)
    assert both.returncode == ExitCode.REFUSED


def test_limits_add_up_until_they_are_cleared(world: World) -> None:
    own = f"q{uuid4().hex[:8]}"
    dw("limit:set", own, "--tasks", "workflow", "--leases", "8", env=world.environ)
    dw("limit:set", own, "--tasks", "activity", "--per-minute", "5", env=world.environ)
    shown = dw("limit:set", own, "--tasks", "workflow", "--per-minute", "120", "--json", env=world.environ)
    cleared = dw("limit:clear", own, "--json", env=world.environ)
    again = dw("limit:clear", own, env=world.environ)

    assert json.loads(shown.stdout)["runtime"] == {
        "workflow_tasks": {"max_active_leases_per_queue": 8, "max_dispatches_per_minute": 120},
        "activity_tasks": {"max_dispatches_per_minute": 5},
    }
    assert json.loads(cleared.stdout)["runtime"] == {}
    assert again.returncode == ExitCode.NOT_FOUND


# -- profiles and completion ------------------------------------------------------------------------


def test_profiles_keep_tokens_to_themselves(guarded: str, env: dict[str, str]) -> None:
    secret = "admin-secret"
    said = [
        dw("env:set", "prod", "-s", guarded, "--token-stdin", env=env, fed=f"{secret}\n"),
        dw("env:set", "other", "-s", "http://127.0.0.1:1", "--token-env", "OTHER", env=env),
        dw("env:list", "--json", env=env),
        dw("env:show", env=env),
        dw("system:store", env=env),
    ]
    file = Path(env["DW_CONFIG_HOME"]) / "profiles.json"
    elsewhere = dw("server:health", "--env", "other", env={**env, "OTHER": "x"})
    unset = dw("server:health", env={**env, "DW_ENV": "other"})
    unknown = dw("server:health", "--env", "nowhere", env=env)
    typed = dw("env:set", "bad", "--token", secret, env=env)

    assert [done.returncode for done in said] == [0] * 5
    assert not any(secret in done.stdout + done.stderr for done in (*said, typed))
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(said[2].stdout)["current"] == "prod"
    assert elsewhere.returncode == ExitCode.NETWORK
    assert (unset.returncode, "OTHER, which is not set" in unset.stderr) == (2, True)
    assert (unknown.returncode, "there are: other, prod" in unknown.stderr) == (2, True)
    assert typed.returncode == ExitCode.REFUSED


def test_a_flag_comes_before_a_variable_before_a_profile(env: dict[str, str], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("from-file\n")
    dw("env:set", "p", "-s", "http://p", "--namespace", "np", "--token-file", str(token), env=env)
    variables = {"DURABLE_WORKFLOW_SERVER_URL": "http://v", "DURABLE_WORKFLOW_NAMESPACE": "nv"}

    def shown(*argv: str, **more: str) -> Any:
        return json.loads(dw("env:show", "--json", *argv, env={**env, **more}).stdout)

    profile, variable = shown(), shown(**variables)
    flag = shown("-s", "http://f", "--namespace", "nf", **variables)

    assert (profile["server"], profile["namespace"]) == ("http://p", "np")
    assert (variable["server"], variable["namespace"]) == ("http://v", "nv")
    assert (flag["server"], flag["namespace"]) == ("http://f", "nf")
    assert profile["token"] == f"from file {token}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dw task-queue:dr", {"drain"}),
        ("dw node", {"node:list"}),
        ("dw node:list --js", {"--json"}),
        ("dw nothing --", set()),
    ],
)
def test_bash_completes_names_with_colons(env: dict[str, str], line: str, expected: set[str]) -> None:
    script = dw("completion", "bash", env=env).stdout
    ask = f"COMP_WORDBREAKS=' :'; COMP_LINE='{line}'; COMP_POINT={len(line)}; _dw; echo \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=180, check=True
    )

    assert set(done.stdout.split()) == expected


def test_python_is_found_by_its_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nodes.cli.dw", "--version"],
        cwd=TOP,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert done.stdout.startswith("dw ")
