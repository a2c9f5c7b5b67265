"""Versions of the stream protocol that a node speaks (docs/protocol.md 2)."""

from __future__ import annotations

from typing import Final

VERSION: Final = 1
VERSIONS: Final = f"{VERSION}-{VERSION}"
"""Interval, as it stands in headers."""
