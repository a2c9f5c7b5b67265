"""Options of a worker, checked and with their defaults filled in (R19, R67 to R73)."""

from __future__ import annotations

import base64
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from cluster.queues.slot_kind import SlotKind
from nodes.worker.errors import WorkerConfigurationError

MOST_FLOW_TYPES: Final = 256
LONGEST_WORKER_ID: Final = 256
"""Characters."""
RANDOM_CHARACTERS: Final = 8


@dataclass(frozen=True, slots=True)
class WorkerConfiguration:
    """What a worker runs with. Times in seconds."""

    urls: tuple[str, ...]
    worker_id: str
    task_limit: int
    reserved_rpc_slots: int
    stop_drain_timeout: float
    stop_on_permanent_stream_rejection: bool
    namespace: str
    warns_about_rpcs: bool
    """There is one slot and nobody said that this is what is wanted (R71)."""

    @property
    def slot_kinds(self) -> list[SlotKind]:
        """One entry per slot: the shared ones, then the reserved ones."""
        shared = self.task_limit - self.reserved_rpc_slots
        return [SlotKind.STEP_AND_RPC] * shared + [SlotKind.RPC_ONLY] * self.reserved_rpc_slots


def configure(
    url: str | Sequence[str],
    flow_types: Sequence[str],
    *,
    worker_id: str | None,
    max_concurrent_tasks: int | None,
    reserved_rpc_slots: int | None,
    stop_drain_timeout: float,
    stop_on_permanent_stream_rejection: bool,
    namespace: str,
) -> WorkerConfiguration:
    """Check everything. Raises WorkerConfigurationError."""
    limit = (os.cpu_count() or 1) if max_concurrent_tasks is None else max_concurrent_tasks
    if limit < 1:
        raise WorkerConfigurationError(f"max_concurrent_tasks must be 1 or more, not {limit}")
    reserve = reserved_rpc_slots
    if reserve is None:
        reserve = 1 if limit > 1 else 0
    if not 0 <= reserve < limit:
        raise WorkerConfigurationError(
            "reserved_rpc_slots must be 0 or more and less than max_concurrent_tasks "
            f"({limit}), not {reserve}"
        )
    if not stop_drain_timeout > 0:
        raise WorkerConfigurationError("stop_drain_timeout must be more than 0 seconds")
    _check_flow_types(flow_types)
    return WorkerConfiguration(
        urls=checked_urls(url),
        worker_id=new_worker_id() if worker_id is None else _checked_id(worker_id, flow_types),
        task_limit=limit,
        reserved_rpc_slots=reserve,
        stop_drain_timeout=stop_drain_timeout,
        stop_on_permanent_stream_rejection=stop_on_permanent_stream_rejection,
        namespace=namespace,
        warns_about_rpcs=limit == 1 and reserved_rpc_slots is None,
    )


def new_worker_id() -> str:
    """An id for this process and this start of it only."""
    random = base64.b32encode(secrets.token_bytes(5)).decode().lower()[:RANDOM_CHARACTERS]
    host = socket.gethostname().replace("/", "-")[:100]
    return f"{host}-{os.getpid()}-{random}"


def _checked_id(worker_id: str, flow_types: Sequence[str]) -> str:
    if not worker_id or len(worker_id) > LONGEST_WORKER_ID:
        raise WorkerConfigurationError(f"worker_id must have 1 to {LONGEST_WORKER_ID} characters")
    if "/" in worker_id:
        raise WorkerConfigurationError("worker_id must not contain a slash")
    if worker_id in flow_types:
        raise WorkerConfigurationError(f"worker_id {worker_id!r} is the name of one of its flows")
    return worker_id


def _check_flow_types(flow_types: Sequence[str]) -> None:
    if not flow_types:
        raise WorkerConfigurationError("a worker needs at least one flow")
    if len(flow_types) > MOST_FLOW_TYPES:
        raise WorkerConfigurationError(f"a worker may serve {MOST_FLOW_TYPES} flows")
    if len(set(flow_types)) < len(flow_types):
        raise WorkerConfigurationError("two flows have the same name")


def checked_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """One or more base URLs, without a slash at the end. Raises WorkerConfigurationError."""
    urls = (url,) if isinstance(url, str) else tuple(url)
    if not urls:
        raise WorkerConfigurationError("the URL of a node is missing")
    for one in urls:
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WorkerConfigurationError(f"{one!r} is no http:// or https:// URL")
    return tuple(one.rstrip("/").removesuffix("/api") for one in urls)
