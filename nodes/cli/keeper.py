"""A process that keeps an embedded Valkey for its parent and ends with it.

Started as ``python -m nodes.cli.keeper DIRECTORY PARENT_PID``; writes the server's URL on one line
when it is ready. SIGTERM, which also comes when the parent is killed, stops the server in order.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import trio

from cluster.store.embedded import embedded
from nodes.cli.console import run_program, until_signal
from nodes.cli.processes import end_with_parent


async def keep(directory: Path) -> None:
    """Run Valkey on ``directory`` until SIGTERM or SIGINT."""
    async with until_signal(), embedded(directory) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        await trio.sleep_forever()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    run_program(partial(keep, Path(sys.argv[1])))
