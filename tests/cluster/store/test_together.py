"""Several questions at once: all are asked, and one failure is raised as it is."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from cluster.errors import StoreUnavailable
from cluster.store.together import together


async def test_jobs_run_side_by_side() -> None:
    arrived, everybody = [], trio.Event()

    async def job(number: int) -> None:
        arrived.append(number)
        if len(arrived) == 3:
            everybody.set()
        await everybody.wait()

    await together(job, range(3))
    assert sorted(arrived) == [0, 1, 2]


async def test_a_failure_comes_alone_and_after_the_others_are_done() -> None:
    done = []

    async def job(number: int) -> None:
        if number == 1:
            raise StoreUnavailable("away")
        await trio.testing.wait_all_tasks_blocked()
        done.append(number)

    with pytest.raises(StoreUnavailable):
        await together(job, range(3))
    assert sorted(done) == [0, 2]
