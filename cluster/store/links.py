"""The connections of one lane: which server to ask, whether it is there, when to try it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from time import monotonic
from typing import TypeVar

import trio
from redis.exceptions import ConnectionError, RedisError

from cluster.store.connection import BROKEN, RawConnection, ServerIdentity, identify, pack, pause
from cluster.store.outcomes import Meaning, meaning
from cluster.store.scripts import Script
from cluster.store.task_connection import TaskConnection
from cluster.store.topology import Node, Topology

T = TypeVar("T")


class Away(Exception):
    """A server, or the way to it, cannot be reached; not to be tried before ``until`` (monotonic)."""

    def __init__(self, text: str, until: float) -> None:
        super().__init__(text)
        self.text = text
        self.until = until


@dataclass(slots=True)
class _Absence:
    """How often in a row a server could not be reached."""

    failures: int
    text: str
    until: float


class Link:
    """A connection to one server and the scripts that have to be loaded before the next batch."""

    def __init__(self, connection: TaskConnection, stamp: bytes) -> None:
        self.connection = connection
        self.stamp = stamp
        self.to_load: dict[str, Script] = {}
        self.rejected: dict[str, RedisError] = {}

    async def write(self, commands: list[bytes]) -> None:
        """Send the wanted script loads and packed ``commands`` as one write."""
        loads = [pack("SCRIPT", "LOAD", script.source) for script in self.to_load.values()]
        await self.connection.send(b"".join((*loads, *commands)))

    async def read_loads(self) -> int:
        """Read the replies to the script loads; returns how many there were."""
        loads = list(self.to_load)
        for sha in loads:
            reply = await self.connection.read()
            if isinstance(reply, RedisError) and meaning(reply) in (Meaning.FAILED, Meaning.FULL):
                self.rejected[sha] = reply
        self.to_load.clear()
        return len(loads)


@dataclass(frozen=True, slots=True)
class _Found:
    """A server that was reached, and the servers there are besides it."""

    connection: RawConnection
    identity: ServerIdentity
    current: frozenset[Node]


class Links:
    """Used by one task, but for :meth:`break_all`. Finding and reaching servers, which redis-py does, happens
    in a thread meanwhile.
    """

    def __init__(self, topology: Topology, renewed: Callable[[], None] = lambda: None) -> None:
        """``renewed`` is called when :attr:`generation` has changed."""
        self._topology = topology
        self._renewed = renewed
        self._open: dict[Node, Link] = {}
        self._absent: dict[Node | None, _Absence] = {}
        self._generations: dict[Node, str] = {}
        self._thread = trio.CapacityLimiter(1)
        self._patience = trio.CancelScope()
        self.connects = 0

    @property
    def generation(self) -> str:
        """Identity of the servers we talk to; changes when one restarts or is replaced."""
        known = self._generations
        return ",".join(known[node] for node in sorted(known, key=str))

    async def watch(self) -> None:
        """Close connections whose servers do not answer, until cancelled. Costs nothing while they do."""
        while True:
            now = trio.current_time()
            due = min([link.connection.end_if_late(now) for link in self._open.values()], default=inf)
            with trio.CancelScope(deadline=due) as self._patience:
                await trio.sleep_forever()

    def _expect(self, due: float) -> None:
        if due < self._patience.deadline:
            self._patience.deadline = due

    async def owner(self, slot: int) -> Node:
        """The server that owns a slot. Raises Away."""
        self._check_absence(None)
        started = monotonic()
        try:
            if self._topology.known:
                node = self._topology.node(slot)
            else:
                node = await self._in_thread(partial(self._topology.node, slot))
        except BROKEN as error:
            raise self._missed(None, error, started) from None
        self._absent.pop(None, None)
        return node

    async def get(self, node: Node) -> Link:
        """The open connection to a server, made when needed. Raises Away."""
        link = self._open.get(node)
        if link is not None:
            if link.connection.usable():
                return link
            self.drop(node)
        self._check_absence(node)
        started = monotonic()
        try:
            found = await self._in_thread(partial(self._reach, node))
        except BROKEN as error:
            raise self._missed(node, error, started) from None
        link = self._open[node] = Link(TaskConnection(found.connection, self._expect), found.identity.stamp)
        self._absent.pop(node, None)
        self.connects += 1
        known = {n: generation for n, generation in self._generations.items() if n in found.current}
        before = self._generations
        self._generations = known | {node: found.identity.generation}
        if self._generations != before:
            self._renewed()
        return link

    def _reach(self, node: Node) -> _Found:
        """Connect and ask who is there. Runs in a thread; raises one of BROKEN."""
        connection = self._topology.connection(node)
        try:
            connection.open()
            identity = identify(connection)
            if not identity.primary:
                raise ConnectionError(f"{node} is a replica")
            current = self._topology.nodes() if self._topology.clustered else [node]
        except BROKEN:
            connection.close()
            raise
        return _Found(connection, identity, frozenset(current))

    async def _in_thread(self, ask: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=self._thread)

    async def connect_everywhere(self) -> None:
        """Know the generation of all servers of a Cluster from the start."""
        try:
            for node in await self._in_thread(self._topology.nodes):
                await self.get(node)
        except (*BROKEN, Away):
            return  # the first command meets the same error and reports it

    def drop(self, node: Node) -> None:
        """Close the connection to a server."""
        link = self._open.pop(node, None)
        if link is not None:
            link.connection.close()

    def lose(self, node: Node) -> None:
        """Close the connection to a server and find out anew who serves its slots."""
        self.drop(node)
        self._topology.forget(node)

    def break_all(self) -> None:
        """Close all connections; a task that waits for one gets an error."""
        for link in list(self._open.values()):
            link.connection.close()

    def _check_absence(self, where: Node | None) -> None:
        absence = self._absent.get(where)
        if absence is not None and monotonic() < absence.until:
            raise Away(absence.text, absence.until)

    def _missed(self, where: Node | None, error: Exception, started: float) -> Away:
        """Note that a server (None: the way to it) cannot be reached.

        The next attempt waits at least as long as this one took, so that a server which swallows
        packets leaves time for the others.
        """
        now = monotonic()
        failures = self._absent[where].failures + 1 if where in self._absent else 1
        until = now + max(pause(failures), now - started)
        text = f"cannot reach {self._topology.label}: {error}"
        self._absent[where] = _Absence(failures, text, until)
        self._topology.forget(where)
        return Away(text, until)
