"""The cluster record: what all nodes of a cluster must agree on, fixed by the first of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from cluster.errors import StartupError
from cluster.ids import MAX_PARTITIONS

if TYPE_CHECKING:
    from cluster.store.store import Store

SCHEMA: Final = 1
"""Version of the key layout and records. A change of it needs a migration."""

DEFAULT_PARTITIONS: Final = 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Facts of a cluster: ``partitions`` never changes, ``created_at_ms`` is Redis time."""

    schema: int
    partitions: int
    prefix: str
    created_at_ms: int
    created: bool = False
    """Whether this very call created the cluster."""


async def bootstrap(store: Store, wanted: int | None) -> ClusterRecord:
    """Create the cluster record or join the cluster that has one.

    ``wanted`` is the partition count somebody asked for, None when the setting was left at its
    default. ``store.keys`` may be provisional: only the key of the record is used. Raises
    StartupError when the record does not suit, StoreError when Redis cannot answer.
    """
    if wanted is not None and not 1 <= wanted <= MAX_PARTITIONS:
        raise StartupError(f"partitions must be between 1 and {MAX_PARTITIONS}, not {wanted}")
    prefix = store.keys.prefix
    reply = await store.run(
        "bootstrap",
        [store.keys.cluster()],
        [SCHEMA, DEFAULT_PARTITIONS if wanted is None else wanted, prefix],
        idempotent=True,
    )
    record = _decode(reply, store.keys.cluster())
    if record.schema > SCHEMA:
        raise StartupError(
            f"the cluster {prefix!r} has schema {record.schema}, this build knows up to {SCHEMA}: "
            "start a newer build or use another prefix"
        )
    if wanted is not None and wanted != record.partitions:
        raise StartupError(
            f"the cluster {prefix!r} was created with {record.partitions} partitions, which cannot change: "
            f"remove the setting (it says {wanted}) or use another prefix"
        )
    if wanted is None and record.partitions != DEFAULT_PARTITIONS:
        _log.warning("other_partitions_found", partitions=record.partitions, default=DEFAULT_PARTITIONS)
    return record


def _decode(reply: list[Any], key: str) -> ClusterRecord:
    created, schema, partitions, prefix, created_at = reply
    try:
        record = ClusterRecord(int(schema), int(partitions), prefix.decode(), int(created_at), created == 1)
    except (AttributeError, TypeError, ValueError) as error:
        raise StartupError(f"the cluster record {key!r} is damaged: {error}") from error
    if not 1 <= record.partitions <= MAX_PARTITIONS:
        raise StartupError(f"the cluster record {key!r} is damaged: {record.partitions} partitions")
    if record.schema < 1:
        raise StartupError(f"the cluster record {key!r} is damaged: schema {record.schema}")
    return record
