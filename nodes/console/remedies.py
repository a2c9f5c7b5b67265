"""What a person can do about a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BY_REASON: Final = {
    "unauthorized": "Log in with a token that this server accepts.",
    "forbidden": "Log in with a token of a role that may do this, or ask an administrator.",
    "stale_form": "Go back, load the page again, and send the form anew.",
    "cross_site_request": "Open the console itself and do it there.",
    "namespace_not_found": "Choose another namespace, or create this one.",
    "instance_not_found": "Check the id and the namespace; closed runs go when their retention is over.",
    "run_not_found": "Check the id and the namespace; closed runs go when their retention is over.",
    "run_not_active": "The run is over. A new one can be started.",
    "run_not_closed": "Wait until the run is closed, or end it first.",
    "historical_run_command_rejected": "Open the current run of this workflow, and do it there.",
    "flow_closed": "The flow is over. A new one can be started.",
    "query_worker_unavailable": "Start a worker of the run's task queue, then ask again.",
    "query_worker_timeout": "Look whether the workers of the run's task queue are busy, then ask again.",
    "query_task_queue_full": "Wait until the queries that stand in line are answered.",
    "rpc_unavailable": "Start a worker that serves this RPC, then call again.",
    "store_unavailable": "The server heals by itself once Redis is back; then load the page again.",
    "store_outcome_unknown": "Look whether it was done before you do it again.",
    "store_full": "Give Redis more memory, or wait until finished runs have gone.",
}
_BY_STATUS: Final = {
    400: "Go back, and load the page again.",
    404: "Check the address. What it names may have gone since the page before was loaded.",
    409: "Load the page again to see how things stand now.",
    422: "Go back, correct the fields, and send the form again.",
    429: "Wait a moment, then try again.",
    500: "Look into the log of the node for the time of this request.",
    503: "Wait a moment, then load the page again.",
}


def remedy(status: int, reason: str, body: Mapping[str, Any]) -> str:
    """A sentence: the API's own remedy if it has one, else by reason, else by status."""
    own = body.get("remediation")
    if isinstance(own, str) and own:
        return own
    return _BY_REASON.get(reason) or _BY_STATUS.get(status, "Go back, and try again.")
