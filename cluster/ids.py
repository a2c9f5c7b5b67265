"""Identifiers made by the server.

A run id is a ULID whose last ten bits are the partition the run lives in, so a task id alone
leads to the right Redis slot:

====================  =========================  =====================================
id                    form                       example
====================  =========================  =====================================
run                   ULID                       ``01KB8M3V6T5Q0Z9W2N4X7C1D0G``
workflow task         run ``-w`` index           ``01KB…0G-w3``
activity              run ``-a`` step            ``01KB…0G-a5`` (its task has the same id)
activity attempt      activity ``-`` n ``.`` d   ``01KB…0G-a5-2.0``
step of a flow        run ``-s`` index           ``01KB…0G-s7`` (its task has the same id)
step attempt          step, method, ``-`` n.d    ``01KB…0G-s7e-2.0`` (``w`` wait_for, ``e`` execute)
timer                 run ``-t`` step            ``01KB…0G-t6``
condition wait        run ``-q`` step            ``01KB…0G-q7``
child call            run ``-k`` step            ``01KB…0G-k8``
client command        run ``-m`` number          ``01KB…0G-m1``
signal, update        run ``-s``, ``-u`` number  ``01KB…0G-s1``
event                 run ``-e`` ordinal         ``01KB…0G-e12``
event that waited     run ``-p`` number          ``01KB…0G-p2``
====================  =========================  =====================================

``n`` is the attempt the user sees, ``d`` (delivery) counts how often that attempt came back
unconsumed. The pair makes every hand-out distinct.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from random import Random

import msgspec
from ulid import ULID

PARTITION_BITS = 10
MAX_PARTITIONS = 1 << PARTITION_BITS
_MASK = MAX_PARTITIONS - 1

_RUN_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_DIGITS = {digit: value for value, digit in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_TASK_ID = re.compile(r"([0-7][0-9A-HJKMNP-TV-Z]{25})-([was])([1-9][0-9]{0,8})")
_ATTEMPT_ID = re.compile(r"(.+-a[1-9][0-9]{0,8})-([1-9][0-9]{0,8})\.([0-9]{1,9})")


class TaskKind(StrEnum):
    """What a task is for; also the first part of its queue's name."""

    WORKFLOW = "w"
    ACTIVITY = "a"
    STEP = "s"


_KINDS = {kind.value: kind for kind in TaskKind}


class TaskId(msgspec.Struct, frozen=True):
    """A parsed task id: the run it belongs to, its kind and its index in the run."""

    run_id: str
    kind: TaskKind
    index: int

    def __str__(self) -> str:
        return f"{self.run_id}-{self.kind}{self.index}"


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One hand-out of an activity: attempt ``n``, delivery ``d``."""

    task: TaskId
    attempt: int
    delivery: int

    def __str__(self) -> str:
        return f"{self.task}-{self.attempt}.{self.delivery}"


def partition_of_workflow(workflow_id: str, partitions: int) -> int:
    """Partition of a workflow id: CRC32 of its UTF-8 bytes modulo the partition count."""
    return binascii.crc32(workflow_id.encode()) % partitions


def partition_of_flow(namespace: str, flow_id: str, partitions: int) -> int:
    """Partition of a flow: flow ids are unique in their namespace only, so both are hashed (F3)."""
    return binascii.crc32(f"{len(namespace)}:{namespace}{flow_id}".encode()) % partitions


def new_run_id(partition: int, now_ms: int, random: Random) -> str:
    """A fresh run id that carries ``partition``; sorts by ``now_ms``."""
    low = random.getrandbits(80) & ~_MASK | partition
    return str(ULID.from_int((now_ms & ((1 << 48) - 1)) << 80 | low))


def draw_workflow_id(partition: int, partitions: int, now_ms: int, random: Random) -> str:
    """A fresh workflow id whose hash falls into ``partition`` (co-location of relatives)."""
    while True:
        candidate = new_run_id(random.getrandbits(PARTITION_BITS), now_ms, random)
        if partition_of_workflow(candidate, partitions) == partition:
            return candidate


def derived_run_id(run_id: str, label: str, partition: int, now_ms: int) -> str:
    """The id of a run that ``run_id`` begins: the same inputs give the same id, in ``partition``."""
    digest = hashlib.sha256(f"{run_id}/{label}/{now_ms}".encode()).digest()
    low = int.from_bytes(digest[:10], "big") & ~_MASK | partition
    return str(ULID.from_int((now_ms & ((1 << 48) - 1)) << 80 | low))


def derived_workflow_id(seed: str, partition: int, partitions: int, now_ms: int) -> str:
    """The id of a workflow that a run begins, in ``partition`` (rule F1); drawn from ``seed`` alone,
    so that a decision stays a function of its inputs."""
    draw = 0
    while True:
        candidate = derived_run_id(seed, f"workflow {draw}", 0, now_ms)
        if partition_of_workflow(candidate, partitions) == partition:
            return candidate
        draw += 1


def partition_of_run(run_id: str) -> int | None:
    """Partition inside a run id, or None when the text is no run id."""
    if _RUN_ID.fullmatch(run_id):
        # Its last two digits of five bits each; reading all of them takes twenty times as long.
        return _DIGITS[run_id[-2]] << 5 | _DIGITS[run_id[-1]]
    try:
        return int(ULID.from_str(run_id)) & _MASK
    except ValueError:
        return None


def partition_of_task(task: TaskId) -> int:
    """Partition of a parsed task id."""
    partition = partition_of_run(task.run_id)
    if partition is None:
        raise ValueError(f"not a run id: {task.run_id!r}")
    return partition


def parse_task_id(text: str) -> TaskId | None:
    """The parts of a task id, or None when ``text`` is no task id."""
    match = _TASK_ID.fullmatch(text)
    if match is None:
        return None
    return TaskId(match[1], _KINDS[match[2]], int(match[3]))


def parse_attempt_id(text: str) -> AttemptId | None:
    """The parts of an activity attempt id, or None when ``text`` is none."""
    match = _ATTEMPT_ID.fullmatch(text)
    task = parse_task_id(match[1]) if match else None
    if match is None or task is None:
        return None
    return AttemptId(task, int(match[2]), int(match[3]))
