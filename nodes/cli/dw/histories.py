"""``dw workflow:history`` and ``workflow:history-export``."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from nodes.cli.dw.arguments import RunArgument, WorkflowId, argument, option
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode
from nodes.cli.dw.views import Result, as_json, document, table

PAGE: Final = 1000
WAIT_SECONDS: Final = 60.0
"""The server answers a request that waits for a new event within this time."""
PAUSE_SECONDS: Final = 1.0
_COLUMNS = ("sequence", "event_type", "timestamp")


@command(
    "workflow:history",
    table("events", " ".join(_COLUMNS)),
    json="workflow_id run_id events",
    examples=(
        "dw workflow:history order-1001",
        "dw workflow:history order-1000 --follow",
        "dw workflow:history order-1001 $RUN --page-size 50 --output jsonl",
    ),
)
def history(
    dw: Dw,
    workflow_id: WorkflowId,
    run_id: RunArgument = None,
    follow: Annotated[bool, option("--follow", "-f", text="show new events until the run is closed")] = False,
    page_size: Annotated[
        int, option("--page-size", metavar="N", text="events asked for at once", min=1, max=1000)
    ] = PAGE,
) -> Result | None:
    """Show all events of a run; with --follow also those to come, one a line."""
    run_id = run_id or dw.get("workflows", workflow_id)["run_id"]
    path = ("workflows", workflow_id, "runs", run_id, "history")
    if not follow:
        events: list[Any] = []
        page: Result = {}
        for page in _pages(dw, path, page_size):
            events += page.get("events") or []
        return page | {"events": events}
    for page in _until_closed(dw, path, page_size):
        for event in page.get("events") or []:
            dw.screen.piece(event, _COLUMNS)
    return None


def _pages(dw: Dw, path: tuple[str, ...], size: int) -> Iterator[Result]:
    token: str | None = None
    while True:
        page = dw.get(*path, query={"page_size": size, "next_page_token": token})
        yield page
        token = page.get("next_page_token")
        if not token:
            return


def _until_closed(dw: Dw, path: tuple[str, ...], size: int) -> Iterator[Result]:
    """Pages of events not seen before, until the run is closed.

    The server holds a request until there is a new event; one that does not is asked once a second.
    """
    seen, is_closed = 0, False
    while True:
        asked = time.monotonic()
        # A history's page token is base64 of the last sequence (server-behaviour 1.7).
        token = b64encode(str(seen).encode()).decode() if seen else None
        query = {"page_size": size, "wait_new_event": 1, "next_page_token": token}
        page = dw.get(*path, query=query, patience=WAIT_SECONDS)
        if page.get("events"):
            seen = page["events"][-1]["sequence"]
            yield page
            continue
        if is_closed:
            return
        is_closed = bool(dw.get(*path[:-1]).get("is_terminal"))
        if not is_closed and time.monotonic() - asked < PAUSE_SECONDS:
            time.sleep(PAUSE_SECONDS)


@command(
    "workflow:history-export",
    document(),
    examples=(
        "dw workflow:history-export order-1001 $RUN",
        "dw workflow:history-export order-1001 $RUN -o run.json",
    ),
)
def history_export(
    dw: Dw,
    workflow_id: WorkflowId,
    run_id: Annotated[str, argument("RUN_ID", "the run")],
    file: Annotated[Path | None, option("--to", "-o", metavar="FILE", text="write it there")] = None,
) -> Result:
    """Export a run's history as a document that can be verified elsewhere."""
    bundle = dw.get("workflows", workflow_id, "runs", run_id, "history", "export")
    if file is None:
        return bundle
    try:
        file.write_text(as_json(bundle) + "\n")
    except OSError as error:
        raise CallFailed(f"cannot write {file}: {error}", ExitCode.FAILURE) from error
    return {"file": str(file), "checksum": bundle.get("integrity", {}).get("checksum")}
