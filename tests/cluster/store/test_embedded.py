"""The embedded Valkey keeps its data and guards its directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.errors import StartupError
from cluster.store.checks import check_server
from cluster.store.embedded import embedded
from cluster.store.store import open_store


async def test_data_survives_a_restart(tmp_path: Path) -> None:
    async with embedded(tmp_path / "data") as url, open_store(url) as store:
        await store.call("SET", "a", 1)
        first = store.generation
    async with embedded(tmp_path / "data") as url, open_store(url) as store:
        assert await store.call("GET", "a") == b"1"
        assert store.generation != first


async def test_it_passes_the_start_up_checks(tmp_path: Path) -> None:
    async with embedded(tmp_path) as url:
        assert await check_server(url) == []


async def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    async with embedded(tmp_path / ("x" * 120)) as url, open_store(url) as store:
        assert await store.call("PING") == b"PONG"


async def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with embedded(tmp_path):
        with pytest.raises(StartupError, match=r"a Valkey \(pid \d+\) already runs on"):
            async with embedded(tmp_path):
                pass


async def test_an_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="choose another one"):
        async with embedded(tmp_path / "file" / "data"):
            pass


async def test_a_server_that_cannot_start_is_reported(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").touch()
    with pytest.raises(StartupError, match="ended at once"):
        async with embedded(tmp_path):
            pass


async def test_the_server_runs_in_its_own_session(tmp_path: Path) -> None:
    async with embedded(tmp_path):
        pid = int((tmp_path / "lock").read_text())
        assert os.getsid(pid) == pid != os.getsid(0)
