"""Log lines have one form, whoever writes them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from cluster.settings.schema import LogFormat
from nodes.logging import configure_logging


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


def test_lines_below_the_level_are_dropped() -> None:
    stream = io.StringIO()
    configure_logging("warning", LogFormat.CONSOLE, stream=stream)
    structlog.get_logger().info("no")
    logging.getLogger("x").info("no")
    structlog.get_logger().warning("yes")
    assert "no" not in stream.getvalue()
    assert "yes" in stream.getvalue()
