"""``python -m tests.bench``: measure this machine; ``make bench`` runs it.

``WORKLOADS`` and ``PEERS`` in the environment choose with commas (see ``--help``); what was found goes to
standard output, and with ``--publish`` into the documentation, after each workload. What cannot be installed
or fails is said there and stops nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from tests.bench.figures import say
from tests.bench.measuring import machine
from tests.bench.peers.catalogue import QUEUES, WORKFLOWS, chosen
from tests.bench.peers.environments import NotInstalled, install
from tests.bench.report import NothingMeasured, Section, brief, publish
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
BUDGET_MINUTES = 40.0


@dataclass(frozen=True)
class Workload:
    """How a workload is measured, how often unless ``--runs`` says it, and its part of the budget."""

    measure: Callable[[Session], Awaitable[Section]]
    runs: int
    weight: float


WORKLOADS: dict[str, Workload] = {
    "W1": Workload(drains.measure, 5, 12),
    "W5": Workload(workflows.measure, 4, 9),
    "W2": Workload(hand_out.measure, 4, 8),
    "W7": Workload(long_queue.measure, 5, 6),
    "W8": Workload(scaling.measure, 5, 4),
    "W6": Workload(idle.measure, 5, 3),
    "W3": Workload(cold_queues.measure, 3, 6),
    "W4": Workload(recovery.measure, 5, 3),
}
"""The most important first, in case there is not time for all."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--workloads", default=os.environ.get("WORKLOADS", ""), help=", ".join(WORKLOADS))
    names = ", ".join(peer.name for peer in (*QUEUES, *WORKFLOWS))
    parser.add_argument("--peers", default=os.environ.get("PEERS", ""), help=names)
    parser.add_argument("--tasks", type=int, default=20_000, help="tasks of a drain")
    parser.add_argument("--queued", type=int, default=1_000_000, help="tasks of the long queue")
    parser.add_argument("--runs", type=int, help="runs of each system; by default each workload has its own")
    parser.add_argument(
        "--budget",
        type=float,
        default=BUDGET_MINUTES,
        metavar="MINUTES",
        help="for all workloads, installing not counted; each has its part and what those before it left",
    )
    parser.add_argument("--publish", action="store_true", help="write the results into docs/benchmarks.md")
    asked = parser.parse_args()
    named = asked.workloads.split(",")
    if unknown := set(filter(None, named)) - set(WORKLOADS):
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    wanted = [name for name in WORKLOADS if name in named] or list(WORKLOADS)
    try:
        peers = tuple(chosen(asked.peers))
    except ValueError as error:
        parser.error(str(error))
    only = frozenset(filter(None, asked.peers.split(",")))
    # Whoever ends this program so ends what it has started too, and keeps what was published.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    say("machine", machine())
    for peer in (*peers, *(WORKFLOWS if "W5" in wanted else ())):
        if peer.installed and (not only or peer.name in only):
            with suppress(NotInstalled):  # said by the workloads that need it
                install(peer)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        session = Session(peers, Path(directory), asked.tasks, asked.runs or 0, asked.queued, only)
        failed = measure(wanted, session, asked.budget * 60, DOCUMENT if asked.publish else None)
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def measure(names: list[str], session: Session, budget: float, document: Path | None) -> list[str]:
    """Measure these workloads within ``budget`` seconds; returns the names of those that gave nothing."""
    end = time.monotonic() + budget
    failed = []
    for number, name in enumerate(names):
        workload = WORKLOADS[name]
        share = workload.weight / sum(WORKLOADS[later].weight for later in names[number:])
        seconds = max(0.0, end - time.monotonic()) * share
        about = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {machine()}"
        try:
            runs = session.runs or workload.runs
            section = trio.run(partial(workload.measure, replace(session, runs=runs, seconds=seconds)))
        except Exception as error:
            if not isinstance(error, NothingMeasured):
                traceback.print_exc()
            say(f"{name} gave nothing", brief(error))
            failed.append(name)
            continue
        section.notes.insert(0, f"*{about}*")
        print(f"\n{section.markdown()}\n", flush=True)
        if document is not None:
            publish(section, document)
    return failed


if __name__ == "__main__":
    main()
