"""A raw connection: redis-py's, with types, and with error replies told apart from broken pipes.

Whatever breaks a connection raises one of :data:`BROKEN`; what the server answers, errors
included, is returned. Nothing retries here (rule A1).
"""

from __future__ import annotations

import hashlib
import random
import secrets
import socket
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import redis
from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError, DataError, NoPermissionError, RedisError

from cluster.store.outcomes import is_reply

Argument = str | bytes | int | float

BROKEN: Final = (RedisError, OSError)

# redis-py's connections carry no types: Any keeps that out of the rest of the store.
_packer: Final[Any] = redis.Connection(protocol=2)  # type: ignore[no-untyped-call]


GENERATION: Final = secrets.token_hex(20)
"""Argument of a stamped command: the lane puts the stamp of the server there that it sends it to."""
ANY_SERVER: Final = b"-" * 40
"""The stamp of a server that does not say who it is."""

_BACKOFF: Final = EqualJitterBackoff(cap=0.5, base=0.01)  # seconds
_BACKOFF_STEPS: Final = 10  # redis-py computes 2**failures, which must stay a float


def pause(failures: int) -> float:
    """How long (s) to wait after so many failures in a row: random, growing, bounded."""
    return _BACKOFF.compute(min(failures, _BACKOFF_STEPS))


def pack(*args: Argument) -> bytes:
    """A command in wire form. Raises TypeError for an argument that is no text, bytes or number."""
    try:
        return b"".join(_packer.pack_command(*args))
    except DataError as error:
        raise TypeError(f"{args[0]!r}: {error}") from None


class RawConnection:
    """One connection to one server, used by one thread at a time."""

    def __init__(self, redis_connection: Any) -> None:
        """``redis_connection`` is redis-py's, not connected yet."""
        self._redis = redis_connection

    def open(self) -> None:
        """Connect, authenticate, select the database."""
        self._redis.connect()

    def close(self) -> None:
        """Close the socket."""
        self._redis.disconnect()

    def send(self, data: bytes) -> None:
        """Write packed commands. Never connects: on a closed connection it raises."""
        if not self._redis.is_connected:
            raise ConnectionError("the connection is closed")
        self._redis.send_packed_command([data], check_health=False)

    def read(self) -> Any:
        """The next reply; an error reply is returned as redis-py's exception."""
        try:
            return self._redis.read_response(disable_decoding=True, disconnect_on_error=False)
        except RedisError as error:
            return self.replied(error)

    def ask(self, *args: Argument) -> Any:
        """Send one command and read its reply."""
        self.send(pack(*args))
        return self.read()

    @staticmethod
    def replied(reply: Any) -> Any:
        """``reply``, unless it is an error that breaks the connection: that is raised."""
        if isinstance(reply, RedisError) and not is_reply(reply):
            raise reply
        return reply

    def reply_error(self, text: str) -> Exception:
        """redis-py's exception for the text of an error reply."""
        error: Exception = self._redis._parser.parse_error(text)
        return error

    @property
    def reply_seconds(self) -> float:
        """How long one read or write may take."""
        return float(self._redis.socket_timeout or inf)

    def socket(self) -> socket.socket:
        """The open socket, to wait for several at once, or by other means."""
        found: socket.socket | None = self._redis._get_socket()
        if found is None:
            raise ConnectionError("the connection is closed")
        return found


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a server says about itself when we connect."""

    generation: str
    primary: bool
    stamp: bytes = ANY_SERVER
    """The generation in 40 characters, for scripts."""


def information(connection: RawConnection, section: str) -> dict[str, str]:
    """INFO of one section. Raises NoPermissionError when the ACL forbids it."""
    reply = connection.ask("INFO", section)
    if isinstance(reply, RedisError):
        raise reply
    pairs = (line.partition(":") for line in bytes(reply).decode().splitlines())
    return {name: value for name, colon, value in pairs if colon}


def identify(connection: RawConnection) -> ServerIdentity:
    """Ask a server who it is; one whose ACL forbids INFO counts as new at every connect."""
    try:
        server = information(connection, "server")
        replication = information(connection, "replication")
    except NoPermissionError:
        return ServerIdentity(f"unknown:{random.getrandbits(64):x}", primary=True)
    generation = f"{server['run_id']}:{replication['master_replid']}"
    stamp = hashlib.sha1(generation.encode(), usedforsecurity=False).hexdigest().encode()
    return ServerIdentity(generation, replication.get("role") == "master", stamp)
