"""``headrace dev``: an embedded Valkey and a few nodes, for one developer on one machine."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

from cluster.errors import StartupError
from nodes.cli.console import complain, until_signal
from nodes.cli.local import LocalNode, check_ports, running_nodes, running_store


@dataclass(frozen=True, slots=True)
class DevOptions:
    """What ``headrace dev`` was asked for; ``redis_url`` None means an embedded Valkey."""

    nodes: int
    port: int
    data_dir: Path
    redis_url: str | None


async def develop(options: DevOptions, environ: Mapping[str, str]) -> int:
    """Run until a signal; returns the exit code (1 when every node ended by itself)."""
    ports = [options.port + index for index in range(options.nodes)]
    check_ports(ports)
    make_directory(options.data_dir)
    async with until_signal():
        await _run(options, ports, environ)
        return 1
    return 0


async def _run(options: DevOptions, ports: list[int], environ: Mapping[str, str]) -> None:
    logs = options.data_dir / "logs"
    async with AsyncExitStack() as stack:
        url = options.redis_url
        if url is None:
            url = await stack.enter_async_context(running_store(options.data_dir / "valkey", logs, environ))
        local = await stack.enter_async_context(running_nodes(ports, url, logs, environ))
        sys.stdout.write(f"headrace: ready {' '.join(node.url for node in local)}\n")
        sys.stdout.flush()
        async with trio.open_nursery() as nursery:
            for node in local:
                nursery.start_soon(_report_end, node)


async def _report_end(node: LocalNode) -> None:
    code = await node.child.wait()
    complain(f"{node.name} ended with code {code}; its log is {node.child.log}")


def make_directory(path: Path) -> None:
    """Make the data directory; raises StartupError when nothing can be written there."""
    try:
        (path / "logs").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise StartupError(
            f"cannot write to the data directory {path}: {reason}; choose another with --data-dir"
        ) from error
