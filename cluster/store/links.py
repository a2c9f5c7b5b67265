"""The connections of one lane: which server to ask, whether it is there, when to try it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from redis.exceptions import ConnectionError, RedisError

from cluster.store.connection import ANY_SERVER, BROKEN, RawConnection, identify, pack, pause
from cluster.store.outcomes import Meaning, meaning
from cluster.store.scripts import Script
from cluster.store.topology import Node, Topology


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

    def __init__(self, connection: RawConnection) -> None:
        self.connection = connection
        self.stamp = ANY_SERVER
        self.to_load: dict[str, Script] = {}
        self.rejected: dict[str, RedisError] = {}

    def write(self, commands: list[bytes]) -> None:
        """Send the wanted script loads and packed ``commands`` as one write."""
        loads = [pack("SCRIPT", "LOAD", script.source) for script in self.to_load.values()]
        self.connection.send(b"".join((*loads, *commands)))

    def read_loads(self) -> int:
        """Read the replies to the script loads; returns how many there were."""
        loads = list(self.to_load)
        for sha in loads:
            reply = self.connection.read()
            if isinstance(reply, RedisError) and meaning(reply) in (Meaning.FAILED, Meaning.FULL):
                self.rejected[sha] = reply
        self.to_load.clear()
        return len(loads)


class Links:
    """Used by one thread, but for :meth:`break_all` and :attr:`generation`."""

    def __init__(self, topology: Topology, renewed: Callable[[], None] = lambda: None) -> None:
        """``renewed`` is called, in the thread, when :attr:`generation` has changed."""
        self._topology = topology
        self._renewed = renewed
        self._open: dict[Node, Link] = {}
        self._absent: dict[Node | None, _Absence] = {}
        self._generations: dict[Node, str] = {}
        self.connects = 0

    @property
    def generation(self) -> str:
        """Identity of the servers we talk to; changes when one restarts or is replaced."""
        known = self._generations
        return ",".join(known[node] for node in sorted(known, key=str))

    def owner(self, slot: int) -> Node:
        """The server that owns a slot. Raises Away."""
        self._check_absence(None)
        started = monotonic()
        try:
            node = self._topology.node(slot)
        except BROKEN as error:
            raise self._missed(None, error, started) from None
        self._absent.pop(None, None)
        return node

    def get(self, node: Node) -> Link:
        """The open connection to a server, made when needed. Raises Away."""
        link = self._open.get(node)
        if link is not None:
            if link.connection.usable():
                return link
            self.drop(node)
        self._check_absence(node)
        started = monotonic()
        link = self._open[node] = Link(self._topology.connection(node))
        try:
            link.connection.open()
            identity = identify(link.connection)
            if not identity.primary:
                raise ConnectionError(f"{node} is a replica")
            current = set(self._topology.nodes()) if self._topology.clustered else {node}
        except BROKEN as error:
            self.drop(node)
            raise self._missed(node, error, started) from None
        self._absent.pop(node, None)
        self.connects += 1
        known = {n: generation for n, generation in self._generations.items() if n in current}
        link.stamp = identity.stamp
        before = self._generations
        self._generations = known | {node: identity.generation}
        if self._generations != before:
            self._renewed()
        return link

    def connect_everywhere(self) -> None:
        """Know the generation of all servers of a Cluster from the start."""
        try:
            for node in self._topology.nodes():
                self.get(node)
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
        """Close all connections; a thread that reads from one gets an error."""
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
