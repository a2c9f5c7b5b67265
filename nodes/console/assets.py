"""Files that never change under their name: the content's hash is part of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from nodes.api.messages import Request, Response

_TYPES: Final = {
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_FOREVER: Final = b"public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file."""

    name: str
    content: bytes
    content_type: bytes
    digest: str

    @property
    def path(self) -> str:
        """Where it is served, relative to the console."""
        return f"static/{self.digest}/{self.name}"


def _load() -> Mapping[str, Asset]:
    found = {}
    for entry in files("nodes.console").joinpath("static").iterdir():
        content_type = _TYPES.get(entry.name.rpartition(".")[2])
        if content_type is not None:
            content = entry.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[entry.name] = Asset(entry.name, content, content_type, digest)
    return found


ASSETS: Final = _load()


def serve(request: Request, digest: str, name: str) -> Response:
    """A static file, for ever if ``digest`` is its own; 304 for who has it; 404 when there is none."""
    asset = ASSETS.get(name)
    if asset is None:
        return Response(404, [(b"content-type", b"text/plain")], b"There is no such file.\n")
    tag = f'"{asset.digest}"'
    headers = [
        (b"etag", tag.encode()),
        (b"cache-control", _FOREVER if digest == asset.digest else b"no-cache"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if tag in request.header_list(b"if-none-match"):
        return Response(304, headers)
    return Response(200, [(b"content-type", asset.content_type), *headers], asset.content)
