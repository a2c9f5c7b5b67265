"""Starting and ending the processes that are measured."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STOP_SECONDS = 10


def started(
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    directory: Path | None = None,
    user: str | None = None,
) -> subprocess.Popen[bytes]:
    """A process group that writes into ``log``; as ``user`` and its group, if one is named.

    Raises OSError when the program is not there.
    """
    with log.open("ab") as words:
        return subprocess.Popen(
            command,
            env=environ,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            process_group=0,
            user=user,
            group=user,
        )


@contextmanager
def ended(process: subprocess.Popen[bytes], politely: signal.Signals = signal.SIGTERM) -> Iterator[None]:
    """A process group that ends with the block: asked first, then killed."""
    try:
        yield
    finally:
        process.send_signal(politely)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_words(log: str) -> str:
    """The last line that says something, as errors do."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
