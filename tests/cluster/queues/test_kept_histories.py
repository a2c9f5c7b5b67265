"""``claim.lua`` and processes that keep histories: who gets a task, and how much of a history is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.ids import TaskKind
from cluster.queues.claims import ClaimReply, ClaimWaiter
from cluster.workflows.kept_histories import ANCHOR, stored
from cluster.workflows.records import KeptHistory
from tests.cluster.queues.lab import Lab, queue_name

QUEUE = queue_name(kind=TaskKind.WORKFLOW)
BUILD = queue_name(kind=TaskKind.WORKFLOW, marker="b1")
FAR_MS = 1 << 52
PAGE = 100
"""Events of a page that a lab asks for."""


def waiter(name: str, *types: str, markers: tuple[str, ...] = ("",)) -> ClaimWaiter:
    return ClaimWaiter(name, f"token-{name}", frozenset(types), markers, registration=f"process-{name}")


async def task_kept_by(
    lab: Lab, name: str, *, events: int = 2 * PAGE, until_ms: int = FAR_MS, **place: Any
) -> str:
    """A ready workflow task of a run whose history ``name`` keeps."""
    run_id = await lab.new_run()
    kept = KeptHistory(registration=f"process-{name}" if name else "", events=events, until_ms=until_ms)
    await lab.store.call("HSET", lab.store.keys.run(0, run_id), "sk", stored(kept))
    await lab.store.call("RPUSH", lab.store.keys.history(0, run_id), *range(1, events + 4))
    return await lab.enqueue(run_id=run_id, **{"queue": QUEUE, **place})


def who(reply: ClaimReply, waiters: list[ClaimWaiter]) -> dict[str, str]:
    """The owner of each task handed out."""
    return {claim.task_id: waiters[claim.waiter].owner for claim in reply.claims}


async def test_a_task_goes_to_who_keeps_the_history(lab: Lab) -> None:
    of_c, of_b, of_nobody = [await task_kept_by(lab, name) for name in ("c", "b", "")]
    waiters = [waiter("a"), waiter("b"), waiter("c")]
    reply = await lab.ask(waiters, queues=[QUEUE])
    assert who(reply, waiters) == {of_c: "c", of_b: "b", of_nobody: "a"}
    for claim in reply.claims:
        record = await lab.record(claim.task_id)
        owner = waiters[claim.waiter].owner
        assert (record["o"], record["k"], record["rg"]) == (owner, f"token-{owner}", f"process-{owner}")
    await lab.audit()


async def test_a_process_gets_one_task_for_each_poll(lab: Lab) -> None:
    first, second = await task_kept_by(lab, "b"), await task_kept_by(lab, "b")
    waiters = [waiter("a"), waiter("b")]
    assert who(await lab.ask(waiters, queues=[QUEUE]), waiters) == {first: "b", second: "a"}
    await lab.audit()


async def test_a_poll_that_was_sent_before_is_given_no_task_that_another_found(lab: Lab) -> None:
    task = await task_kept_by(lab, "b")
    waiters = [waiter("a"), replace(waiter("b"), note_ms=60_000)]
    await lab.store.call("SET", lab.store.keys.poll("token-b"), "1")
    reply = await lab.ask(waiters, queues=[QUEUE])
    assert who(reply, waiters) == {task: "a"}
    assert reply.sent_before == (1,)


async def test_nobody_waits_for_who_is_not_there(lab: Lab) -> None:
    task = await task_kept_by(lab, "gone")
    waiters = [waiter("a"), waiter("b")]
    assert who(await lab.ask(waiters, queues=[QUEUE]), waiters) == {task: "a"}


@pytest.mark.parametrize("other", [waiter("b", "u"), waiter("b", "t", markers=())])
async def test_who_may_not_take_a_task_is_not_given_it(lab: Lab, other: ClaimWaiter) -> None:
    task = await task_kept_by(lab, "b", type_name="t")
    waiters = [waiter("a", "t"), other]
    assert who(await lab.ask(waiters, queues=[QUEUE]), waiters) == {task: "a"}


async def test_builds_stay_apart(lab: Lab) -> None:
    task = await task_kept_by(lab, "b", queue=BUILD)
    waiters = [waiter("a", markers=("", "b1")), waiter("b"), waiter("c", markers=("", "b1"))]
    assert who(await lab.ask(waiters, queues=[QUEUE, BUILD]), waiters) == {task: "a"}


async def test_a_lost_reply_finds_the_task_with_the_process_that_got_it(lab: Lab) -> None:
    task = await task_kept_by(lab, "b")
    waiters = [waiter("a"), waiter("b")]
    await lab.ask(waiters, queues=[QUEUE])
    again = [
        ClaimWaiter(w.owner, w.token, w.types, w.markers, held_only=True, registration=w.registration)
        for w in waiters
    ]
    assert who(await lab.ask(again, queues=[QUEUE]), again) == {task: "b"}


@pytest.mark.parametrize(
    ("name", "kept", "read"),
    [
        ("a", {}, ANCHOR),
        ("b", {}, PAGE),
        ("", {}, PAGE),
        ("a", {"until_ms": 1}, PAGE),
        ("a", {"events": PAGE}, PAGE),
        ("a", {"events": PAGE + 1}, ANCHOR),
    ],
)
async def test_how_much_of_a_history_is_read(lab: Lab, name: str, kept: dict[str, int], read: int) -> None:
    await task_kept_by(lab, name, **kept)
    (claim,) = (await lab.ask([waiter("a")], queues=[QUEUE])).claims
    length, events = claim.extra[3:]
    assert length == kept.get("events", 2 * PAGE) + 3
    assert [int(event) for event in events] == list(range(1, read + 1))


async def test_a_worker_without_a_registration_keeps_nothing(lab: Lab) -> None:
    await task_kept_by(lab, "")
    plain = ClaimWaiter("a", "token", frozenset())
    (claim,) = (await lab.ask([plain], queues=[QUEUE])).claims
    assert len(claim.extra[4]) == PAGE
