"""What is broken when: a plan drawn from a seed, so that a run can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from tests.chaos.arrangements import Kind


class Fault(StrEnum):
    """What can happen."""

    KILL_NODE = "node killed"
    STOP_NODE = "node stopped and started"
    FREEZE_NODE = "node frozen past its TTLs"
    JUMP_CLOCK = "clock of a node jumps an hour"
    CUT_NODE = "node cut from Redis, connections closed"
    MUTE_NODE = "node cut from Redis, packets swallowed"
    HALF_OPEN = "connections to Redis half open"
    RESET_NODE = "connections to Redis reset"
    SLOW_REDIS = "20 ms more to Redis"
    DRIP_REDIS = "replies of Redis drip"
    LOSE_REPLY = "replies lost after commit"
    KILL_WORKER = "worker killed"
    FREEZE_WORKER = "worker frozen past its leases"
    CUT_WORKERS = "workers cut from the balancer"
    MUTE_WORKERS = "packets of workers swallowed"
    RESET_WORKERS = "connections of workers reset"
    RESTART_REDIS = "Redis killed, back with its file"
    LOADING = "Redis killed, loads its file slowly"
    FREEZE_REDIS = "Redis frozen"
    FLUSH_SCRIPTS = "scripts flushed"
    FULL = "Redis out of memory"
    READ_ONLY = "Redis read only"
    FAIL_OVER = "fail-over to a replica in sync"
    FAIL_OVER_LAGGING = "fail-over to a lagging replica"


SECONDS: Final[dict[Fault, tuple[float, float]]] = {
    Fault.KILL_NODE: (0.0, 0.5),
    Fault.STOP_NODE: (0.0, 0.5),
    Fault.FREEZE_NODE: (12.0, 13.0),
    Fault.JUMP_CLOCK: (2.0, 3.0),
    Fault.CUT_NODE: (1.0, 9.0),
    Fault.MUTE_NODE: (1.0, 9.0),
    Fault.HALF_OPEN: (0.5, 1.0),
    Fault.RESET_NODE: (0.2, 0.5),
    Fault.SLOW_REDIS: (2.0, 3.0),
    Fault.DRIP_REDIS: (1.0, 2.0),
    Fault.LOSE_REPLY: (1.0, 2.0),
    Fault.KILL_WORKER: (0.0, 0.2),
    Fault.FREEZE_WORKER: (3.0, 4.0),
    Fault.CUT_WORKERS: (0.5, 2.0),
    Fault.MUTE_WORKERS: (0.5, 4.0),
    Fault.RESET_WORKERS: (0.1, 0.2),
    Fault.RESTART_REDIS: (0.0, 1.0),
    Fault.LOADING: (0.0, 0.1),
    Fault.FREEZE_REDIS: (1.0, 9.0),
    Fault.FLUSH_SCRIPTS: (0.1, 0.2),
    Fault.FULL: (1.0, 3.0),
    Fault.READ_ONLY: (1.0, 3.0),
    Fault.FAIL_OVER: (0.0, 0.1),
    Fault.FAIL_OVER_LAGGING: (0.5, 1.0),
}
"""Shortest and longest duration (s) of each fault, without the time it takes to heal."""

ANYWHERE: Final = (
    Fault.KILL_NODE,
    Fault.STOP_NODE,
    Fault.FREEZE_NODE,
    Fault.KILL_WORKER,
    Fault.FREEZE_WORKER,
    Fault.CUT_WORKERS,
    Fault.MUTE_WORKERS,
    Fault.RESET_WORKERS,
    Fault.FREEZE_REDIS,
    Fault.FLUSH_SCRIPTS,
)
POSSIBLE: Final[dict[Kind, tuple[Fault, ...]]] = {
    Kind.SINGLE: tuple(fault for fault in Fault if fault not in (Fault.FAIL_OVER, Fault.FAIL_OVER_LAGGING)),
    Kind.SENTINEL: (
        *(fault for fault in ANYWHERE if fault is not Fault.FREEZE_REDIS),
        Fault.FAIL_OVER,
        Fault.FAIL_OVER_LAGGING,
    ),
    Kind.CLUSTER: (*ANYWHERE, Fault.RESTART_REDIS, Fault.FULL),
}
"""Proxies stand between nodes and Redis where the address is not discovered."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault: ``pause`` (s) after the one before has healed, it lasts ``seconds``.

    ``target`` is drawn from a large range; whoever injects it takes it modulo what there is.
    """

    number: int
    fault: Fault
    pause: float
    seconds: float
    target: int


def make_plan(
    seed: int, faults: Sequence[Fault], rounds: int, pause: tuple[float, float] = (1.5, 3.0)
) -> list[Planned]:
    """Every fault ``rounds`` times, each round in an order of its own."""
    random = Random(seed)
    drawn = [fault for _ in range(rounds) for fault in random.sample(faults, len(faults))]
    return [
        Planned(
            number,
            fault,
            round(random.uniform(*pause), 2),
            round(random.uniform(*SECONDS[fault]), 2),
            random.randrange(1 << 16),
        )
        for number, fault in enumerate(drawn, 1)
    ]
