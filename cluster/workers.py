"""Worker registrations: who polls which queue, with which types and build.

A registration is one JSON record per (namespace, worker id). It survives server restarts, because
workers register once and never again (sdk-wire 2.1). Rules: server-behaviour 4.1 to 4.3.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from ulid import ULID

from cluster.cohorts import cohort_of
from cluster.errors import Refused
from cluster.record_cache import RecordCache, change_message

if TYPE_CHECKING:
    from cluster.store.store import Store

RECEIPT_SECONDS: Final = 600
"""How long a deregistration is remembered, so that repeating it gives the same receipt."""

_FAMILY: Final = "worker"


Release = Callable[[str, str, str], Awaitable[int]]
"""Gives back the workflow tasks of (namespace, task queue, worker); returns how many."""


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker said about itself. Times are milliseconds since the epoch."""

    worker_id: str
    namespace: str
    task_queue: str
    runtime: str
    token: str
    """Fences deregistration: only the process that made this registration knows it."""
    sdk_version: str | None = None
    build_id: str | None = None
    supported_workflow_types: tuple[str, ...] = ()
    supported_activity_types: tuple[str, ...] = ()
    workflow_definition_fingerprints: dict[str, str] = {}
    max_concurrent_workflow_tasks: int = 100
    max_concurrent_activity_tasks: int = 100
    max_concurrent_worker_sessions: int = 10
    capabilities: tuple[str, ...] = ()
    workflow_command_contracts: dict[str, Any] = {}
    """Signals, updates and queries by workflow type, as the worker declared them (sdk-wire 2.1)."""
    heartbeat_interval_seconds: int | None = None
    registered_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """A request to register. ``workflow_types`` is None when the field was left out."""

    namespace: str
    worker_id: str | None
    task_queue: str
    runtime: str
    sdk_version: str | None = None
    build_id: str | None = None
    workflow_types: tuple[str, ...] | None = None
    activity_types: tuple[str, ...] = ()
    fingerprints: Mapping[str, Any] | None = None
    max_concurrent_workflow_tasks: int = 100
    max_concurrent_activity_tasks: int = 100
    max_concurrent_worker_sessions: int = 10
    capabilities: tuple[str, ...] = ()
    command_contracts: Mapping[str, Any] = field(default_factory=dict)
    heartbeat_interval_seconds: int | None = None
    vitals: Mapping[str, Any] = field(default_factory=dict)
    """What changes from heartbeat to heartbeat: task_slots, process_metrics."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a deregistration answers."""

    worker_id: str
    recovered_workflow_task_count: int = 0


def normalize_fingerprints(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Trimmed keys and values, without blanks and non-strings, sorted by key."""
    pairs = ((key.strip(), value.strip()) for key, value in (given or {}).items() if isinstance(value, str))
    return dict(sorted((key, value) for key, value in pairs if key and value))


def merge_fingerprints(announcement: Announcement, old: Registration | None) -> dict[str, str]:
    """The fingerprints to store: those sent, and known ones of types still advertised.

    Raises Refused (workflow_definition_changed) when a known type was sent with another one.
    """
    sent = normalize_fingerprints(announcement.fingerprints)
    known = old.workflow_definition_fingerprints if old is not None else {}
    for workflow_type, fingerprint in sent.items():
        if known.get(workflow_type, fingerprint) != fingerprint:
            raise Refused(
                "workflow_definition_changed",
                f"Worker advertised a changed definition of workflow type [{workflow_type}].",
                workflow_type=workflow_type,
                remediation="Restart the changed process with a new worker_id.",
            )
    advertised = known if announcement.workflow_types is None else announcement.workflow_types
    kept = {name: known[name] for name in advertised if name in known}
    return dict(sorted({**kept, **sent}.items()))


class WorkerStore:
    """Registers workers, stamps their heartbeats, forgets them, and guards polls."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._cache = RecordCache(_FAMILY, self._load)

    async def watch(self) -> None:
        """Start to remember registrations; changes on other nodes are heard from now on."""
        await self._cache.watch(self._store)

    async def get(self, namespace: str, worker_id: str) -> Registration | None:
        """The registration, or None; from memory while change messages arrive."""
        return await self._cache.get(namespace, worker_id)

    async def token(self, namespace: str, worker_id: str) -> str | None:
        """What tells the registration of this moment from earlier ones of the same worker id."""
        registration = await self.get(namespace, worker_id)
        return None if registration is None else registration.token

    async def register(self, announcement: Announcement) -> Registration:
        """Store a registration; an older one of the same worker is replaced, not merged.

        Raises Refused (workflow_definition_changed); then nothing is written.
        """
        namespace = announcement.namespace
        worker_id = announcement.worker_id or str(ULID())
        expected = await self._read(namespace, worker_id)
        drains = expected and await self._store.call(
            "SISMEMBER", self._store.keys.draining(namespace), worker_id, idempotent=True
        )
        while True:
            old = decode_registration(expected) if expected else None
            new = self._replace(announcement, worker_id, old, forget_fingerprints=bool(drains))
            current = await self._swap(namespace, worker_id, expected, msgspec.json.encode(new))
            if current is None:
                await self._beat(new, announcement.vitals)
                return new
            expected = current

    async def heartbeat(
        self, namespace: str, worker_id: str, vitals: Mapping[str, Any] | None = None
    ) -> Registration:
        """Stamp a heartbeat and keep the worker's ``vitals``. Raises Refused (404 worker_not_registered)."""
        registration = await self.get(namespace, worker_id)
        if registration is None or not await self._beat(registration, vitals or {}):
            self._cache.forget(namespace, worker_id)
            raise _not_registered(worker_id, status=404)
        return registration

    async def deregister(
        self, namespace: str, worker_id: str, token: str | None, release: Release | None = None
    ) -> Receipt:
        """Forget a worker, then give back its workflow tasks through ``release``.

        With a token, the call is fenced and may be repeated: the same token gives the same receipt,
        an unknown worker gives one too, another token raises Refused (409). Without a token, an
        unknown worker raises Refused (404 worker_not_found).
        """
        expected = await self._read(namespace, worker_id)
        while expected:
            if token is not None and not hmac.compare_digest(decode_registration(expected).token, token):
                return await self._earlier_receipt(namespace, worker_id, token)
            current = await self._swap(namespace, worker_id, expected, b"")
            if current is None:
                old = decode_registration(expected)
                released = 0 if release is None else await release(namespace, old.task_queue, worker_id)
                receipt = Receipt(worker_id=worker_id, recovered_workflow_task_count=released)
                await self._keep_receipt(namespace, token, receipt)
                return receipt
            expected = current
        if token is None:
            raise Refused("worker_not_found", "Worker not found.", status=404, worker_id=worker_id)
        kept = await self._kept_receipt(namespace, worker_id, token)
        return kept or Receipt(worker_id=worker_id)

    async def admit(
        self, namespace: str, worker_id: str, task_queue: str, build_id: str | None
    ) -> Registration:
        """The registration of a worker that may poll ``task_queue`` (server-behaviour 4.3).

        Raises Refused: 412 worker_not_registered, 409 task_queue_mismatch, 409 build_id_mismatch.
        """
        registration = await self.get(namespace, worker_id)
        if registration is None:
            raise _not_registered(worker_id, status=412)
        if registration.task_queue != task_queue:
            raise Refused(
                "task_queue_mismatch",
                "Worker is registered for another task queue.",
                worker_id=worker_id,
                registered_task_queue=registration.task_queue,
                requested_task_queue=task_queue,
            )
        if registration.build_id and build_id and registration.build_id != build_id:
            raise Refused(
                "build_id_mismatch",
                "Worker is registered with another build id.",
                worker_id=worker_id,
                registered_build_id=registration.build_id,
                requested_build_id=build_id,
            )
        return registration

    # -- storage ----------------------------------------------------------------------------

    def _replace(
        self,
        announcement: Announcement,
        worker_id: str,
        old: Registration | None,
        *,
        forget_fingerprints: bool,
    ) -> Registration:
        now = self._now_ms()
        known = None if forget_fingerprints else old
        return Registration(
            worker_id=worker_id,
            namespace=announcement.namespace,
            task_queue=announcement.task_queue,
            runtime=announcement.runtime,
            token=secrets.token_hex(16),
            sdk_version=announcement.sdk_version,
            build_id=announcement.build_id,
            supported_workflow_types=announcement.workflow_types or (),
            supported_activity_types=announcement.activity_types,
            workflow_definition_fingerprints=merge_fingerprints(announcement, known),
            max_concurrent_workflow_tasks=announcement.max_concurrent_workflow_tasks,
            max_concurrent_activity_tasks=announcement.max_concurrent_activity_tasks,
            max_concurrent_worker_sessions=announcement.max_concurrent_worker_sessions,
            capabilities=announcement.capabilities,
            workflow_command_contracts=dict(announcement.command_contracts),
            heartbeat_interval_seconds=announcement.heartbeat_interval_seconds,
            registered_at_ms=old.registered_at_ms if old is not None else now,
            updated_at_ms=now,
        )

    async def _read(self, namespace: str, worker_id: str) -> bytes:
        key = self._store.keys.registrations(namespace)
        return await self._store.call("HGET", key, worker_id, idempotent=True) or b""

    async def _load(self, namespace: str, worker_id: str) -> Registration | None:
        raw = await self._read(namespace, worker_id)
        return decode_registration(raw) if raw else None

    async def _swap(self, namespace: str, worker_id: str, expected: bytes, new: bytes) -> bytes | None:
        """None when the record now is ``new``, else the record that stands there instead."""
        keys = self._store.keys
        old = decode_registration(expected or new)
        applied, current = await self._store.run(
            "swap",
            [
                keys.registrations(namespace),
                keys.heartbeats(namespace),
                keys.vitals(namespace),
                keys.fleet(namespace, old.task_queue),
                keys.draining(namespace),
            ],
            [worker_id, expected, new, keys.changed_channel(), change_message(_FAMILY, namespace, worker_id)],
            idempotent=True,
        )
        if not applied:
            return bytes(current)
        self._cache.forget(namespace, worker_id)
        return None

    async def _beat(self, registration: Registration, vitals: Mapping[str, Any]) -> bool:
        """Stamp a heartbeat; False when the worker is not registered."""
        keys, namespace = self._store.keys, registration.namespace
        cohort = cohort_of(namespace, registration.task_queue, registration.build_id)
        now = await self._store.run(
            "beat",
            [
                keys.registrations(namespace),
                keys.heartbeats(namespace),
                keys.vitals(namespace),
                keys.fleet(namespace, registration.task_queue),
                keys.cohorts(namespace),
                keys.draining(namespace),
            ],
            [registration.worker_id, cohort.field, msgspec.json.encode(vitals) if vitals else b""],
            idempotent=True,
        )
        return now is not None

    async def _keep_receipt(self, namespace: str, token: str | None, receipt: Receipt) -> None:
        if token is None:
            return
        key = self._store.keys.receipt(_digest(namespace, receipt.worker_id, token))
        raw = msgspec.json.encode(receipt)
        await self._store.call("SET", key, raw, "EX", RECEIPT_SECONDS, idempotent=True)

    async def _earlier_receipt(self, namespace: str, worker_id: str, token: str) -> Receipt:
        receipt = await self._kept_receipt(namespace, worker_id, token)
        if receipt is None:
            raise Refused(
                "registration_token_mismatch",
                "The worker has registered again since this token was given out.",
                worker_id=worker_id,
            )
        return receipt

    async def _kept_receipt(self, namespace: str, worker_id: str, token: str) -> Receipt | None:
        key = self._store.keys.receipt(_digest(namespace, worker_id, token))
        raw = await self._store.call("GET", key, idempotent=True)
        return None if raw is None else msgspec.json.decode(raw, type=Receipt)


def _digest(namespace: str, worker_id: str, token: str) -> str:
    return hashlib.sha256("\0".join((namespace, worker_id, token)).encode()).hexdigest()


def _not_registered(worker_id: str, *, status: int) -> Refused:
    return Refused("worker_not_registered", "Worker not registered.", status=status, worker_id=worker_id)


def decode_registration(raw: bytes) -> Registration:
    """A stored registration."""
    return msgspec.json.decode(raw, type=Registration)
