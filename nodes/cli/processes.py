"""Child processes that never outlive their parent.

A child gets its own process group, so that Ctrl-C on a terminal reaches the parent alone and the
parent ends its children in order. Should the parent be killed, the kernel sends each child a
SIGTERM: a child calls :func:`end_with_parent` first thing. That signal is tied to the *thread* that
started the child, hence :meth:`Child.start` must run in the main thread and uses no worker thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

import nodes
from cluster.errors import StartupError

STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 4096
_PACKAGE_ROOT = str(Path(nodes.__file__).parent.parent)


def end_with_parent(parent: int) -> None:
    """Have the kernel send this process a SIGTERM when ``parent`` ends; exits if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(f"headrace: the parent process {parent} is gone")


class Child:
    """One running child process and the file its output goes to."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self.process = process

    @classmethod
    def start(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: Path,
        pipe: bool = False,
    ) -> Child:
        """Run a Python module of this installation; ``pipe``: its standard output is read by us.

        Everything else it writes goes to ``log``. Raises StartupError when that cannot be opened.
        """
        # -P keeps a directory named `nodes` where the user happens to be from being imported.
        command = [sys.executable, "-P", "-m", module, *arguments]
        path = os.pathsep.join(filter(None, [_PACKAGE_ROOT, environ.get("PYTHONPATH", "")]))
        try:
            output = log.open("wb")
        except OSError as error:
            raise StartupError(f"cannot write {log}: {error.strerror}") from error
        with output:
            process = subprocess.Popen(
                command,
                env={**environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else output,
                stderr=output,
                process_group=0,
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self.process.poll()

    async def wait(self) -> int:
        """Wait until the process has ended; returns its exit code."""
        if self.process.poll() is None:
            descriptor = os.pidfd_open(self.process.pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        return self.process.wait()

    async def lines(self) -> AsyncGenerator[str, None]:
        """What it writes to its standard output, line by line, until it closes it."""
        if self.process.stdout is None:
            raise ValueError(f"{self.name} was started without a pipe")
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(self.process.stdout.fileno())) as stream:
            async for chunk in stream:
                *complete, rest = (rest + chunk).split(b"\n")
                for line in complete:
                    yield line.decode()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing when the process has ended."""
        self.process.send_signal(number)

    async def stop(self) -> None:
        """Ask it to end, wait at most STOP_SECONDS, then kill it."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGTERM)
            with trio.move_on_after(STOP_SECONDS):
                await self.wait()
            self.signal(signal.SIGKILL)
            await self.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def last_words(self) -> str:
        """The last line it wrote to its log, for an error message."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@asynccontextmanager
async def stopping(children: Sequence[Child]) -> AsyncIterator[None]:
    """Stops all ``children`` (also those added meanwhile), together, when the block ends."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for child in children:
                    nursery.start_soon(child.stop)
