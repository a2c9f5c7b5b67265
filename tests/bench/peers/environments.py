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
_RUN_SECONDS = 600
_NEED = Path(__file__).parents[3] / ".ci/need"
_failed: dict[Path, str] = {}
"""What could not be made by this process, and why: it is not tried again."""


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
    if directory in _failed:
        raise NotInstalled(_failed[directory])
    try:
        if peer.debian:
            _run([str(_NEED), *peer.debian])
        if not (directory / _READY).exists():
            _make(peer, directory)
    except NotInstalled as error:
        _failed[directory] = str(error)
        raise
    return directory


def _make(peer: Peer, directory: Path) -> None:
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


def _run(command: list[str]) -> None:
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_RUN_SECONDS)
    except OSError as error:
        raise NotInstalled(f"{name}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{name} did not end within {_RUN_SECONDS} s") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise NotInstalled(f"{name} failed: {lines[-1] if lines else done.returncode}")
