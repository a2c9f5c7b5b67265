"""Who asked for what: the context that is kept with every command (server-behaviour 2.4).

It is kept beside the run or in a schedule's history, never sent to workers, and holds no secret:
of the headers only the two ids, the client's name and, where a trusted gateway sends them, the four
that say on whose behalf it asks.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import orjson

from cluster.settings.schema import AuthDriver, Settings
from nodes.api.auth import Principal
from nodes.api.call import Call
from nodes.api.messages import Request

LONGEST_TEXT: Final = 512
"""Characters kept of anything a client may choose freely."""

_CALLER: Final = {"type": "server", "label": "Standalone Server"}


def command_context(call: Call, command: str, **ids: str | None) -> dict[str, Any]:
    """The context of ``command`` (``signal``, ``create`` ...). ``ids`` name what it is for."""
    settings, request = call.node.settings, call.request
    request_id = _header(request, "x-request-id")
    return {
        "caller": _caller(settings, request),
        "auth": _auth(settings, call.principal, request),
        "request": {
            "method": request.method,
            "path": _short(request.raw_path.decode("ascii", "replace")),
            "ip": request.client,
            "user_agent": _header(request, "user-agent"),
            "request_id": request_id,
            "correlation_id": _header(request, "x-correlation-id"),
            "fingerprint": _fingerprint(call),
        },
        "server": {
            "namespace": call.namespace,
            **{name: value for name, value in ids.items() if value is not None},
            "command": command,
            "metadata": {"request_id": request_id},
        },
    }


def _caller(settings: Settings, request: Request) -> dict[str, str]:
    if not settings.trust_forwarded_attribution_headers:
        return _CALLER
    return {
        "type": _header(request, settings.caller_type_header) or _CALLER["type"],
        "label": _header(request, settings.caller_label_header) or _CALLER["label"],
    }


def _auth(settings: Settings, principal: Principal | None, request: Request) -> dict[str, Any]:
    if principal is None or principal.method == AuthDriver.NONE:
        auth: dict[str, Any] = {"status": "not_configured", "method": AuthDriver.NONE.value}
    else:
        auth = {"status": "authorized", "method": str(principal.method)}
    if settings.trust_forwarded_attribution_headers:
        auth["status"] = _header(request, settings.auth_status_header) or auth["status"]
        auth["method"] = _header(request, settings.auth_method_header) or auth["method"]
    if principal is not None:
        roles = [role.value for role in principal.all_roles]
        auth |= {
            "role": principal.role.value,
            "roles": roles,
            "principal": {
                "subject": principal.subject,
                "roles": roles,
                "tenant": principal.tenant,
                "claims": dict(principal.claims),
                "legacy_full_access": principal.full_access,
            },
        }
    return auth


def _fingerprint(call: Call) -> str:
    """Equal for requests that ask the same under the same ids."""
    request = call.request
    parts = (
        request.method.encode(),
        request.raw_path,
        orjson.dumps(call.document, option=orjson.OPT_SORT_KEYS),
        (_header(request, "x-request-id") or "").encode(),
        (_header(request, "x-correlation-id") or "").encode(),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _header(request: Request, name: str) -> str | None:
    value = request.header(name.lower().encode())
    return _short(value) if value else None


def _short(text: str) -> str:
    return text[:LONGEST_TEXT]
