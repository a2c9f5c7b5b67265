"""Where the Lua files come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.store import scripts
from cluster.store.store import open_store


async def test_a_node_reads_its_scripts_before_it_needs_them(
    redis_url: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade puts other files there while it runs; half of each release would understand nothing."""
    scripts.script.cache_clear()
    names = scripts.names()
    assert names
    async with open_store(redis_url, prefix=prefix):
        monkeypatch.setattr(scripts, "_LUA", tmp_path)
        for name in names:
            assert scripts.script(name).source
