"""One task that carries commands to Redis and their outcomes back.

Each lane has one connection per Redis server. It takes whatever other tasks asked for in the meantime,
writes it as one batch, reads all replies and hands the whole batch back at once. Batching needs no
timer: while a batch is under way the next one gathers.

What is *not* here: redis-py's own retries and pipelines. They send a batch again after a lost
reply (rule A1) and cannot do scripts on a Cluster (rule A10). Every outcome is classified by
:mod:`cluster.store.outcomes`; each command ends in exactly one of reply, not executed,
ambiguous, failed. Commands to different servers, and commands of one turn, have no order.

With ``replicas`` > 0 a batch with writes ends in ``WAIT`` on the same connection, and no reply
to a write of that batch is released before it (rule A3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Final

import outcome
import structlog
import trio
from redis.exceptions import AskError, RedisError

from cluster.errors import NotDurable, OutcomeUnknown, StoreError, StoreUnavailable
from cluster.store.connection import BROKEN, GENERATION, pack, pause
from cluster.store.links import Away, Link, Links
from cluster.store.outcomes import Meaning, error_text, failure, meaning
from cluster.store.scripts import Script
from cluster.store.topology import Node, Topology

_log = structlog.get_logger(__name__)

BATCH_COMMANDS: Final = 512
BATCH_BYTES: Final = 1024 * 1024
WAIT_TIMEOUT_MS: Final = 1_000

_STAMP: Final = GENERATION.encode()
_NO_REPLY: Final = object()
_ABANDONED: Final = outcome.Value(None)
_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"


@dataclass(slots=True, eq=False)
class Command:
    """One command on its way.

    ``deadline`` is on the monotonic clock. ``task`` is the waiting trio task, None once it was
    cancelled or has its answer. ``ambiguous`` says that an earlier attempt may have been executed.
    ``stamped`` commands carry GENERATION as an argument. ``target`` overrides the slot's owner for one
    attempt, with ``asking`` for an ASK reply.
    """

    packed: bytes
    slot: int
    deadline: float
    idempotent: bool
    write: bool
    stamped: bool = False
    script: Script | None = None
    task: trio.lowlevel.Task | None = None
    ambiguous: bool = False
    attempts: int = 0
    target: Node | None = None
    asking: bool = False
    last_error: str = ""
    result: outcome.Outcome[Any] | None = None


@dataclass(slots=True)
class LaneCounters:
    """Counted since the lane began."""

    commands: int = 0
    batches: int = 0
    round_trips: int = 0
    lost_connections: int = 0
    resent: int = 0
    scripts_loaded: int = 0
    ambiguous: int = 0
    unavailable: int = 0
    not_durable: int = 0


class Lane:
    """What the task knows."""

    def __init__(
        self,
        topology: Topology,
        *,
        deliver: Callable[[list[Command]], None],
        renewed: Callable[[], None] = lambda: None,
        replicas: int = 0,
    ) -> None:
        """``deliver`` gets every finished command once; ``renewed`` is called when the generation has
        changed. Neither may raise."""
        self._topology = topology
        self._deliver = deliver
        self._replicas = replicas
        self._wait = pack("WAIT", replicas, WAIT_TIMEOUT_MS) if replicas else b""
        self._ready: deque[Command] = deque()
        self._again_soon: deque[Command] = deque()
        """Those that were sent before; they go first."""
        self._parked: list[Command] = []
        self._parked_until = inf
        self._finished: list[Command] = []
        self._links = Links(topology, renewed)
        self._closing = False
        self._resting: trio.lowlevel.Task | None = None
        self.ended = trio.Event()
        self.counters = LaneCounters()

    # -- called by others -----------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        self._ready.append(command)
        if self._resting is not None:
            self._wake()

    def close(self) -> None:
        """Finish what was submitted so far, if Redis answers, then end."""
        self._closing = True
        self._wake()

    def abort(self) -> None:
        """Break the connections: nothing is waited for any more."""
        self._closing = True
        self._links.break_all()

    @property
    def generation(self) -> str:
        """See :attr:`cluster.store.links.Links.generation`."""
        return self._links.generation

    @property
    def connects(self) -> int:
        return self._links.connects

    # -- the task -----------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Serve until :meth:`close`, or until cancelled. Raises nothing else."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._links.watch)
                if self._topology.clustered:
                    await self._links.connect_everywhere()
                while self._ready or not self._closing:
                    await self._serve_next()
                nursery.cancel_scope.cancel()
        finally:
            self._give_up()
            self._links.break_all()
            self.ended.set()

    async def _serve_next(self) -> None:
        batch = await self._collect()
        if not batch:
            return
        try:
            await self._serve(batch)
        except Exception as error:  # a lane that dies would leave its callers asleep
            self._recover(batch, f"internal error: {error!r}")
            with suppress(Exception):  # what the program logs with may fail too
                _log.exception("lane_failed")
        except BaseException:
            self._recover(batch, "the store was closed")
            raise
        self._hand_over()

    def _recover(self, batch: list[Command], why: str) -> None:
        self._links.break_all()
        for command in batch:
            if command.result is None:
                self._fail(command, OutcomeUnknown(why))

    async def _collect(self) -> list[Command]:
        """Wait for work and take a bounded batch of it."""
        if not (self._again_soon or self._ready or self._closing):
            if self._parked:
                with trio.move_on_after(max(0.0, self._parked_until - monotonic())):
                    await self._rest()
            else:
                await self._rest()
        if self._parked and monotonic() >= self._parked_until:
            self._again_soon.extend(self._parked)
            self._parked, self._parked_until = [], inf
        batch: list[Command] = []
        size = 0
        while len(batch) < BATCH_COMMANDS and size < BATCH_BYTES:
            if self._again_soon:
                command = self._again_soon.popleft()
            elif self._ready:
                command = self._ready.popleft()
            else:
                break
            batch.append(command)
            size += len(command.packed)
        return batch

    async def _rest(self) -> None:
        """Wait for somebody to ask for something."""

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._resting = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._resting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        task, self._resting = self._resting, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def _serve(self, batch: list[Command]) -> None:
        """Send a batch to the servers it concerns, then read and settle their replies."""
        sent: list[tuple[Node, Link, list[Command]]] = []
        for node, commands in (await self._route(batch)).items():
            try:
                link = await self._links.get(node)
            except Away as away:
                self._park(commands, away.until, away.text)
                continue
            self.counters.commands += len(commands)
            self.counters.round_trips += 1
            try:
                await link.write(self._wire(commands, link.stamp))
            except BROKEN as error:
                self._lost(node, commands, error)
                continue
            sent.append((node, link, commands))
        self.counters.batches += 1
        for node, link, commands in sent:
            await self._read(node, link, commands)

    async def _route(self, batch: list[Command]) -> dict[Node, list[Command]]:
        """Group by server; commands that are given up or too late end here."""
        now = monotonic()
        groups: dict[Node, list[Command]] = {}
        for command in batch:
            if command.result is not None:
                continue
            if command.task is None:
                command.result = _ABANDONED
                self._finished.append(command)
            elif now >= command.deadline:
                self._expire(command)
            else:
                try:
                    node = command.target or await self._links.owner(command.slot)
                except Away as away:
                    self._park([command], away.until, away.text)
                    continue
                command.target = None
                groups.setdefault(node, []).append(command)
        return groups

    def _awaits_replicas(self, commands: list[Command]) -> bool:
        return bool(self._replicas) and any(command.write for command in commands)

    def _wire(self, commands: list[Command], stamp: bytes) -> list[bytes]:
        pieces = []
        for command in commands:
            if command.asking:
                pieces.append(_ASKING)
            packed = command.packed
            pieces.append(packed.replace(_STAMP, stamp, 1) if command.stamped else packed)
        if self._awaits_replicas(commands):
            pieces.append(self._wait)
        return pieces

    def _lost(self, node: Node, commands: Iterable[Command], error: Exception) -> None:
        """The connection broke after the first byte was written: these outcomes are ambiguous."""
        self._links.lose(node)
        self.counters.lost_connections += 1
        for command in commands:
            self.counters.ambiguous += 1
            command.ambiguous = True
            command.asking = False
            command.last_error = f"connection to {node} lost: {error}"
            if command.idempotent:
                self._again(command)
            else:
                self._fail(command, OutcomeUnknown(command.last_error))

    async def _read(self, node: Node, link: Link, commands: list[Command]) -> None:
        """Read all replies of a server, then settle its commands."""
        replies: list[Any] = []
        wrote = self._awaits_replicas(commands)
        confirmed = self._replicas
        try:
            self.counters.scripts_loaded += await link.read_loads()
            for command in commands:
                if command.asking:
                    await link.connection.read()
                replies.append(await link.connection.read())
            if wrote:
                answer = await link.connection.read()
                confirmed = answer if isinstance(answer, int) else 0
        except BROKEN as error:
            unconfirmed = []
            missing = [_NO_REPLY] * (len(commands) - len(replies))
            for command, reply in zip(commands, [*replies, *missing], strict=True):
                final = isinstance(reply, RedisError) or not (wrote and command.write)
                if reply is not _NO_REPLY and final:
                    self._settle(node, link, command, reply)
                else:
                    unconfirmed.append(command)
            self._lost(node, unconfirmed, error)
            return
        for command, reply in zip(commands, replies, strict=True):
            if wrote and command.write and confirmed < self._replicas and not isinstance(reply, RedisError):
                self.counters.not_durable += 1
                self._fail(command, NotDurable(f"{confirmed} of {self._replicas} replicas confirmed in time"))
            else:
                self._settle(node, link, command, reply)

    def _settle(self, node: Node, link: Link, command: Command, reply: Any) -> None:
        """Finish a command by its reply, or arrange for another attempt."""
        command.asking = False
        if not isinstance(reply, RedisError):
            command.result = outcome.Value(reply)
            self._finished.append(command)
            return
        command.last_error = error_text(reply)
        match meaning(reply):
            case Meaning.UNKNOWN_SCRIPT if command.script is not None:
                if command.script.sha in link.rejected:
                    self._fail(command, failure(link.rejected.pop(command.script.sha)))
                    return
                link.to_load[command.script.sha] = command.script
                self._again(command)
            case Meaning.MOVED | Meaning.ASK as kind if isinstance(reply, AskError):
                command.target = self._topology.redirected(reply, node)
                command.asking = kind is Meaning.ASK
                if kind is Meaning.MOVED:
                    self._topology.forget()
                self._again(command)
            case Meaning.RETRY:
                self._again(command, later=True)
            case Meaning.RECONNECT:
                self._links.lose(node)
                self._again(command, later=True)
            case Meaning.FULL if command.ambiguous:
                self._fail(command, OutcomeUnknown(command.last_error))
            case _:
                self._fail(command, failure(reply))

    def _again(self, command: Command, *, later: bool = False) -> None:
        """Send a command once more, at once or after a pause that grows."""
        self.counters.resent += 1
        command.attempts += 1
        if later or command.attempts > 3:
            until = monotonic() + pause(command.attempts)
            self._park([command], until, command.last_error)
        else:
            self._again_soon.append(command)

    def _park(self, commands: Iterable[Command], until: float, error: str) -> None:
        """Keep commands for later, but wake up for the first deadline."""
        for command in commands:
            command.last_error = error
            self._parked.append(command)
            until = min(until, command.deadline)
        self._parked_until = min(self._parked_until, until)

    def _expire(self, command: Command) -> None:
        if command.ambiguous:
            self._fail(command, OutcomeUnknown(command.last_error))
        else:
            self.counters.unavailable += 1
            text = command.last_error or f"no answer from {self._topology.label} in time"
            self._fail(command, StoreUnavailable(text))

    def _fail(self, command: Command, error: StoreError) -> None:
        command.result = outcome.Error(error)
        self._finished.append(command)

    def _hand_over(self) -> None:
        if self._finished:
            finished, self._finished = self._finished, []
            self._deliver(finished)

    def _give_up(self) -> None:
        """End everything that is left when the lane ends."""
        for command in (*self._again_soon, *self._parked, *self._ready):
            command.last_error = "the store was closed"
            self._expire(command)
        self._hand_over()
