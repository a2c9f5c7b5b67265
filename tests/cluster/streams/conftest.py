"""Two nodes with streams over each kind of server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from nodes.streams import audit
from tests.cluster.nodes import NEVER
from tests.cluster.streams.lab import StreamLab, open_stream_lab


@pytest.fixture
def no_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes to light was told, not found by looking again now and then."""
    monkeypatch.setattr(audit, "LOOK_SECONDS", NEVER)


@pytest.fixture
async def lab(valkey_url: str, prefix: str) -> AsyncIterator[StreamLab]:
    async with open_stream_lab(valkey_url, prefix) as opened:
        yield opened
