"""One conditional commit: what must hold, and what to do if all of it does.

A :class:`Transaction` touches one partition. ``commit.lua`` checks every condition and then
applies every operation, or reports the first condition that failed and applies nothing.
Business rules never go into Lua; the verbs here are about storage (task records, queues, heads,
leases, timers) and keep their invariants together in one place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import msgspec

MAX_OPERATIONS: Final = 4_000
MAX_BYTES: Final = 32 * 1024 * 1024
"""A request of 2 MiB may stand in a commit several times: in events, records, and a task's body."""
_CHUNK: Final = 500

Value = str | bytes | int

_packer: Final = msgpack.Packer(use_bin_type=False)
"""Keeps its buffer, which is large, from one commit to the next."""
_lenient: Final = msgpack.Packer(use_bin_type=False, unicode_errors="surrogatepass")
"""For text with lone surrogates, which the other one refuses; it takes almost twice as long."""


class TransactionTooLarge(ValueError):
    """More than MAX_OPERATIONS operations or MAX_BYTES bytes in one commit."""


class ReadyTask(msgspec.Struct, frozen=True):
    """A task record to be created in state ready.

    ``kind``/``namespace``/``queue``/``marker``/``type_name`` choose the queue. ``attempt`` is n.
    ``lease_ms`` is how long a lease lasts. ``timer`` names the entry in the timers that a
    hand-out re-arms ``timer_after_ms`` later (0: removes it), never past ``timer_cap_ms``
    (absolute, 0: no cap). ``body`` is opaque to the store and returned by the claim; steps have none, their
    claim returns the records of which it is made.
    """

    task_id: str
    run_id: str
    heads: str
    type_part: str
    attempt: int = 1
    lease_ms: int = 60_000
    timer: str = ""
    timer_after_ms: int = 0
    timer_cap_ms: int = 0
    body: bytes = b""


def _created(task: ReadyTask) -> list[Any]:
    return [
        task.task_id,
        task.run_id,
        task.heads,
        task.type_part,
        str(task.attempt),
        str(task.lease_ms),
        task.timer,
        str(task.timer_after_ms),
        str(task.timer_cap_ms),
        task.body,
    ]


class OpenSlot(msgspec.Struct, frozen=True):
    """The free slot of a worker, of a node's ``session``, which may be given a step under the ``version`` of
    the limits, unless work waits under any of the ``doubts``: keys of heads, on any one server.
    """

    worker_id: str
    session: str
    version: int
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BeginRun:
    """A run to be created. ``fields`` are those of its hash, ``events`` its history so far;
    ``workflow_part`` and ``namespace_part`` are the names as key parts."""

    run_id: str
    workflow_part: str
    namespace: str
    namespace_part: str
    number: int
    started_ms: int
    fields: Mapping[str, Value]
    events: Sequence[bytes]


class Transaction(msgspec.Struct):
    """Collects conditions and operations for one partition.

    ``request_id`` with ``ring`` (a run key) makes the commit repeatable: a commit whose id is
    among the last 16 of that run answers "already" and does nothing. ``frees`` says that the
    commit only finishes or frees something, so it also runs when Redis is out of memory.
    """

    partition: int
    ring: str = ""
    request_id: str = ""
    frees: bool = False
    conditions: list[list[Any]] = []
    operations: list[list[Any]] = []
    handed_over: dict[str, int] = {}
    """Once it was applied: tasks that went to a slot (:meth:`offer`), and when (ms)."""

    # -- conditions -------------------------------------------------------------------------

    def expect_equal(self, key: str, name: str, value: Value) -> None:
        """Hash field ``name`` of ``key`` equals ``value`` (compared as text)."""
        self.conditions.append(["eq", key, name, str(value) if isinstance(value, int) else value])

    def expect_unset(self, key: str, name: str) -> None:
        """Hash ``key`` has no field ``name``."""
        self.conditions.append(["unset", key, name])

    def expect_absent(self, key: str) -> None:
        self.conditions.append(["absent", key])

    def expect_task(
        self,
        task_id: str,
        state: str,
        attempt: int,
        delivery: int | None,
        owner: str = "",
        session: str = "",
    ) -> None:
        """The task record is in ``state`` ("r"/"l") at (attempt, delivery), held by ``owner``, handed out by
        the node of ``session``.

        ``delivery`` None, ``owner`` "" and ``session`` "" mean any.
        """
        wanted = "" if delivery is None else str(delivery)
        self.conditions.append(["task", task_id, state, str(attempt), wanted, owner, session])

    def expect_task_state(self, task_id: str, state: str) -> None:
        """The task record is in ``state``: "r" ready, "l" leased, "" no record."""
        self.conditions.append(["state", task_id, state])

    def expect_lapsed(self, task_id: str) -> None:
        """The task's lease expiry is not later than now (Redis TIME)."""
        self.conditions.append(["lapsed", task_id])

    def expect_unlapsed(self, task_id: str) -> None:
        """The task's lease expiry is later than now (Redis TIME)."""
        self.conditions.append(["unlapsed", task_id])

    def expect_due(self, timer: str, due_ms: int) -> None:
        """The timer still has this due time and it has come (Redis TIME)."""
        self.conditions.append(["due", timer, str(due_ms)])

    def expect_lease(self, owner: str, nonce: str) -> None:
        """The partition lease is held by ``owner`` with ``nonce`` and not expired."""
        self.conditions.append(["lease", owner, nonce])

    # -- operations -------------------------------------------------------------------------

    def redis(self, *command: Value) -> None:
        """A plain Redis command on a key of this partition."""
        self.operations.append([str(p) if isinstance(p, int) else p for p in command])

    def hset(self, key: str, fields: Mapping[str, Value]) -> None:
        flat: list[str | bytes] = []
        for name, value in fields.items():
            flat += name, str(value) if isinstance(value, int) else value
        if len(flat) <= _CHUNK:
            self.operations.append(["HSET", key, *flat])
            return
        for start in range(0, len(flat), _CHUNK):
            self.operations.append(["HSET", key, *flat[start : start + _CHUNK]])

    def hdel(self, key: str, names: Sequence[str]) -> None:
        for start in range(0, len(names), _CHUNK):
            self.operations.append(["HDEL", key, *names[start : start + _CHUNK]])

    def append(self, key: str, values: Sequence[bytes]) -> None:
        """RPUSH ``values`` to a list."""
        for start in range(0, len(values), _CHUNK):
            self.operations.append(["RPUSH", key, *values[start : start + _CHUNK]])

    def begin(self, run: BeginRun) -> None:
        """Create a run: its hash, its history, its place in the list and that of its workflow id."""
        flat: list[Value] = [part for item in run.fields.items() for part in item]
        self.operations.append(
            [
                "@begin",
                run.run_id,
                run.workflow_part,
                run.namespace,
                run.namespace_part,
                str(run.number),
                str(run.started_ms),
                [str(part) if isinstance(part, int) else part for part in flat],
                list(run.events),
            ]
        )

    def release(self, run_id: str, ordinal: int, signals_to: str = "", signals_ordinal: int = 0) -> None:
        """Append a run's pending events to its history, the first as number ``ordinal``.

        With ``signals_to`` the signals among them go to that run's history instead.
        """
        self.operations.append(["@release", run_id, str(ordinal), signals_to, str(signals_ordinal)])

    def enqueue(self, task: ReadyTask) -> None:
        """Create the task record and its queue entry; update the head; wake."""
        self.operations.append(["@enqueue", *_created(task)])

    def offer(
        self,
        task: ReadyTask,
        worker: str,
        *,
        behind: bool,
        sync_ms: int,
        sticky_ms: int,
        slot: OpenSlot | None = None,
    ) -> None:
        """As :meth:`enqueue`, but first to the worker that served the flow last, if that is better.

        ``worker`` is encoded, "" for none. It is preferred for ``sticky_ms`` while it is connected and
        no work of the same type is older than ``sync_ms`` in this partition or, says ``behind``, in
        another one (R28 to R33).

        Into ``slot``, which is the worker's, it goes at once if nothing in this partition has waited for
        ``sync_ms``, of its type or for its worker, nor anything where the slot has doubts, and no limits
        hold; ``handed_over`` tells.
        """
        operation = [
            "@offer",
            *_created(task),
            worker,
            "1" if behind else "0",
            str(sync_ms),
            str(sticky_ms),
        ]
        if slot is not None:
            operation[0] = "@hand"
            operation += slot.session, str(slot.version), slot.worker_id, list(slot.doubts)
        self.operations.append(operation)

    def unstick(self, task_id: str, excluding: str = "") -> None:
        """A ready task waits for one worker no longer. ``excluding`` is an encoded worker id."""
        self.operations.append(["@unstick", task_id, excluding])

    def requeue(self, task_id: str, attempt: int, delivery: int, excluding: str = "") -> None:
        """End the lease of a task and make it ready again at (attempt, delivery), at its old place.

        ``excluding`` is a worker id (encoded) that does not get this task again.
        """
        self.operations.append(["@requeue", task_id, str(attempt), str(delivery), excluding])

    def set_aside(
        self, task_id: str, attempt: int, delivery: int, marker: str, until_ms: int, excluding: str = ""
    ) -> None:
        """End the lease of a task; it is ready again behind ``marker`` (encoded), put before its own.

        At ``until_ms`` it returns to its own queue. The lease must be a condition of the transaction.
        ``excluding`` is a worker id (encoded) that does not get this task again.
        """
        self.operations.append(
            ["@aside", task_id, str(attempt), str(delivery), marker, str(until_ms), excluding]
        )

    def drop(self, task_id: str, *, tell: bool = False) -> None:
        """End a task in any state: lease, queue entry, head, timer and record go. No-op if absent.

        ``tell``: the node on whose stream it runs hears that it is over.
        """
        self.operations.append(["@drop", task_id, "1" if tell else ""])

    def ask_to_stop(self, task_id: str) -> None:
        """Tell the node on whose stream the task runs, if it does, that it is to be cancelled."""
        self.operations.append(["@ask", task_id])

    def extend(self, task_id: str, lease_ms: int) -> None:
        """Renew a lease to now + ``lease_ms`` and re-arm the task's timer."""
        self.operations.append(["@extend", task_id, str(lease_ms)])

    def arm(self, timer: str, due_ms: int) -> None:
        """Set a timer (absolute ms); tells the housekeepers when it became the earliest."""
        self.operations.append(["@arm", timer, str(due_ms)])

    def disarm(self, timer: str) -> None:
        self.operations.append(["@disarm", timer])

    def publish(self, channel: str, message: str) -> None:
        self.redis("PUBLISH", channel, message)

    # -- wire -------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """The form ``commit.lua`` reads. Raises TransactionTooLarge before anything is sent."""
        if len(self.operations) > MAX_OPERATIONS:
            raise TransactionTooLarge(f"{len(self.operations)} operations in one commit")
        parts = [self.ring, self.request_id, self.conditions, self.operations]
        try:
            packed: bytes = _packer.pack(parts)
        except UnicodeEncodeError:
            packed = _lenient.pack(parts)
        if len(packed) > MAX_BYTES:
            raise TransactionTooLarge(f"{len(packed)} bytes in one commit")
        return packed
