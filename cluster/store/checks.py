"""Start-up checks: is this a server we can keep promises on?

Every refusal is one line that says what to do. What cannot be checked because an ACL forbids it
becomes a warning, not a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError

from cluster.errors import StartupError
from cluster.store.connection import BROKEN, RawConnection, information
from cluster.store.durability import Durability, parse_durability
from cluster.store.topology import Node, Topology, open_topology

MIN_REDIS: Final = (7, 0)
MIN_VALKEY: Final = (7, 2)
REPLY_TIMEOUT: Final = 3.0  # seconds
CHECK_AGAIN_EVERY: Final = 30.0


class _Unreachable(StartupError):
    """The server did not answer, so nothing is known about its settings."""


@dataclass(slots=True)
class _Server:
    """What one server says about itself; a setting that may not be read is missing."""

    where: str
    info: dict[str, str]
    config: dict[str, str]
    warnings: list[str] = field(default_factory=list)


async def check_server(url: str, durability: str = "memory") -> list[str]:
    """Check the server (of a Cluster: every primary) behind ``url`` for a durability setting.

    Returns warnings, one line each. Raises StartupError when it cannot be reached or must not be
    used.
    """
    wanted = parse_durability(durability)
    topology = open_topology(url, reply_timeout=REPLY_TIMEOUT)
    return await trio.to_thread.run_sync(_check, topology, wanted, abandon_on_cancel=True)


async def watch_server(url: str, durability: str, report: Callable[[str | None], None]) -> None:
    """Check again for ever: a promise is kept only while the server's settings stay (rule A2).

    Calls ``report(reason)`` when the server must not be used any more and ``report(None)`` when it
    may be used again. A server that is away breaks no promise: commands to it fail anyway.
    """
    broken: str | None = None
    while True:
        await trio.sleep(CHECK_AGAIN_EVERY)
        reason: str | None = None
        try:
            await check_server(url, durability)
        except _Unreachable:
            continue
        except StartupError as error:
            reason = str(error)
        if reason != broken:
            broken = reason
            report(reason)


def _check(topology: Topology, durability: Durability) -> list[str]:
    warnings: list[str] = []
    for server in _look(topology):
        _check_role(server, topology)
        _check_version(server)
        _check_memory(server)
        _check_persistence(server, durability)
        _check_replicas(server, durability)
        warnings += server.warnings
    return list(dict.fromkeys(warnings))


def _look(topology: Topology) -> list[_Server]:
    label = topology.label
    try:
        return [_read(topology, node) for node in topology.nodes()]
    except AuthenticationError as error:
        raise StartupError(
            f"Redis at {label} refuses us ({error}): check user and password in the Redis URL"
        ) from None
    except InvalidResponse:
        raise StartupError(f"what answers at {label} is not Redis: correct the Redis URL") from None
    except BROKEN as error:
        raise _Unreachable(
            f"Redis cannot be reached at {label} ({error}): start it or correct the Redis URL"
        ) from None


def _read(topology: Topology, node: Node) -> _Server:
    connection = topology.connection(node)
    server = _Server(str(node), {}, {})
    try:
        connection.open()
        try:
            for section in ("server", "replication", "memory", "persistence", "cluster"):
                server.info |= information(connection, section)
        except NoPermissionError:
            server.warnings.append(
                "the Redis user may not call INFO: version, memory and persistence were not checked"
            )
        for pattern in ("append*", "no-appendfsync-on-rewrite", "min-replicas-to-write"):
            server.config |= _settings(connection, pattern)
    finally:
        connection.close()
    return server


def _settings(connection: RawConnection, pattern: str) -> dict[str, str]:
    """CONFIG GET; nothing when the server does not allow it."""
    reply = connection.ask("CONFIG", "GET", pattern)
    if isinstance(reply, RedisError):
        if isinstance(reply, AuthenticationError):
            raise reply
        return {}
    texts = [bytes(part).decode(errors="replace") for part in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _check_role(server: _Server, topology: Topology) -> None:
    if server.info.get("role", "master") != "master":
        raise StartupError(
            f"Redis at {server.where} is a replica: give the URL of its primary or of Sentinel"
        )
    if server.info.get("cluster_enabled") == "1" and not topology.clustered:
        raise StartupError(f"Redis at {server.where} is part of a Cluster: use a redis+cluster:// URL")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _check_version(server: _Server) -> None:
    """Valkey also reports a ``redis_version`` (7.2.4, for ever); its own stands elsewhere."""
    info = server.info
    if "valkey_version" in info or info.get("server_name") == "valkey":
        name, text, least = "Valkey", info.get("valkey_version", ""), MIN_VALKEY
    else:
        name, text, least = "Redis", info.get("redis_version", ""), MIN_REDIS
    if text and _version(text) < least:
        needed = ".".join(map(str, least))
        raise StartupError(f"{name} {text} at {server.where} is too old: install {name} {needed} or newer")


def _check_memory(server: _Server) -> None:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise StartupError(
            f"Redis at {server.where} may throw data away (maxmemory-policy {policy}): "
            "set maxmemory-policy noeviction"
        )


def _check_persistence(server: _Server, durability: Durability) -> None:
    config, where = server.config, server.where
    if server.info.get("aof_enabled") == "0" and durability.mode != "fsync":
        server.warnings.append(
            f"Redis at {where} keeps no append-only file, a restart loses data: set appendonly yes"
        )
    if durability.mode != "fsync":
        return
    if server.info.get("aof_enabled") == "0":
        raise StartupError(f"durability fsync needs an append-only file at {where}: set appendonly yes")
    if "appendfsync" not in config:
        server.warnings.append(
            f"Redis at {where} does not let us read CONFIG: "
            "durability fsync could not be checked, make sure of appendfsync always"
        )
        return
    for name, needed in (
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("no-appendfsync-on-rewrite", "no"),
    ):
        if config.get(name) != needed:
            raise StartupError(
                f"durability fsync is not kept by Redis at {where} ({name} {config.get(name)}): "
                f"set {name} {needed}"
            )


def _check_replicas(server: _Server, durability: Durability) -> None:
    if durability.mode != "replica":
        return
    where = server.where
    least = server.config.get("min-replicas-to-write")
    if least is None:
        server.warnings.append(
            f"Redis at {where} does not let us read CONFIG: make sure of min-replicas-to-write 1 or more"
        )
    elif int(least) < 1:
        raise StartupError(
            f"durability replica needs Redis at {where} to stop without replicas: set min-replicas-to-write 1"
        )
    connected = server.info.get("connected_slaves")
    if connected is not None and int(connected) < durability.replicas:
        server.warnings.append(
            f"Redis at {where} has {connected} replicas, durability needs {durability.replicas}: "
            "writes are not confirmed until they are there"
        )
    elif connected is not None and int(connected) > durability.replicas:
        server.warnings.append(
            f"Redis at {where} has {connected} replicas, durability waits for {durability.replicas}: "
            f"a fail-over may promote one that has not confirmed, set replica:{connected}"
        )
