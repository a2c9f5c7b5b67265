"""Log lines have one form, whoever writes them."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from cluster.settings.schema import LogFormat
from nodes.logging import configure_logging
from tests.e2e.programs import TOP


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_of_our_own_and_of_libraries() -> None:
    stream = io.StringIO()
    configure_logging("info", LogFormat.AUTO, node="n1", stream=stream)
    structlog.get_logger().info("partition taken", partition=3)
    logging.getLogger("hypercorn.error").warning("slow %s", "client")
    own, library = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (own["event"], own["partition"], own["level"], own["node"]) == ("partition taken", 3, "info", "n1")
    assert own["timestamp"].endswith("Z")
    assert (library["event"], library["level"], library["logger"]) == (
        "slow client",
        "warning",
        "hypercorn.error",
    )


def test_exceptions_are_one_line() -> None:
    stream = io.StringIO()
    configure_logging("info", LogFormat.JSON, stream=stream)
    try:
        raise ValueError("bad")
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("x").exception("failed too")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all("ValueError: bad" in line["exception"] for line in lines)


def test_exceptions_on_a_terminal_show_no_values() -> None:
    stream = io.StringIO()
    configure_logging("info", LogFormat.CONSOLE, stream=stream)

    def fail(token: str) -> None:
        raise ValueError(f"bad, {len(token)} characters")

    try:
        fail("-".join(["very", "secret"]))
    except ValueError:
        structlog.get_logger().exception("failed")
        logging.getLogger("x").exception("failed too")
    assert stream.getvalue().count("ValueError: bad, 11 characters") == 2
    assert "very-secret" not in stream.getvalue()


def test_lines_below_the_level_are_dropped() -> None:
    stream = io.StringIO()
    configure_logging("warning", LogFormat.CONSOLE, stream=stream)
    structlog.get_logger().info("no")
    logging.getLogger("x").info("no")
    structlog.get_logger().warning("yes")
    assert "no" not in stream.getvalue()
    assert "yes" in stream.getvalue()


LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
IRREGULAR = {"began", "broke", "cut", "found", "given", "gone", "grew", "left", "lost", "overcome", "read"}
IRREGULAR |= {"kept", "sent", "taken", "written"}


def events() -> Iterator[tuple[str, str]]:
    """Where something is logged, and the name of the event."""
    for path in [*TOP.glob("cluster/**/*.py"), *TOP.glob("nodes/**/*.py")]:
        text = path.read_text()
        if "structlog.get_logger" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(ast.Name("log" | "_log"), attr=level)) if level in LEVELS:
                    name = node.args[0]
                    assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: no constant"
                    yield f"{path.relative_to(TOP)}:{node.lineno}", str(name.value)
                case _:
                    pass


def test_events_are_named_by_what_happened_in_one_manner() -> None:
    """``result_refused``: words in snake case, one of them a verb in the past tense."""
    found = list(events())
    assert len(found) > 60
    for place, name in found:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name), f"{place}: {name}"
        words = set(name.split("_"))
        assert words & IRREGULAR or any(word.endswith("ed") for word in words), f"{place}: {name}"


def test_servers_log_through_structlog_only() -> None:
    """The worker library is for other people's programs, and logs as libraries do."""
    plain = {
        str(path.relative_to(TOP))
        for path in [*TOP.glob("cluster/**/*.py"), *TOP.glob("nodes/**/*.py")]
        if "logging.getLogger(__name__)" in path.read_text()
    }
    assert all(path.startswith("nodes/worker/") for path in plain), plain
