"""What handlers the workers of a queue declare for a workflow type (sdk-wire 2.1).

A name is refused only when it is certain that nobody handles it: every fresh worker that runs the
type has declared its handlers, and none of them has this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cachetools import TTLCache

from cluster.fleet import Fleet, WorkerStatus
from cluster.signatures import Signature, faults_of_all, signature
from cluster.workers import Registration

REMEMBERED_SECONDS: Final = 1.0
REMEMBERED_QUEUES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Handlers:
    """Names of the handlers of one workflow type."""

    signals: frozenset[str]
    updates: frozenset[str]
    validators: frozenset[str]
    """Updates that a worker has to approve before they are accepted."""
    signatures: Mapping[tuple[str, str], tuple[Signature | None, ...]] = field(default_factory=dict)
    """What each worker says of the arguments of a ``signal``, ``update`` or ``query``, by its name."""

    def faults(self, kind: str, name: str, arguments: Any) -> list[str]:
        """Why no worker would take ``arguments``."""
        return faults_of_all(self.signatures.get((kind, name), ()), arguments)


class Contracts:
    """Reads declarations; what a node knows of a queue is at most a second old."""

    def __init__(self, fleet: Fleet, now: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._known: TTLCache[tuple[str, str], list[Registration]] = TTLCache(
            REMEMBERED_QUEUES, REMEMBERED_SECONDS, timer=now
        )

    async def handlers(self, namespace: str, task_queue: str, workflow_type: str) -> Handlers | None:
        """The declared handlers, or None when not everybody declared them. May raise StoreError."""
        registrations = self._known.get((namespace, task_queue))
        if registrations is None:
            views = await self._fleet.workers(namespace, task_queue=task_queue)
            registrations = [view.registration for view in views if view.status is not WorkerStatus.STALE]
            self._known[namespace, task_queue] = registrations
        return declared(registrations, workflow_type)


def declared(registrations: Sequence[Registration], workflow_type: str) -> Handlers | None:
    """The union of what all workers that run ``workflow_type`` declare; None if one declares nothing."""
    able = [each for each in registrations if workflow_type in each.supported_workflow_types]
    declarations = [each.workflow_command_contracts.get(workflow_type) for each in able]
    contracts = [contract for contract in declarations if isinstance(contract, dict)]
    if not contracts or len(contracts) < len(able):
        return None
    return Handlers(
        signals=_names(contracts, "signals"),
        updates=_names(contracts, "updates"),
        validators=_names(contracts, "update_validators"),
        signatures=_signatures(contracts),
    )


def _signatures(
    contracts: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], tuple[Signature | None, ...]]:
    found: dict[tuple[str, str], list[Signature | None]] = {}
    for kind in ("signal", "update", "query"):
        for contract in contracts:
            listed = contract.get(f"{kind}_contracts")
            for each in listed if isinstance(listed, list) else ():
                name = each.get("name") if isinstance(each, Mapping) else None
                if isinstance(name, str):
                    found.setdefault((kind, name), []).append(signature(each))
    # A worker that names the handler and says no more takes anything.
    return {key: tuple(each) for key, each in found.items() if len(each) == len(contracts)}


def _names(contracts: Sequence[Mapping[str, Any]], field: str) -> frozenset[str]:
    lists = (contract.get(field) for contract in contracts)
    return frozenset(
        name for names in lists if isinstance(names, list) for name in names if isinstance(name, str)
    )
