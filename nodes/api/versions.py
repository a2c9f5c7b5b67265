"""Protocol versions and their request headers (server-behaviour 1.2, 1.3; sdk-wire 1.1)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from cluster.errors import Refused
from nodes.api.messages import Request
from nodes.api.routes import Plane

CONTROL_HEADER: Final = b"x-durable-workflow-control-plane-version"
CONTROL_VERSION: Final = "2"
WORKER_HEADER: Final = b"x-durable-workflow-protocol-version"
WORKER_VERSION: Final = "1.20"

_MAJOR, _MINOR = (int(part) for part in WORKER_VERSION.split("."))
_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


class VersionRefused(Refused):
    """The version header is missing or names a version this server does not speak (400)."""

    def __init__(self, plane: Plane, requested: str | None) -> None:
        name, supported = ("control_plane", CONTROL_VERSION)
        header = "X-Durable-Workflow-Control-Plane-Version"
        if plane is Plane.WORKER:
            name, supported = ("protocol", WORKER_VERSION)
            header = "X-Durable-Workflow-Protocol-Version"
        missing = requested is None
        super().__init__(
            f"{'missing' if missing else 'unsupported'}_{name}_version",
            f"The {header} header is required." if missing else f"The version in {header} is not supported.",
            status=400,
            supported_version=supported,
            requested_version=requested,
            remediation=f"Send {header}: {supported}.",
        )


@lru_cache(maxsize=64)
def accepts_worker_version(text: str) -> bool:
    """Same major version, minor version not newer than ours."""
    match = _VERSION.fullmatch(text)
    return match is not None and int(match[1]) == _MAJOR and int(match[2]) <= _MINOR


def check_version(plane: Plane, request: Request) -> None:
    """Raises VersionRefused unless the request carries a version of ``plane`` we speak."""
    worker = plane is Plane.WORKER
    requested = request.header(WORKER_HEADER if worker else CONTROL_HEADER)
    if not requested:
        raise VersionRefused(plane, None)
    if not (accepts_worker_version(requested) if worker else requested == CONTROL_VERSION):
        raise VersionRefused(plane, requested)
