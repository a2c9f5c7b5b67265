"""``python -m tests.bench``: measure this machine; ``make bench`` runs it.

``WORKLOADS`` and ``PEERS`` in the environment choose with commas (see ``--help``); what was found goes to
standard output, and with ``--publish`` into the documentation.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from tests.bench.figures import RUNS, say
from tests.bench.measuring import machine
from tests.bench.peers.catalogue import QUEUES, WORKFLOWS, chosen
from tests.bench.report import Section, publish
from tests.bench.session import Session
from tests.bench.workloads import (
    cold_queues,
    drains,
    hand_out,
    idle,
    long_queue,
    recovery,
    scaling,
    workflows,
)

DOCUMENT = Path(__file__).parents[2] / "docs/benchmarks.md"
WORKLOADS: dict[str, Callable[[Session], Awaitable[Section]]] = {
    "W1": drains.measure,
    "W2": hand_out.measure,
    "W3": cold_queues.measure,
    "W4": recovery.measure,
    "W5": workflows.measure,
    "W6": idle.measure,
    "W7": long_queue.measure,
    "W8": scaling.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--workloads", default=os.environ.get("WORKLOADS", ""), help=", ".join(WORKLOADS))
    names = ", ".join(peer.name for peer in (*QUEUES, *WORKFLOWS))
    parser.add_argument("--peers", default=os.environ.get("PEERS", ""), help=names)
    parser.add_argument("--tasks", type=int, default=20_000, help="tasks of a drain")
    parser.add_argument("--queued", type=int, default=1_000_000, help="tasks of the long queue")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--publish", action="store_true", help="write the results into docs/benchmarks.md")
    asked = parser.parse_args()
    wanted = [name for name in asked.workloads.split(",") if name] or list(WORKLOADS)
    if unknown := set(wanted) - set(WORKLOADS):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    try:
        peers = tuple(chosen(asked.peers))
    except ValueError as error:
        parser.error(str(error))
    only = frozenset(filter(None, asked.peers.split(",")))
    say("machine", machine())
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        session = Session(peers, Path(directory), asked.tasks, asked.runs, asked.queued, only)
        for name in wanted:
            about = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {machine()}"
            section = trio.run(partial(WORKLOADS[name], session))
            section.notes.insert(0, f"*{about}*")
            print(f"\n{section.markdown()}\n", flush=True)
            if asked.publish:
                publish(section, DOCUMENT)


if __name__ == "__main__":
    main()
