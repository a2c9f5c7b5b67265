"""When a worker comes back to nodes whose connections end: in virtual time, with connections of a script."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
import trio.testing

from cluster.queues.slot_kind import SlotKind
from nodes.worker import line as line_module
from nodes.worker.backoff import pause_before
from nodes.worker.carrier import CarrierLost
from nodes.worker.connection import Host
from nodes.worker.credentials import Credential
from nodes.worker.line import STEADY_SECONDS, Line

TRIES = 6


class _Host:
    stopping = False


class _Credential:
    async def headers(self) -> dict[str, str]:
        return {}


class _Connection:
    """Registers its slots, lasts for ``lasts`` seconds and is lost; the last one stops the worker."""

    lasts = 0.0
    began: list[float]
    host: _Host

    def __init__(self, _host: Host, url: str, *_more: Any) -> None:
        self.url = url
        self.ended = self.leaving = False
        self.welcome = None
        self.registered_any = True

    async def serve(self, _headers: dict[str, str]) -> None:
        self.began.append(trio.current_time())
        await trio.sleep(self.lasts)
        self.host.stopping = len(self.began) == TRIES
        raise CarrierLost("the node died")


async def _pauses(monkeypatch: pytest.MonkeyPatch, lasts: float) -> list[float]:
    """Seconds between the end of each connection and the next one."""
    host, began = _Host(), list[float]()
    for name, value in {"lasts": lasts, "began": began, "host": host}.items():
        monkeypatch.setattr(_Connection, name, value, raising=False)
    monkeypatch.setattr(line_module, "Connection", _Connection)
    monkeypatch.setattr(random, "random", lambda: 1.0)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    urls = ["http://a", "http://b"]
    line = Line(
        cast(Host, host), [SlotKind.STEP_AND_RPC], urls, 0, cast(Credential, _Credential()), "default"
    )
    with trio.fail_after(3600):
        await line.run()
    return [later - sooner - lasts for sooner, later in pairwise(began)]


async def test_a_worker_whose_nodes_die_soon_after_each_connect_backs_off(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """That they took its slots first is no reason to come back at once, again and again."""
    pauses = await _pauses(monkeypatch, STEADY_SECONDS / 2)
    assert pauses == pytest.approx([pause_before(tries) for tries in range(1, TRIES)])
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]


async def test_a_worker_comes_back_soon_when_its_connection_had_worked_for_a_while(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    pauses = await _pauses(monkeypatch, 2 * STEADY_SECONDS)
    assert pauses == pytest.approx([pause_before(1)] * (TRIES - 1))
