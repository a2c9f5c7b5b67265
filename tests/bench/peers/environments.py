"""Environments of peers, made on demand: each has its own, none touches the one of Headrace.

They live under ``HEADRACE_BENCH_CACHE``, or ``headrace-bench`` in the user's cache directory, named after
what they hold, so that another pin makes another environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.peers.peer import Peer

_READY = ".ready"


class NotInstalled(Exception):
    """A peer that cannot be had here; the text says why."""


def place(peer: Peer) -> Path:
    """The directory of a peer's environment."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = Path(os.environ.get("HEADRACE_BENCH_CACHE") or f"{home}/headrace-bench")
    pins = "\n".join([sys.version, *peer.requirements, *peer.packages])
    return cache / f"{peer.name}-{hashlib.sha256(pins.encode()).hexdigest()[:12]}"


def install(peer: Peer) -> Path:
    """Make the environment of ``peer`` if it is not there; returns its directory. Raises NotInstalled."""
    directory = place(peer)
    if (directory / _READY).exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    if peer.requirements:
        _run([sys.executable, "-m", "venv", str(directory)])
        pip = [str(directory / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *peer.requirements])
    if peer.packages:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstalled(f"{peer.name} needs npm")
        (directory / "package.json").write_text("{}\n")
        quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
        _run([npm, "install", "--prefix", str(directory), *quiet, *peer.packages])
    (directory / _READY).touch()
    return directory


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled(f"{' '.join(command)}: {(done.stderr or done.stdout)[-400:].strip()}")
