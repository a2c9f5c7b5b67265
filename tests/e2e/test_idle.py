"""Workers without work cost next to nothing, however many they are."""

from __future__ import annotations

from pathlib import Path

import trio

from tests.cluster_processes import make_cluster
from tests.idle import parked_polls, total

POLLS = 200
SECONDS = 3.0
MOST_COMMANDS_A_SECOND = 50


async def test_parked_polls_ask_the_store_for_nothing(valkey_url: str, prefix: str, tmp_path: Path) -> None:
    """The nodes look once a second for all polls together, and renew what they hold."""
    with make_cluster(2, valkey_url, tmp_path, {"HEADRACE_KEY_PREFIX": prefix}) as cluster:
        await cluster.start()
        async with parked_polls(cluster.nodes, POLLS, queues=10):
            before = await total(cluster.nodes, "headrace_store_commands_total")
            began = trio.current_time()
            await trio.sleep(SECONDS)
            sent = await total(cluster.nodes, "headrace_store_commands_total") - before
            assert sent / (trio.current_time() - began) < MOST_COMMANDS_A_SECOND
