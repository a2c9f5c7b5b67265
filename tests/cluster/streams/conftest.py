"""Two nodes with streams over each kind of server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cluster.streams.lab import StreamLab, open_stream_lab


@pytest.fixture
async def lab(valkey_url: str, prefix: str) -> AsyncIterator[StreamLab]:
    async with open_stream_lab(valkey_url, prefix) as opened:
        yield opened
