"""What an error reply means: pure classification, no I/O (rule A1).

Every command sent to Redis ends in one of four ways:

* **executed**: a reply came that is no error;
* **not executed**: an error reply says so, or no byte was written. It is sent again until the
  call's deadline, then reported as :class:`~cluster.errors.StoreUnavailable`;
* **ambiguous**: the connection was lost after the first byte was written. Only commands marked
  idempotent are sent again; the rest end in :class:`~cluster.errors.OutcomeUnknown`;
* **failed**: any other error reply, reported at once.

redis-py strips the error code off the text for replies it has a class for and keeps it for the
rest, hence :func:`error_code`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from redis.exceptions import AskError, ConnectionError, MovedError, RedisError, ResponseError

from cluster.errors import StoreError, StoreFull, StoreRefused


class Meaning(Enum):
    """What to do about an error reply."""

    UNKNOWN_SCRIPT = auto()  # load the script, then send this one command again
    MOVED = auto()  # the slot lives elsewhere: learn the new owners, send again
    ASK = auto()  # this one key lives elsewhere for now: ask there, once
    RETRY = auto()  # the server is busy or not ready: send again on the same connection
    RECONNECT = auto()  # this server cannot serve us: find the right one, send again
    FULL = auto()  # the memory limit is reached
    FAILED = auto()  # anything else


_BY_CODE: Final = {
    "NOSCRIPT": Meaning.UNKNOWN_SCRIPT,
    "MOVED": Meaning.MOVED,
    "ASK": Meaning.ASK,
    "TRYAGAIN": Meaning.RETRY,
    "CLUSTERDOWN": Meaning.RECONNECT,
    "BUSY": Meaning.RETRY,
    "NOREPLICAS": Meaning.RETRY,
    "MISCONF": Meaning.RETRY,
    "LOADING": Meaning.RECONNECT,
    "MASTERDOWN": Meaning.RECONNECT,
    "READONLY": Meaning.RECONNECT,
    "OOM": Meaning.FULL,
}

# Commands that change nothing. What is not listed counts as a write: in replica durability its
# reply then waits for the replicas, which is slower but never wrong.
READ_COMMANDS: Final = frozenset(
    name
    for line in (
        "ACL CLIENT CLUSTER CONFIG DBSIZE ECHO EVALSHA_RO EVAL_RO EXISTS GET GETRANGE HEXISTS HGET HGETALL",
        "HKEYS HLEN HMGET HSCAN HSTRLEN HVALS INFO LINDEX LLEN LPOS LRANGE MEMORY MGET OBJECT PEXPIRETIME",
        "PING PTTL PUBLISH PUBSUB ROLE SCAN SCARD SCRIPT SISMEMBER SLOWLOG SMEMBERS SMISMEMBER SSCAN STRLEN",
        "TIME TTL TYPE WAIT XINFO XLEN XPENDING XRANGE XREAD XREVRANGE ZCARD ZCOUNT ZMSCORE ZRANGE",
        "ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANK ZSCAN ZSCORE",
    )
    for name in line.split()
)


def error_code(error: RedisError) -> str:
    """The first word of an error reply, like ``NOSCRIPT`` or ``ERR``."""
    code: str | None = getattr(error, "status_code", None)
    return code or str(error).partition(" ")[0]


def error_text(error: RedisError) -> str:
    """The error reply as the server wrote it, code first."""
    code, text = error_code(error), str(error)
    return text if text.startswith(code) else f"{code} {text}"


def is_reply(error: RedisError) -> bool:
    """Whether ``error`` was sent by the server, as opposed to a broken connection.

    redis-py derives ``LOADING`` and authentication replies from its ConnectionError.
    """
    if isinstance(error, ConnectionError):
        return getattr(error, "status_code", None) not in (None, "ERR")
    return isinstance(error, ResponseError)


def meaning(error: RedisError) -> Meaning:
    """What an error reply asks for."""
    if isinstance(error, MovedError):
        return Meaning.MOVED
    if isinstance(error, AskError):
        return Meaning.ASK
    return _BY_CODE.get(error_code(error), Meaning.FAILED)


def failure(error: RedisError) -> StoreError:
    """The error to raise for a reply that means FULL or FAILED."""
    if meaning(error) is Meaning.FULL:
        return StoreFull("Redis is out of memory: raise maxmemory or remove data")
    return StoreRefused(error_text(error))


def is_write(command: str) -> bool:
    """Whether a command may change data (replica durability then waits for it)."""
    return command.upper() not in READ_COMMANDS
