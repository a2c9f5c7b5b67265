"""Lists of runs over all partitions: every row once, newest first, whatever the page size."""

from __future__ import annotations

from random import Random

import pytest

from cluster.clock import Clock
from cluster.store.store import Store
from cluster.workflows import visibility
from cluster.workflows.engine import Engine, StartRequest
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.storage import RunCache
from cluster.workflows.visibility import RunView


class FrozenClock(Clock):
    """Shows the time it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ms = 1_800_000_000_000

    def now_us(self) -> int:
        return self.at_ms * 1000


def new_engine(store: Store, clock: Clock) -> Engine:
    return Engine(store, clock, RunCache(), leases=LeaseTimes(), limits=Limits(), random=Random(8))


async def everything(
    engine: Engine, page_size: int, *, workflow_type: str | None = None, query: str | None = None
) -> list[RunView]:
    """All rows, page by page; no page is longer than asked for."""
    rows: list[RunView] = []
    token: str | None = None
    for _ in range(2_000):
        page = await engine.list_runs(
            "ns", workflow_type=workflow_type, bucket=None, query=query, page_size=page_size, token=token
        )
        assert len(page.runs) <= page_size
        rows += page.runs
        token = page.next_page_token
        if token is None:
            return rows
    raise AssertionError("the list does not come to an end")


def places(rows: list[RunView]) -> list[tuple[int, str]]:
    return [(row.run.info.started_at_us // 1000, row.run.info.run_id) for row in rows]


@pytest.mark.parametrize("look_limit", [3, 2_000])
async def test_every_run_is_listed_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, look_limit: int
) -> None:
    monkeypatch.setattr(visibility, "LOOK_LIMIT", look_limit)
    clock, random = FrozenClock(), Random(6)
    engine = new_engine(store, clock)
    for number in range(60):
        # Many runs share a millisecond, and clocks of nodes differ: times do not only grow.
        clock.at_ms += random.choice([0, 0, 0, 1, -1])
        kind = f"Type{number % 3}"
        await engine.start(
            StartRequest("ns", kind, "q", workflow_id=f"w{number}", business_key=f"k{number % 5}")
        )
    await engine.start(StartRequest("other", "Type0", "q", workflow_id="elsewhere"))
    for page_size in (1, 4, 59, 60, 61):
        rows = await everything(engine, page_size)
        assert places(rows) == sorted(places(rows), reverse=True)
        assert {row.run.info.workflow_id for row in rows} == {f"w{number}" for number in range(60)}
        assert len(rows) == 60
    for page_size in (1, 7, 100):
        rows = await everything(engine, page_size, workflow_type="Type1")
        assert {row.run.info.workflow_id for row in rows} == {f"w{number}" for number in range(1, 60, 3)}
        assert len(rows) == 20
        rows = await everything(engine, page_size, query="k3", workflow_type="Type2")
        expected = {f"w{n}" for n in range(60) if n % 5 == 3 and n % 3 == 2}
        assert {row.run.info.workflow_id for row in rows} == expected
        assert len(rows) == len(expected)


async def test_runs_that_start_meanwhile_shift_nothing(store: Store) -> None:
    clock = FrozenClock()
    engine = new_engine(store, clock)
    for number in range(20):
        await engine.start(StartRequest("ns", "Flow", "q", workflow_id=f"w{number}"))
    token: str | None = None
    seen: list[str] = []
    while True:
        page = await engine.list_runs(
            "ns", workflow_type=None, bucket=None, query=None, page_size=3, token=token
        )
        seen += [row.run.info.workflow_id for row in page.runs]
        token = page.next_page_token
        if token is None:
            break
        clock.at_ms += 1
        await engine.start(StartRequest("ns", "Flow", "q", workflow_id=f"later{len(seen)}"))
    assert sorted(seen) == sorted(f"w{number}" for number in range(20))


async def test_a_page_is_short_only_at_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows fit among those a look sees, and with no empty page after the last row."""
    monkeypatch.setattr(visibility, "LOOK_LIMIT", 2)
    clock, random = FrozenClock(), Random(4)
    engine = new_engine(store, clock)
    for number in range(90):
        clock.at_ms += random.choice([0, 1])
        await engine.start(StartRequest("ns", f"T{number % 9}", "q", workflow_id=f"w{number}"))
    for page_size in (1, 3, 5, 9, 10, 11):
        seen: list[str] = []
        token: str | None = None
        while True:
            page = await engine.list_runs(
                "ns",
                workflow_type=None,
                bucket=None,
                query=None,
                page_size=page_size,
                token=token,
                keep=lambda view: view.run.info.workflow_type == "T4",
            )
            seen += [view.run.info.workflow_id for view in page.runs]
            token = page.next_page_token
            if token is None:
                break
            assert len(page.runs) == page_size
        assert len(page.runs) in range(1, page_size + 1)
        assert sorted(seen) == sorted(f"w{number}" for number in range(4, 90, 9))
