"""Cohorts: workers of one task queue that run the same build, and whether they drain.

The intent to drain is a record of its own: it outlives the workers and decides at every poll, also at
one that is parked already (server-behaviour 4.3 step 4, 4.4). Nodes remember the draining cohorts
of a namespace while change messages arrive.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
import trio

from cluster.errors import StoreError
from cluster.record_cache import RecordCache, change_message
from cluster.store.keys import decode, encode

if TYPE_CHECKING:
    from cluster.store.store import Store

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 0.5
_FAMILY: Final = "cohort"
_DRAINING: Final = "draining"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cohort:
    """``build_id`` "" stands for workers without a build."""

    namespace: str
    task_queue: str
    build_id: str

    @property
    def field(self) -> str:
        """The cohort's field in the hash of its namespace."""
        return f"{encode(self.task_queue)}:{encode(self.build_id)}"


@dataclass(frozen=True, slots=True)
class Intent:
    """What the operator wants of a cohort; ``drained_at_ms`` is set while it drains."""

    draining: bool
    drained_at_ms: int | None = None

    @staticmethod
    def parse(raw: bytes) -> Intent:
        word, _, since = raw.decode().partition(" ")
        return Intent(True, int(since)) if word == _DRAINING else Intent(False)


def cohort_of(namespace: str, task_queue: str, build_id: str | None) -> Cohort:
    """The cohort of a build id as it was sent: trimmed, blank and null mean unversioned."""
    return Cohort(namespace, task_queue, (build_id or "").strip())


class Cohorts:
    """Drain intents, as one node sees them. ``run`` must be running for parked polls to be ended."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._draining = RecordCache(_FAMILY, self._load_draining)
        self._parked: dict[Cohort, set[trio.CancelScope]] = {}
        self._changed = trio.Event()

    async def watch(self) -> None:
        """Start to remember intents; changes on other nodes are heard from now on."""
        await self._draining.watch(self._store)
        self._store.on_message(self._store.keys.changed_channel(), self._on_changed)
        self._store.on_reconnect(self._note_change)

    async def run(self) -> None:
        """End parked polls of cohorts that begin to drain, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            try:
                await self._end_parked()
            except StoreError as error:
                log.debug("parked_polls_not_checked", reason=error.reason)
                await trio.sleep(RETRY_SECONDS)
                self._changed.set()

    async def is_draining(self, cohort: Cohort) -> bool:
        """Whether the cohort drains; from memory while change messages arrive."""
        return cohort.field in await self.draining(cohort.namespace)

    async def draining(self, namespace: str) -> frozenset[str]:
        """Fields of the cohorts of a namespace that drain; as :meth:`is_draining`."""
        return await self._draining.get(namespace) or frozenset()

    async def while_active(self, cohort: Cohort, job: Callable[[], Awaitable[Result]]) -> Result | None:
        """What ``job`` returns, or None (and the job cancelled) once the cohort drains."""
        with trio.CancelScope() as scope:
            parked = self._parked.setdefault(cohort, set())
            parked.add(scope)
            try:
                if await self.is_draining(cohort):
                    return None
                return await job()
            finally:
                parked.discard(scope)
                if not parked and self._parked.get(cohort) is parked:
                    del self._parked[cohort]
        return None

    async def intents(self, namespace: str, task_queue: str) -> dict[str, Intent]:
        """The intents of a queue's cohorts, by build id ("" for unversioned)."""
        flat = await self._store.call("HGETALL", self._store.keys.cohorts(namespace), idempotent=True)
        found: dict[str, Intent] = {}
        for name, raw in zip(flat[::2], flat[1::2], strict=True):
            queue, _, build = name.decode().partition(":")
            if decode(queue) == task_queue:
                found[decode(build)] = Intent.parse(raw)
        return found

    async def drain(self, cohort: Cohort) -> Intent:
        """Hand no more tasks to the cohort. May be repeated; the first time counts."""
        return await self._set(cohort, "drain", ())

    async def resume(self, cohort: Cohort, workers: Iterable[str]) -> Intent:
        """Undo a drain; ``workers`` are the cohort's and become active at once."""
        return await self._set(cohort, "resume", workers)

    async def _set(self, cohort: Cohort, verb: str, workers: Iterable[str]) -> Intent:
        keys = self._store.keys
        message = change_message(_FAMILY, cohort.namespace)
        raw = await self._store.run(
            "cohort",
            [keys.cohorts(cohort.namespace), keys.draining(cohort.namespace)],
            [cohort.field, verb, keys.changed_channel(), message, *workers],
            idempotent=True,
        )
        self._draining.forget(cohort.namespace)
        return Intent.parse(raw)

    async def _load_draining(self, namespace: str) -> frozenset[str]:
        flat = await self._store.call("HGETALL", self._store.keys.cohorts(namespace), idempotent=True)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return frozenset(name.decode() for name, raw in pairs if Intent.parse(raw).draining)

    async def _end_parked(self) -> None:
        for cohort in list(self._parked):
            if await self.is_draining(cohort):
                for scope in self._parked.get(cohort, ()):
                    scope.cancel()

    def _on_changed(self, _channel: str, message: bytes) -> None:
        if message.startswith(_FAMILY.encode() + b" "):
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
