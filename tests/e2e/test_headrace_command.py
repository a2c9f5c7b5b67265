"""``headrace serve``, ``dev``, ``demo`` and ``config`` as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx

from tests.cluster_processes import environment
from tests.e2e.programs import (
    DW,
    HEADRACE,
    descendants,
    is_running,
    run,
    started,
)
from tests.ports import free_port_range
from tests.waiting import LONG_PATIENCE, eventually


async def test_dev_runs_nodes_over_an_embedded_store_and_stops_everything(tmp_path: Path) -> None:
    port = free_port_range(2)
    command = [*HEADRACE, "dev", "--nodes", "2", "--port", str(port), "--data-dir", str(tmp_path)]
    with started(*command) as dev:
        assert dev.stdout is not None
        urls = [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"]
        assert dev.stdout.readline() == f"headrace: ready {urls[0]} {urls[1]}\n"
        for url in urls:
            assert run(*DW, "server:health", "--server", url).returncode == 0

        first = run(*DW, "workflow:start", "-t", "t", "-w", "w1", "-i", "[1]", "--json", "--server", urls[0])
        assert first.returncode == 0, first.stderr
        seen = run(*DW, "workflow:describe", "w1", "--json", env={"DURABLE_WORKFLOW_SERVER_URL": urls[1]})
        assert json.loads(seen.stdout)["run_id"] == json.loads(first.stdout)["run_id"]

        children = descendants(dev.pid)
        assert len(children) == 4
        dev.send_signal(signal.SIGTERM)
        assert dev.stdout.read() == ""
        assert dev.wait() == 0
        assert not any(is_running(pid) for pid in children)
        assert sorted(log.name for log in (tmp_path / "logs").iterdir()) == [
            "keeper.log",
            "node-1.log",
            "node-2.log",
        ]

    with started(*command) as dev:
        assert dev.stdout is not None
        dev.stdout.readline()
        seen = run(*DW, "workflow:list", "--json", "--server", urls[0])
        assert [run["workflow_id"] for run in json.loads(seen.stdout)["workflows"]] == ["w1"]

        other = run(*HEADRACE, "dev", "--port", str(free_port_range(1)), "--data-dir", str(tmp_path))
        assert other.returncode == 2
        assert re.fullmatch(r"headrace: a Valkey \(pid \d+\) already runs on .*\n", other.stderr)

        children = descendants(dev.pid)
        dev.kill()
        await eventually(lambda: not any(is_running(pid) for pid in children), LONG_PATIENCE)


def test_dev_says_in_one_line_why_it_cannot_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run(*HEADRACE, "dev", "--port", str(port), "--data-dir", str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"headrace: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port\n"
    )
    file = tmp_path / "file"
    file.touch()
    free = str(free_port_range(1))
    refused = run(*HEADRACE, "dev", "--port", free, "--data-dir", str(file))
    assert refused.returncode == 2
    assert re.fullmatch(r"headrace: cannot write to the data directory .*\n", refused.stderr)

    refused = run(*HEADRACE, "dev", "--port", free, "--data-dir", str(tmp_path), env={"DW_MODE": "x"})
    assert refused.returncode == 2
    assert refused.stderr == "headrace: DW_MODE='x': must be 'service'\n"


def test_dev_names_the_node_that_cannot_start(tmp_path: Path) -> None:
    nowhere = f"redis://127.0.0.1:{free_port_range(1)}"
    refused = run(
        *HEADRACE,
        "dev",
        "--port",
        str(free_port_range(1)),
        "--data-dir",
        str(tmp_path),
        "--redis-url",
        nowhere,
        env={"DW_BOOTSTRAP_RETRIES": "0"},
    )
    assert refused.returncode == 2
    assert re.fullmatch(
        r"headrace: node-1 ended at start with code 2: .*\(log: .*node-1\.log\)\n", refused.stderr
    )


def test_demo_finishes_although_a_node_is_killed() -> None:
    told = run(*HEADRACE, "demo", env={"DW_AUTH_TOKEN": "ignored", "DW_NO_SUCH": "1"})
    assert told.returncode == 0, told.stdout + told.stderr
    *_, last = lines = told.stdout.splitlines()
    assert re.fullmatch(r"demo: completed in [\d.]+ s: order-1001: .*shipped", last)
    story = "\n".join(lines)
    assert "activity charge failed, attempt 1" in story
    assert "killed (SIGKILL) while the worker runs ship" in story
    assert "attempts: reserve 1, charge 2, ship 1" in story


def test_serve_ends_orderly(valkey_url: str, prefix: str) -> None:
    port = free_port_range(1)
    env = {"REDIS_URL": valkey_url, "HEADRACE_KEY_PREFIX": prefix, "DW_AUTH_TOKEN": "t"}
    with started(*HEADRACE, "serve", "--listen", f"127.0.0.1:{port}", "--node-name", "n1", env=env) as node:
        assert node.stderr is not None
        said = ""
        while '"serving_started"' not in said:
            line = node.stderr.readline()
            said += line
            assert line, said
        assert httpx.get(f"http://127.0.0.1:{port}/api/ready").status_code == 200
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=120)
        assert node.returncode == 0


def test_serve_says_what_is_wrong_without_a_traceback() -> None:
    refused = run(*HEADRACE, "serve", "--listen", "0.0.0.0:1", env={"DW_AUTH_DRIVER": "none", "DW_MOD": "1"})
    assert refused.returncode == 2
    assert refused.stdout == ""
    first, second = refused.stderr.splitlines()
    assert first == "headrace: unknown variable DW_MOD (did you mean DW_MODE?)"
    assert second.startswith("headrace: DW_AUTH_DRIVER=none on 0.0.0.0:1 would let everybody in: ")

    env = {"REDIS_URL": f"redis://127.0.0.1:{free_port_range(1)}", "DW_BOOTSTRAP_RETRIES": "0"}
    refused = run(*HEADRACE, "serve", env=env)
    assert refused.returncode == 2
    warning, reason = refused.stderr.splitlines()
    assert warning.startswith("headrace: warning: nobody will be let in: set DW_AUTH_TOKEN ")
    assert reason.startswith("headrace: Redis cannot be reached at ")


def test_config_shows_values_origins_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text("partitions = 4\n")
    env = {"DW_WORKER_TOKEN": "hunter2", "REDIS_URL": "redis://me:hunter2@h/1", "HEADRACE_CONFIG": str(file)}
    shown = run(*HEADRACE, "config", "--json", "--node-name", "n1", env=env)
    assert "hunter2" not in shown.stdout
    values = {row["key"]: (row["value"], row["origin"]) for row in json.loads(shown.stdout)}
    assert values["partitions"] == (4, f"{file}:1")
    assert values["worker_token"] == ("***", "DW_WORKER_TOKEN")
    assert values["redis_url"] == ("redis://me:***@h/1", "REDIS_URL")
    assert values["node_name"] == ("n1", "--node-name")
    assert values["listen"] == ("127.0.0.1:8080", "default")
    text = run(*HEADRACE, "config", env=env).stdout
    assert "hunter2" not in text
    assert f"partitions\t4\t{file}:1\n" in text


def test_unknown_dw_variables_can_be_allowed() -> None:
    shown = run(*HEADRACE, "config", env={"DW_ENV_AUDIT_STRICT": "0", "DW_MOD": "1"})
    assert shown.returncode == 0
    assert shown.stderr == "headrace: warning: unknown variable DW_MOD (did you mean DW_MODE?)\n"


def test_version_and_help() -> None:
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", run(*HEADRACE, "--version").stdout)
    assert run(*HEADRACE, "version").stdout == run(*HEADRACE, "--version").stdout
    shown = run(*HEADRACE, "serve", "--help").stdout
    assert "--parent" not in shown
    assert run(*HEADRACE, "no-such").returncode == 2


def test_config_is_a_table_on_a_terminal_and_plain_in_a_pipe() -> None:
    command = [*HEADRACE, "config"]
    ours, theirs = os.openpty()
    environ = environment(TERM="xterm", COLUMNS="200")
    child = subprocess.Popen(command, env=environ, stdout=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # Linux says so when the other end is closed
        while part := os.read(ours, 65_536):
            shown += part
    os.close(ours)
    assert child.wait(60) == 0
    assert "setting" in shown.decode()
    assert "\u2500\u2500\u2500" in shown.decode()
    piped = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert "\u2500" not in piped.stdout
    assert all(line.count("\t") == 2 for line in piped.stdout.splitlines())
