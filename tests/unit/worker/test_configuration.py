"""What a worker cannot be made with (R19, R67 to R73)."""

from __future__ import annotations

import os
from typing import Any

import pytest

from cluster.queues.slot_kind import SlotKind
from headrace import Decision, Flow, StepContext, Worker, WorkerConfigurationError, complete, step
from nodes.worker.configuration import new_worker_id


class Shop(Flow, name="shop"):
    @step
    async def work(self, ctx: StepContext) -> Decision:
        return complete()


class Other(Flow, name="shop"):
    @step
    async def work(self, ctx: StepContext) -> Decision:
        return complete()


def make(**options: Any) -> Worker:
    fields: dict[str, Any] = {"url": "http://127.0.0.1:1", "flows": [Shop], **options}
    return Worker(**fields)


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrent_tasks": 0},
        {"max_concurrent_tasks": -1},
        {"worker_id": "a/b"},
        {"worker_id": "shop"},
        {"worker_id": ""},
        {"worker_id": "ü" * 257},
        {"stop_drain_timeout": 0},
        {"stop_drain_timeout": -1},
        {"max_concurrent_tasks": 4, "reserved_rpc_slots": 4},
        {"max_concurrent_tasks": 4, "reserved_rpc_slots": -1},
        {"max_concurrent_tasks": 1, "reserved_rpc_slots": 1},
        {"flows": []},
        {"flows": [Shop, Other]},
        {"url": "localhost:8080"},
        {"url": "redis://localhost"},
        {"url": []},
        {"token": "a", "token_file": "b"},
        {"token": " "},
    ],
)
async def test_r19_r72_construction_errors(options: dict[str, Any]) -> None:
    with pytest.raises(WorkerConfigurationError):
        make(**options)


async def test_r22_a_worker_id_may_have_256_characters_however_many_bytes() -> None:
    assert make(worker_id="ü" * 256).worker_id == "ü" * 256


async def test_r19_a_worker_id_differs_after_each_start() -> None:
    ids = {new_worker_id() for _ in range(50)}
    assert len(ids) == 50
    assert not any("/" in worker_id for worker_id in ids)
    assert make().worker_id != make().worker_id


async def test_r67_the_cpu_count_is_the_default() -> None:
    assert make().configuration.task_limit == os.cpu_count()


@pytest.mark.parametrize(
    ("limit", "reserve", "slots"),
    [
        (1, None, (1, 0)),
        (2, None, (1, 1)),
        (8, None, (7, 1)),
        (8, 0, (8, 0)),
        (8, 2, (6, 2)),
        (1, 0, (1, 0)),
    ],
)
async def test_r69_r70_r73_slots(limit: int, reserve: int | None, slots: tuple[int, int]) -> None:
    kinds = make(max_concurrent_tasks=limit, reserved_rpc_slots=reserve).configuration.slot_kinds
    assert (kinds.count(SlotKind.STEP_AND_RPC), kinds.count(SlotKind.RPC_ONLY)) == slots


@pytest.mark.parametrize(("limit", "reserve", "warns"), [(1, None, True), (1, 0, False), (2, None, False)])
async def test_r71_one_slot_that_nobody_asked_for_is_worth_a_warning(
    limit: int, reserve: int | None, warns: bool
) -> None:
    made = make(max_concurrent_tasks=limit, reserved_rpc_slots=reserve).configuration
    assert made.warns_about_rpcs is warns
