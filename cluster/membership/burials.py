"""Writes buried sessions into the partitions this node keeps, before anybody is told of them (E1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import structlog

from cluster.errors import StoreError
from cluster.membership.bell import Bell
from cluster.membership.partitions import PartitionKeeper
from cluster.membership.sessions import Burial
from cluster.membership.timing import Timing, milliseconds

if TYPE_CHECKING:
    from cluster.store.store import Store

CHUNK: Final = 100

_log = structlog.get_logger(__name__)


class Burials:
    """Knows the buried of the last day and carries them into each partition once per tenure."""

    def __init__(self, store: Store, timing: Timing, keeper: PartitionKeeper) -> None:
        self._store = store
        self._timing = timing
        self._held = keeper.held
        self._known: dict[str, int] = {}
        self._untold: list[str] = []
        self._written: dict[tuple[int, str], set[str]] = {}
        self._hooks: list[Callable[[str], None]] = []
        self._bell = Bell()
        keeper.on_taken(self._bell.ring)  # a partition newly held has to learn of all of them

    @property
    def known(self) -> int:
        """How many buried sessions are remembered."""
        return len(self._known)

    def on_buried(self, hook: Callable[[str], None]) -> None:
        """Call ``hook(incarnation)`` once per burial, after the held partitions know of it."""
        self._hooks.append(hook)

    def rewrite(self) -> None:
        """The store may have lost what was written: write all of it again."""
        self._written = {}  # a write that is under way goes on with what it began with
        self._bell.ring()

    def learn(self, burials: Iterable[Burial], now_ms: int) -> None:
        """Take in burials, also such that are known; forget those that are too old to matter."""
        oldest = now_ms - milliseconds(self._timing.memory)
        self._known = {name: at for name, at in self._known.items() if at >= oldest}
        for burial in burials:
            if burial.incarnation not in self._known and burial.at_ms >= oldest:
                self._known[burial.incarnation] = burial.at_ms
                self._untold.append(burial.incarnation)
        if self._untold:
            self._bell.ring()

    async def run(self) -> None:
        """Work until cancelled."""
        pause = float("inf")
        while True:
            await self._bell.wait(pause)
            pause = float("inf")
            untold = list(self._untold)
            try:
                if not await self._write():
                    continue  # the bell rang too
            except StoreError as error:
                _log.warning("burial_not_written", reason=error.reason, error=str(error))
                pause = self._timing.retry_every
                continue
            del self._untold[: len(untold)]
            for incarnation in untold:
                for hook in self._hooks:
                    hook(incarnation)

    async def _write(self) -> bool:
        """Write what is missing; False when :meth:`rewrite` asked for all of it meanwhile."""
        known = dict(self._known)
        tenures = {(held.partition, held.nonce) for held in self._held.values()}
        mine = self._written = {tenure: self._written.get(tenure, set()) for tenure in tenures}
        for (partition, _), written in mine.items():
            missing = [name for name in known if name not in written]
            for start in range(0, len(missing), CHUNK):
                chunk = {name: known[name] for name in missing[start : start + CHUNK]}
                await self._store.run(
                    "bury",
                    [self._store.keys.dead(partition)],
                    [
                        milliseconds(self._timing.memory),
                        *(part for name, at in chunk.items() for part in (at, name)),
                    ],
                    idempotent=True,
                )
                written.update(chunk)
        return self._written is mine
