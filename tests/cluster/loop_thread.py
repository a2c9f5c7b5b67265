"""A trio loop in a thread, for tests that drive a store from plain functions."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from cluster.store.store import Store, open_store

T = TypeVar("T")


class LoopThread:
    """Runs async functions in the loop that holds an open store."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._hold_store,), daemon=True)
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self.store: Store

    async def _hold_store(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        async with open_store(self._url) as self.store:
            self._ready.set()
            await self._stop.wait()

    def call(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the store did not open")

    def stop(self) -> None:
        self._token.run_sync_soon(self._stop.set)
        self._thread.join(10)


@contextmanager
def run_loop(url: str) -> Iterator[LoopThread]:
    loop = LoopThread(url)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
