"""The ``dw`` command against a made-up server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nodes.cli.dw import program
from nodes.cli.dw.client import ApiClient
from nodes.cli.dw.failures import ExitCode, exit_code_of

Handler = Callable[[httpx.Request], httpx.Response]
URL = "http://server.test:9"


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], None]:
    """Install the handler that answers all requests."""

    def install(handler: Handler) -> None:
        def connect(server: str, **options: Any) -> ApiClient:
            return ApiClient(server, **options, transport=httpx.MockTransport(handler))

        monkeypatch.setattr(program, "ApiClient", connect)

    return install


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own profiles play a part."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run(*argv: str, **environ: str) -> int:
    return program.run(argv, {"DURABLE_WORKFLOW_SERVER_URL": URL, **environ})


def test_each_request_carries_versions_namespace_and_token(answer: Callable[[Handler], None]) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"namespaces": []})

    answer(handler)
    assert run("namespace:list", DURABLE_WORKFLOW_NAMESPACE="orders", DURABLE_WORKFLOW_AUTH_TOKEN="t") == 0
    assert run("namespace:list", "--namespace", "other", "--token", "u", DURABLE_WORKFLOW_AUTH_TOKEN="t") == 0
    first, second = (request.headers for request in seen)
    assert str(seen[0].url) == f"{URL}/api/namespaces?page_size=100"
    assert first["X-Durable-Workflow-Control-Plane-Version"] == "2"
    assert first["X-Durable-Workflow-Protocol-Version"] == "1.0"
    assert (first["X-Namespace"], first["Authorization"]) == ("orders", "Bearer t")
    assert (second["X-Namespace"], second["Authorization"]) == ("other", "Bearer u")


@pytest.mark.parametrize("option", ["--token", "--namespace"])
@pytest.mark.parametrize("value", ["s3cret\nX-Evil: 1", "s3cret\r", "s3cret\x7f", "s3cret\N{EURO SIGN}"])
def test_what_no_header_may_hold_is_wrong_usage_and_not_shown(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token with a line end, as of a file with two, is a slip of the caller's: the server is not away."""
    assert run("namespace:list", option, value) == ExitCode.REFUSED
    shown = capsys.readouterr().err
    assert shown == "dw: the token or the namespace has characters no HTTP header may have\n"


def test_start_sends_what_was_given_and_nothing_else(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    bodies: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(201, json={"workflow_id": "w", "run_id": "r", "control_plane": {}})

    answer(handler)
    assert run("workflow:start", "-t", "order", "-i", '["a", 1]', "--search-attr", "Kind=x=y") == 0
    assert run("workflow:start", "-t", "order", "-i", "7", "--memo", "{}", "--run-timeout", "5") == 0
    assert run("workflow:start", "-t", "order", "-i", "a b", "--input-encoding", "raw") == 0
    assert bodies == [
        {
            "workflow_type": "order",
            "task_queue": "default",
            "input": ["a", 1],
            "search_attributes": {"Kind": "x=y"},
        },
        {
            "workflow_type": "order",
            "task_queue": "default",
            "input": [7],
            "memo": {},
            "run_timeout_seconds": 5,
        },
        {"workflow_type": "order", "task_queue": "default", "input": ["a b"]},
    ]
    assert "\nworkflow_id: w\nrun_id: r\n" in capsys.readouterr().out


def test_start_may_wait_for_the_end(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(201, json={"workflow_id": "w/1", "run_id": "r"})
        assert request.url.raw_path == b"/api/workflows/w%2F1/runs/r"
        return httpx.Response(200, json={"status": "completed", "is_terminal": True, "output": 5})

    answer(handler)
    assert run("workflow:start", "-t", "order", "--wait", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["workflow_id"], shown["status"], shown["output"]) == ("w/1", "completed", 5)


def test_history_is_the_newest_run_s_when_none_is_named(answer: Callable[[Handler], None]) -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(200, json={"run_id": "newest", "events": []})

    answer(handler)
    assert run("workflow:history", "w") == 0
    assert seen == ["/api/workflows/w", "/api/workflows/w/runs/newest/history"]


def test_history_reads_all_pages(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        token = request.url.params.get("next_page_token")
        number = 2 if token else 1
        event = {"sequence": number, "event_type": f"E{number}", "timestamp": "now"}
        return httpx.Response(200, json={"events": [event], "next_page_token": None if token else "more"})

    answer(handler)
    assert run("workflow:history", "w", "r") == 0
    assert (
        capsys.readouterr().out
        == "SEQUENCE  EVENT_TYPE  TIMESTAMP\n1         E1          now\n2         E2          now\n"
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, ExitCode.UNAUTHORISED),
        (403, ExitCode.UNAUTHORISED),
        (404, ExitCode.NOT_FOUND),
        (408, ExitCode.TIMEOUT),
        (409, ExitCode.REFUSED),
        (422, ExitCode.REFUSED),
        (500, ExitCode.SERVER),
        (503, ExitCode.SERVER),
        (302, ExitCode.SERVER),
    ],
)
def test_statuses_become_exit_codes(status: int, code: ExitCode) -> None:
    assert exit_code_of(status) is code


def test_a_refusal_shows_reason_and_fields(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    body = {
        "message": "The name is wrong.",
        "reason": "validation_failed",
        "errors": {"name": ["bad", "long"]},
    }
    answer(lambda _: httpx.Response(422, json=body))
    assert run("namespace:create", "x") == ExitCode.REFUSED
    assert capsys.readouterr().err == "dw: The name is wrong. (validation_failed)\ndw:   name: bad, long\n"
    assert run("namespace:create", "x", "--json") == ExitCode.REFUSED
    report = json.loads(capsys.readouterr().out)
    assert report["exit_code"] == 2
    assert report["status_code"] == 422
    assert report["reason"] == "validation_failed"
    assert report["validation_errors"] == body["errors"]
    assert report["server_response"] == body


def test_who_forgot_the_token_is_told_where_it_goes(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(lambda _: httpx.Response(401, json={"message": "No token.", "reason": "unauthorized"}))
    assert run("namespace:list") == ExitCode.UNAUTHORISED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dw: No token. (unauthorized); put a token in DURABLE_WORKFLOW_AUTH_TOKEN")
    assert run("namespace:list", "--token", "wrong-one") == ExitCode.UNAUTHORISED
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not know this token" in line
    assert "wrong-one" not in line


NONSENSE = [
    b"[]",
    b'{"workflows": [1]}',
    b'{"workflows": "x"}',
    b'{"workflows": {"a": 1}}',
    b'{"workflows": [null]}',
    b"\xff\xfe",
    b"",
]


@pytest.mark.parametrize("output", [(), ("--json",)])
@pytest.mark.parametrize("content", NONSENSE)
def test_an_answer_without_sense_is_no_traceback(
    answer: Callable[[Handler], None], content: bytes, output: tuple[str, ...]
) -> None:
    """As of a server that is another program's."""
    answer(lambda _: httpx.Response(200, content=content))
    assert run("workflow:list", *output) in (ExitCode.OK, ExitCode.SERVER)
    for command in ("doctor", "task-queue:list", "workflow:describe x", "schedule:describe x", "server:info"):
        assert run(*command.split(), *output) != ExitCode.OK or content.startswith(b"{")


def test_members_of_the_wrong_type_are_named(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer(lambda _: httpx.Response(200, content=b'{"workflows": [1]}'))
    assert run("workflow:list") == ExitCode.SERVER
    shown = capsys.readouterr().err
    assert shown.startswith(
        f"dw: the answer of {URL} makes no sense to dw (AttributeError); is this the address"
    )
    assert shown.count("\n") == 1


def test_an_answer_that_cannot_be_decoded_is_one_line(
    answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.DecodingError("incorrect header check", request=request)

    answer(broken)
    assert run("workflow:list") == ExitCode.NETWORK
    assert capsys.readouterr().err.count("\n") == 1


def test_bytes_that_are_no_text_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("workflow:describe", b"w\xff".decode("utf-8", "surrogateescape")) == ExitCode.REFUSED
    assert "use a UTF-8 locale" in capsys.readouterr().err


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "nodes.cli.dw", "completion", "bash"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "dw: [Errno 28] No space left on device\n")


def test_a_server_that_is_away_or_slow(answer: Callable[[Handler], None]) -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow", request=request)

    answer(away)
    assert run("server:health") == ExitCode.NETWORK
    answer(slow)
    assert run("server:health") == ExitCode.TIMEOUT
    answer(lambda _: httpx.Response(200, text="<html>"))
    assert run("server:health") == ExitCode.SERVER


def test_the_timeout_is_that_of_the_whole_command(answer: Callable[[Handler], None]) -> None:
    """Of all its pages together; without one each answer has its own time."""
    asked: list[httpx.Request] = []

    def page(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        time.sleep(0.15)
        more = "next" if len(asked) < 4 else None
        return httpx.Response(200, json={"events": [{"sequence": len(asked)}], "next_page_token": more})

    answer(page)
    history = ("workflow:history", "w", "r")
    assert run(*history, "--timeout", "0.4") == ExitCode.TIMEOUT
    assert len(asked) < 4
    asked.clear()
    assert run(*history) == 0
    assert len(asked) == 4


def test_an_answer_that_trickles_in_is_not_waited_for(answer: Callable[[Handler], None]) -> None:
    def trickle() -> Iterator[bytes]:
        while True:
            yield b" "
            time.sleep(0.02)

    answer(lambda _: httpx.Response(200, content=trickle()))
    began = time.monotonic()
    assert run("server:health", "--timeout", "0.3") == ExitCode.TIMEOUT
    assert time.monotonic() - began < 5


def test_another_control_plane_version_is_incompatible(answer: Callable[[Handler], None]) -> None:
    answer(lambda _: httpx.Response(200, json={"control_plane": {"version": "3"}}))
    assert run("server:info") == ExitCode.INCOMPATIBLE


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["no:such"],
        ["workflow:start"],
        ["workflow:start", "-t", "x", "--search-attr", "novalue"],
        ["workflow:start", "-t", "x", "-i", "1", "--input-file", "f"],
        ["server:health", "--tls-verify", "perhaps"],
    ],
)
def test_wrong_usage_exits_with_2(argv: list[str]) -> None:
    assert run(*argv) == (ExitCode.REFUSED if argv else ExitCode.OK)


def test_a_mistyped_command_is_answered_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("worklfow:list") == ExitCode.REFUSED
    assert capsys.readouterr().err == (
        "dw: no command worklfow:list, did you mean workflow:list?; dw --help lists all commands\n"
    )
    assert run("worklfow:list", "--json") == ExitCode.REFUSED
    assert json.loads(capsys.readouterr().out)["exit_code"] == ExitCode.REFUSED


@pytest.mark.parametrize(
    "argv", [["-i", "{"], ["--memo", "[]"], ["--memo", "{"], ["--input-file", "/no/such/file"]]
)
def test_arguments_that_are_no_json_are_refused(argv: list[str]) -> None:
    assert run("workflow:start", "-t", "x", *argv) == ExitCode.REFUSED


SEED2_WORKFLOW_TASKS = {
    "status": "throttled",
    "leased_count": 8,
    "available_slot_count": 16,
    "server_max_active_leases_per_queue": 8,
    "server_active_lease_count": 8,
    "server_remaining_active_lease_capacity": 0,
    "server_max_active_leases_per_namespace": 300,
    "server_namespace_active_lease_count": 149,
    "server_remaining_namespace_active_lease_capacity": 151,
    "server_max_dispatches_per_minute": 120,
    "server_dispatch_count_this_minute": 120,
    "server_remaining_dispatch_capacity": 0,
    "server_max_dispatches_per_minute_per_namespace": 6000,
    "server_namespace_dispatch_count_this_minute": 3520,
    "server_remaining_namespace_dispatch_capacity": 2480,
    "server_dispatch_budget_group": "downstream-openai",
    "server_max_dispatches_per_minute_per_budget_group": 600,
    "server_budget_group_dispatch_count_this_minute": 600,
    "server_remaining_budget_group_dispatch_capacity": 0,
    "budget_source": "worker_registration.max_concurrent_workflow_tasks",
    "server_budget_source": "server.admission.queue_overrides",
}
QUEUE = {
    "name": "pay ments",
    "namespace": "default",
    "stats": {
        "approximate_backlog_count": 5,
        "approximate_backlog_age": "42s",
        "pollers": {"active_count": 3},
        "tasks_added_last_minute": 7,
    },
    "admission": {
        "workflow_tasks": SEED2_WORKFLOW_TASKS,
        "activity_tasks": {"status": "accepting"},
        "step_tasks": {"status": "saturated"},
        "query_tasks": {"status": "full", "max_pending_per_queue": 9, "remaining_pending_capacity": 0},
    },
    "pollers": [{"worker_id": "w1", "status": "active"}],
}


def test_task_queues_are_shown(answer: Callable[[Handler], None], capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        if seen[-1].endswith("/task-queues"):
            return httpx.Response(200, json={"namespace": "default", "task_queues": [QUEUE]})
        if "/why" in seen[-1]:
            reasons = [{"message": "8 of 8 leases"}, {"message": "no free slot"}]
            body = {"task_id": "T-w1", "reason": "limit_reached", "reasons": reasons}
            return httpx.Response(200, json=body)
        return httpx.Response(200, json=QUEUE)

    answer(handler)
    assert run("task-queue:list") == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        "NAME",
        "BACKLOG",
        "AGE",
        "WORKERS",
        "WORKFLOW_TASKS",
        "ACTIVITY_TASKS",
        "STEP_TASKS",
        "QUERY_TASKS",
    ]
    assert row.startswith(
        "pay ments  5        42s  3        throttled (0 leases left, 151 namespace leases left, "
    )
    assert "0/min left, 2480 namespace/min left, group downstream-openai 0/min left)  accepting" in row
    assert row.endswith("saturated   full (0 left)")
    assert run("task-queue:describe", "pay ments") == 0
    out = capsys.readouterr().out
    assert "active 8/8; remaining 0; namespace active 149/300" in out
    assert (
        "dispatch 120/120/min; namespace dispatch 3520/6000/min; group downstream-openai 600/600/min" in out
    )
    assert "server.admission.queue_overrides" in out
    assert "w1" in out
    assert run("task-queue:describe", "pay ments", "--json") == 0
    assert json.loads(capsys.readouterr().out) == QUEUE
    assert run("task-queue:why", "pay ments", "T-w1") == 0
    assert "* no free slot" in capsys.readouterr().out
    assert seen[1:3] == ["/api/task-queues/pay%20ments"] * 2
    assert seen[3] == "/api/task-queues/pay%20ments/why?task=T-w1"


class _Careless:
    """Is interrupted while it is finalized, where Python drops every exception."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_watch_ends_though_python_dropped_the_interrupt() -> None:
    looks = 0

    def look(_dw: object) -> None:
        nonlocal looks
        looks += 1
        _Careless()

    dw: Any = SimpleNamespace(client=SimpleNamespace(patience=SimpleNamespace(renew=lambda: None)))
    entry: Any = SimpleNamespace(run=look)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        program._watch(dw, entry, {}, 0.01)
    assert looks == 1
    assert signal.getsignal(signal.SIGINT) is before
