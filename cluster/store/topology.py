"""Where Redis is: URLs, discovery of the primary, slots of a Cluster, raw connections.

======================================================  =======================================
URL                                                     means
======================================================  =======================================
``redis://[user:password@]host[:port][/db]``            one server
``rediss://…``                                          the same over TLS
``unix:///path/to/socket[?db=0]``                       the same over a Unix socket
``redis+sentinel://[user:password@]host:port,…/name/0`` the primary that Sentinel calls ``name``
``redis+cluster://[user:password@]host:port,…``         a Redis Cluster, found through any node
======================================================  =======================================

``valkey`` may stand for ``redis`` (and ``valkeys`` for ``rediss``) everywhere; ``rediss+sentinel``
and ``rediss+cluster`` use TLS. Query arguments are redis-py's, plus ``sentinel_username`` and
``sentinel_password``.

Nothing here retries: each attempt fails with one of redis-py's errors and the caller decides
(rule A1). A topology is used by one thread at a time. Passwords never appear in :attr:`Topology.label`.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, NodesManager
from redis.connection import parse_url
from redis.exceptions import AskError, ConnectionError, RedisClusterException, TimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel
from redis.utils import str_if_bytes

from cluster.errors import StartupError
from cluster.store.connection import RawConnection

CONNECT_TIMEOUT: Final = 2.0  # seconds
DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26379

_SCHEME: Final = re.compile(r"(?P<base>redis|rediss|valkey|valkeys|unix)(?:\+(?P<kind>sentinel|cluster))?://")


@dataclass(frozen=True, slots=True)
class Node:
    """Address of one Redis server. ``port`` 0 means that ``host`` is a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed URL. ``options`` are redis-py's connection arguments; they may hold a password."""

    kind: str
    scheme: str
    nodes: tuple[Node, ...]
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """The URL without user, password and arguments; fit for logs and errors."""
        hosts = ",".join(map(str, self.nodes))
        suffix = f"/{self.service}" if self.service else ""
        plus = f"+{self.kind}" if self.kind != "single" else ""
        return f"{self.scheme}{plus}://{hosts}{suffix}"


def _untyped(function: Any) -> Any:
    """redis-py has no types here; calling through Any says so once."""
    return function


def _split_hosts(netloc: str, default_port: int) -> tuple[Node, ...]:
    nodes = []
    for part in filter(None, netloc.split(",")):
        parsed = urlsplit(f"//{part}")
        nodes.append(Node(parsed.hostname or "localhost", parsed.port or default_port))
    return tuple(nodes) or (Node("localhost", default_port),)


def parse(url: str) -> Endpoint:
    """Read a URL of one of the forms above. Raises StartupError without repeating the password."""
    match = _SCHEME.match(url)
    if match is None:
        raise StartupError(
            "the Redis URL must start with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
        )
    base = {"valkey": "redis", "valkeys": "rediss"}.get(match["base"], match["base"])
    kind = match["kind"] or "single"
    netloc, _, rest = url[match.end() :].partition("/")
    credentials, at, hosts = netloc.rpartition("@")
    try:
        if kind == "single":
            return _parse_single(base, f"{base}://{url[match.end() :]}")
        nodes = _split_hosts(hosts, SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT)
        path, question, query = rest.partition("?")
        service, _, db = path.partition("/")
        # Host and port are replaced by discovery; redis-py parses everything else.
        options = dict(_untyped(parse_url)(f"{base}://{credentials}{at}host/{db or '0'}{question}{query}"))
    except ValueError as error:
        raise StartupError(
            f"the Redis URL cannot be read ({error}): check host, port and arguments"
        ) from None
    sentinel_options = {
        name.removeprefix("sentinel_"): options.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in options
    }
    if kind == "sentinel" and not service:
        raise StartupError("the Redis URL names no service: write redis+sentinel://host:port/NAME/0")
    if kind == "cluster" and (options.get("db") or service):
        raise StartupError("a Redis Cluster has only database 0: leave the path of the URL empty")
    for name in ("host", "port"):
        options.pop(name, None)
    return Endpoint(kind, base, nodes, unquote(service), options, sentinel_options)


def _parse_single(scheme: str, url: str) -> Endpoint:
    options = dict(_untyped(parse_url)(url))
    if scheme == "unix":
        path = options.pop("path", "")
        if not path:
            raise ValueError("no socket path")
        return Endpoint("single", scheme, (Node(path, 0),), options=options)
    node = Node(options.pop("host", "localhost"), options.pop("port", DEFAULT_PORT))
    return Endpoint("single", scheme, (node,), options=options)


class Topology(ABC):
    """Knows which server to ask for what, and makes raw connections to it."""

    clustered = False

    def __init__(self, endpoint: Endpoint, *, reply_timeout: float) -> None:
        """``reply_timeout`` (s) bounds one read or write on connections made here."""
        self.endpoint = endpoint
        self.label = endpoint.label
        options = dict(endpoint.options)
        self._class: Any = options.pop("connection_class", redis.Connection)
        for ours in ("retry_on_timeout", "max_connections", "timeout", "decode_responses"):
            options.pop(ours, None)
        options.setdefault("socket_connect_timeout", CONNECT_TIMEOUT)
        options.setdefault("socket_timeout", reply_timeout)
        self._options = options

    def connection(self, node: Node) -> RawConnection:
        """A not yet connected connection that never retries and never decodes."""
        where = {"host": node.host, "port": node.port} if node.port else {"path": node.host}
        fixed = {
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "protocol": 2,
            "health_check_interval": 0,
        }
        return RawConnection(self._class(**{**self._options, **where, **fixed}))

    @property
    @abstractmethod
    def known(self) -> bool:
        """Whether :meth:`node` and :meth:`nodes` ask no server before they answer."""

    @abstractmethod
    def node(self, slot: int) -> Node:
        """The server that owns ``slot``. Raises a RedisError when it cannot be found."""

    def nodes(self) -> list[Node]:
        """All servers that own slots. Raises like :meth:`node`."""
        return [self.node(0)]

    @abstractmethod
    def forget(self, failed: Node | None = None) -> None:
        """What was known may be outdated: look again before the next answer."""

    def redirected(self, error: AskError, asked: Node) -> Node:
        """The server a MOVED or ASK reply points to; without a host it is the one ``asked``."""
        return Node(error.host or asked.host, int(error.port))


class SingleServer(Topology):
    """One server at a fixed address."""

    known = True

    def node(self, slot: int) -> Node:
        return self.endpoint.nodes[0]

    def forget(self, failed: Node | None = None) -> None:
        return  # the address is fixed


class SentinelService(Topology):
    """The primary that Sentinel names, asked again before each new connection.

    redis-py's own way to find it is not used: until the last replica follows the new primary, ``SENTINEL
    MASTERS`` shows the old one, and an old primary that is back by then looks healthy and may be empty.
    """

    def __init__(self, endpoint: Endpoint, *, reply_timeout: float) -> None:
        super().__init__(endpoint, reply_timeout=reply_timeout)
        self._primary: Node | None = None
        self._sentinel: Any = _untyped(Sentinel)(
            [(node.host, node.port) for node in endpoint.nodes],
            sentinel_kwargs={
                "socket_timeout": 1.0,
                "socket_connect_timeout": 1.0,
                "retry": Retry(NoBackoff(), 0),
                "protocol": 2,
                **endpoint.sentinel_options,
            },
        )

    @property
    def known(self) -> bool:
        return self._primary is not None

    def node(self, slot: int) -> Node:
        if self._primary is None:
            self._primary = self._discover()
        return self._primary

    def _discover(self) -> Node:
        """What the first Sentinel says that knows. Raises MasterNotFoundError."""
        said: list[str] = []
        sentinels = self._sentinel.sentinels
        for place, sentinel in enumerate(sentinels):
            try:
                named = self._named_by(sentinel)
            except (ConnectionError, TimeoutError) as error:
                said.append(repr(error))
                continue
            if named is not None:
                sentinels[0], sentinels[place] = sentinel, sentinels[0]
                return named
        heard = f": {', '.join(said)}" if said else ""
        raise MasterNotFoundError(f"No master found for {self.endpoint.service!r}{heard}")

    def _named_by(self, sentinel: Any) -> Node | None:
        """The primary according to one Sentinel; None while there is none to be trusted."""
        service = self.endpoint.service
        state = sentinel.sentinel_masters().get(service)
        address = sentinel.sentinel_get_master_addr_by_name(service)
        if not state or not address:
            return None
        named = Node(str_if_bytes(address[0]), int(address[1]))
        if named != Node(state["ip"], int(state["port"])):
            return named  # promoted already
        failing = "failover_in_progress" in state["flags"].split(",")
        return None if failing or not self._sentinel.check_master_state(state, service) else named

    def forget(self, failed: Node | None = None) -> None:
        self._primary = None


class ClusterSlots(Topology):
    """The primaries of a Redis Cluster by slot."""

    clustered = True

    def __init__(self, endpoint: Endpoint, *, reply_timeout: float) -> None:
        super().__init__(endpoint, reply_timeout=reply_timeout)
        self._manager: NodesManager | None = None
        self._fresh = False
        self._failed: Node | None = None

    @property
    def known(self) -> bool:
        return self._manager is not None and self._fresh

    def _managed(self) -> NodesManager:
        if self._manager is not None and self._fresh:
            return self._manager
        try:
            if self._manager is None:
                self._manager = self._from_seeds()
            else:
                failed = f"{self._failed.host}:{self._failed.port}" if self._failed else None
                seeds = [(node.host, node.port) for node in self.endpoint.nodes]
                self._manager.initialize(seeds, last_failed_node_name=failed)
        except RedisClusterException as error:
            raise ConnectionError(str(error)) from None
        self._fresh, self._failed = True, None
        return self._manager

    def _from_seeds(self) -> NodesManager:
        options = {k: v for k, v in self._options.items() if k != "db"}
        if issubclass(self._class, redis.SSLConnection):
            options["connection_class"] = self._class
        return NodesManager(
            [_untyped(ClusterNode)(node.host, node.port) for node in self.endpoint.nodes],
            from_url=True,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **options,
        )

    def node(self, slot: int) -> Node:
        owners = self._managed().slots_cache.get(slot)
        if not owners:
            self._fresh = False
            raise ConnectionError(f"no server of the cluster owns slot {slot}")
        return Node(owners[0].host, int(owners[0].port))

    def nodes(self) -> list[Node]:
        owners = {(o[0].host, int(o[0].port)) for o in self._managed().slots_cache.values()}
        found = [Node(host, port) for host, port in owners]
        random.shuffle(found)
        return found

    def forget(self, failed: Node | None = None) -> None:
        self._fresh, self._failed = False, failed


_Kind = type[SingleServer | SentinelService | ClusterSlots]
_KINDS: Final[dict[str, _Kind]] = {
    "single": SingleServer,
    "sentinel": SentinelService,
    "cluster": ClusterSlots,
}


def open_topology(url: str, *, reply_timeout: float) -> Topology:
    """The topology behind ``url``; connects to nothing yet. Raises StartupError."""
    endpoint = parse(url)
    return _KINDS[endpoint.kind](endpoint, reply_timeout=reply_timeout)
