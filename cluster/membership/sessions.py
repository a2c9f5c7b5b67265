"""Node sessions in Redis: one script call per renewal does everything (E1)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from cluster.membership.timing import Timing, milliseconds

if TYPE_CHECKING:
    from cluster.store.store import Store

OVERLAP_MS: Final = 60_000
"""Burials are asked for again for this long: Redis time may step back a little."""


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has to do at the moment; told with every renewal, so it is about a second old."""

    draining: bool = False
    parked_polls: int = 0
    streams: int = 0
    stream_workers: int = 0
    running_steps: int = 0


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says about itself. ``level`` is what it can write (G2), ``started_at`` in ms."""

    name: str = ""
    build: str = ""
    level: int = 0
    address: str = ""
    started_at: int = 0
    load: NodeLoad = NodeLoad()


@dataclass(frozen=True, slots=True)
class Session:
    """A session that is not expired. ``expires_in`` seconds, as of the renewal that showed it."""

    incarnation: str
    info: NodeInfo
    expires_in: float


@dataclass(frozen=True, slots=True)
class Burial:
    """A session that is dead for good, and since when (Redis ms)."""

    incarnation: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Roll:
    """What a renewal shows: ``next_verdict_in`` seconds somebody may have to be suspected or buried."""

    now_us: int
    live: tuple[Session, ...]
    burials: tuple[Burial, ...]
    next_verdict_in: float | None


@dataclass(frozen=True, slots=True)
class Buried:
    """The answer to a renewal of a session that was buried."""

    now_us: int


def new_incarnation(name: str) -> str:
    """A fresh session id, ``<node name>~<random>``."""
    return f"{name}~{secrets.token_hex(6)}"


class SessionStore:
    """Reads and writes ``{sess}``."""

    def __init__(self, store: Store, timing: Timing) -> None:
        self._store = store
        self._timing = timing
        self._burials_since = 0

    async def renew(self, incarnation: str, info: NodeInfo, *, aloud: bool = False) -> Roll | Buried:
        """Renew a session (the first time: join), pass verdicts on others. Raises StoreError.

        ``aloud``: the others are to look at once, as they do when a session joins.
        """
        keys = self._store.keys
        timing = self._timing
        reply = await self._store.run(
            "session",
            [keys.sessions(family) for family in ("alive", "info", "suspect", "dead")],
            [
                incarnation,
                orjson.dumps(msgspec.to_builtins(info)),
                milliseconds(timing.session_ttl),
                self._store.generation,
                milliseconds(timing.patience),
                milliseconds(timing.suspicion_void),
                milliseconds(timing.memory),
                self._burials_since,
                keys.changed_channel(),
                int(aloud),
            ],
            idempotent=True,
            urgent=True,
        )
        if len(reply) == 1:
            return Buried(reply[0])
        return self._roll(reply)

    async def leave(self, incarnation: str) -> None:
        """End a session in good order. Raises StoreError."""
        keys = self._store.keys
        await self._store.run(
            "leave",
            [keys.sessions(family) for family in ("alive", "info", "suspect")],
            [incarnation, keys.changed_channel()],
            idempotent=True,
            urgent=True,
        )

    def _roll(self, reply: list[Any]) -> Roll:
        now_us, live, buried, verdict_ms = reply
        now_ms = now_us // 1000
        burials = tuple(Burial(buried[i].decode(), buried[i + 1]) for i in range(0, len(buried), 2))
        if burials:
            self._burials_since = max(self._burials_since, burials[-1].at_ms - OVERLAP_MS)
        return Roll(
            now_us=now_us,
            live=tuple(
                Session(
                    incarnation=live[i].decode(),
                    info=decode_info(live[i + 2]),
                    expires_in=(live[i + 1] - now_ms) / 1000,
                )
                for i in range(0, len(live), 3)
            ),
            burials=burials,
            next_verdict_in=None if verdict_ms < 0 else max(0, verdict_ms - now_ms) / 1000,
        )


def decode_info(text: bytes) -> NodeInfo:
    """What another build wrote, as far as this one understands it."""
    try:
        return msgspec.json.decode(text, type=NodeInfo)
    except msgspec.DecodeError:
        return NodeInfo()
