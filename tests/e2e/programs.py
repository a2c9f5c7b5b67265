"""Runs our commands as users do: as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

TOP = Path(__file__).parents[2]
OURS = ("DW_", "HEADRACE_", "DURABLE_WORKFLOW_", "REDIS_URL")
HEADRACE = (sys.executable, "-m", "nodes.cli.main")
DW = (sys.executable, "-m", "nodes.cli.dw")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without anything that would change what our commands do."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**clean, "PYTHONPATH": str(TOP), **(extra or {})}


def run(*command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command, cwd=TOP, env=environment(env), capture_output=True, text=True, timeout=180, check=False
    )


@contextmanager
def started(*command: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running command, killed at the end of the block if it still runs."""
    with subprocess.Popen(
        command, cwd=TOP, env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def descendants(pid: int) -> set[int]:
    """All processes started by ``pid``, directly or not."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found.update(children)
        waiting += children
    return found


def is_running(pid: int) -> bool:
    """Whether a process still runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False
