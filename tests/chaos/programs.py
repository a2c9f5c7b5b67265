"""What the programs beside the campaign share: where they write, how they end."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

Main = Callable[[argparse.Namespace, Path], Awaitable[Sequence[object]]]
"""Prints its figures; returns what was broken."""


def run_program(parser: argparse.ArgumentParser, main: Main, argv: Sequence[str] | None = None) -> int:
    """Run ``main(options, directory)``; prints what was broken and returns the exit code.

    Logs and records of a run that broke something are kept whether asked for or not: it may not happen again.
    """
    parser.add_argument("--keep", default="", help="directory for logs and records")
    options = parser.parse_args(argv)
    directory = Path(options.keep or tempfile.mkdtemp(prefix="headrace-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        broken = trio.run(main, options, directory)
    except BaseException:  # as a promise that is broken, or Ctrl-C
        print(f"logs and records are in {directory}")
        raise
    for what in broken:
        print(f"BROKEN {what}")
    if broken:
        print(f"logs and records are in {directory}")
    elif not options.keep:
        shutil.rmtree(directory)
    print(f"{'BROKEN' if broken else 'clean'} after {time.monotonic() - began:.0f} s")
    return 1 if broken else 0
