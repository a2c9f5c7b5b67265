"""Memo and search attributes: small data about a run that its workflow changes on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster import payloads
from cluster.errors import ValidationFailed
from cluster.workflows.command_records import UpsertMemo, UpsertSearchAttributes
from cluster.workflows.decision import Decision
from cluster.workflows.events import EventType
from cluster.workflows.failures import envelope


def upsert_memo(decision: Decision, command: UpsertMemo, step: int, task_id: str) -> None:
    """Merges entries into the memo; the event carries them and the whole, both as payloads.

    Raises ValidationFailed when a value that stood in the memo before cannot be encoded.
    """
    merged = _merged(decision.info.memo, command.values)
    try:
        whole = payloads.encode(_sorted(merged))
    except payloads.PayloadError as error:
        raise ValidationFailed({"memo": [f"The memo cannot be encoded: {error}."]}) from None
    decision.set_info(memo=merged)
    payload = {"sequence": step, "entries": envelope(command.entries), "merged": envelope(whole)}
    decision.record(EventType.MEMO_UPSERTED, payload, workflow_task_id=task_id)


def upsert_search_attributes(
    decision: Decision, command: UpsertSearchAttributes, step: int, task_id: str
) -> None:
    """Merges search attributes."""
    merged = _merged(decision.info.search_attributes, command.attributes)
    decision.set_info(search_attributes=merged)
    payload = {"sequence": step, "attributes": command.attributes, "merged": merged}
    decision.record(EventType.SEARCH_ATTRIBUTES_UPSERTED, payload, workflow_task_id=task_id)


def _merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**old, **changes}
    return {name: merged[name] for name in sorted(merged) if merged[name] is not None}


def _sorted(value: Any) -> Any:
    """``value`` with the keys of all maps in order, so that equal memos have equal payloads."""
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
