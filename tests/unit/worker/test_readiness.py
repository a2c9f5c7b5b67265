"""The readiness state machine, R1 to R17, without any worker."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from cluster.queues.slot_kind import SlotKind
from nodes.worker.errors import PullRegistrationError, StreamRejected, WorkerError, WorkerStopped
from nodes.worker.readiness import Readiness

SHARED, RESERVED = SlotKind.STEP_AND_RPC, SlotKind.RPC_ONLY
NO = StreamRejected("unauthorized", "No.", status=401)


def outcome(readiness: Readiness) -> str:
    """What a wait gives now: ready, waiting, or the name of an exception."""

    async def look() -> str:
        with trio.move_on_after(1) as scope:
            try:
                await readiness.wait()
            except WorkerError as error:
                return type(error).__name__
        return "waiting" if scope.cancelled_caught else "ready"

    return trio.run(look, clock=trio.testing.MockClock(autojump_threshold=0))


def test_r1_each_required_kind_needs_one_registered_stream() -> None:
    without_reserve = Readiness([SHARED])
    with_reserve = Readiness([SHARED, RESERVED])
    for readiness in (without_reserve, with_reserve):
        assert outcome(readiness) == "waiting"
        readiness.registered(SHARED)
    assert outcome(without_reserve) == "ready"
    assert outcome(with_reserve) == "waiting"
    with_reserve.registered(RESERVED)
    assert outcome(with_reserve) == "ready"


async def test_r3_all_waiters_get_the_same_outcome() -> None:
    readiness = Readiness([SHARED])
    outcomes: list[str] = []

    async def wait() -> None:
        await readiness.wait()
        outcomes.append("ready")

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        readiness.registered(SHARED)
    assert outcomes == ["ready"] * 20


def test_r4_a_permanent_rejection_of_a_kind_without_stream_fails_the_wait() -> None:
    readiness = Readiness([SHARED, RESERVED])
    readiness.registered(SHARED)
    readiness.rejected(RESERVED, NO)
    assert outcome(readiness) == "PullRegistrationError"
    with pytest.raises(PullRegistrationError) as caught:
        trio.run(readiness.wait)
    assert caught.value.queue == "rpc_only"
    assert caught.value.cause is NO


def test_r5_beside_a_registered_stream_it_is_only_recorded() -> None:
    readiness = Readiness([SHARED, RESERVED])
    readiness.registered(SHARED)
    assert readiness.rejected(SHARED, NO) is None
    assert outcome(readiness) == "waiting"
    assert readiness.queues[0].last_permanent_error is NO
    readiness.registered(RESERVED)
    assert outcome(readiness) == "ready"
    assert readiness.is_ready


def test_r6_startup_errors_reach_the_waiters() -> None:
    readiness = Readiness([SHARED])
    readiness.ended(WorkerError("the protocol"))
    readiness.ended()
    assert outcome(readiness) == "WorkerError"


async def test_r7_a_deadline_ends_the_wait() -> None:
    with pytest.raises(trio.TooSlowError):
        with trio.fail_after(0):
            await Readiness([SHARED]).wait()


def test_r8_a_stop_before_readiness_is_an_error() -> None:
    readiness = Readiness([SHARED])
    readiness.ended()
    assert outcome(readiness) == WorkerStopped.__name__


def test_r9_success_is_latched() -> None:
    readiness = Readiness([SHARED, RESERVED])
    readiness.registered(SHARED)
    readiness.lost(SHARED)
    readiness.registered(RESERVED)
    assert outcome(readiness) == "ready"
    readiness.lost(RESERVED)
    readiness.rejected(SHARED, NO)
    readiness.ended()
    assert outcome(readiness) == "ready"


def test_r10_one_entry_per_required_kind() -> None:
    readiness = Readiness([SHARED, RESERVED])
    readiness.registered(RESERVED)
    assert [(q.queue, q.has_registered_stream, q.last_permanent_error) for q in readiness.queues] == [
        ("step_and_rpc", False, None),
        ("rpc_only", True, None),
    ]
    assert not readiness.is_ready


def test_r11_r12_r13_unready_only_without_stream_and_with_an_error() -> None:
    readiness = Readiness([SHARED])
    readiness.registered(SHARED)
    readiness.registered(SHARED)
    readiness.lost(SHARED)
    readiness.rejected(SHARED, NO)
    assert readiness.is_ready, "another stream is registered"
    readiness.lost(SHARED)
    assert not readiness.is_ready
    readiness.registered(SHARED)
    assert readiness.is_ready
    assert readiness.queues[0].last_permanent_error is None
    readiness.lost(SHARED)
    assert readiness.is_ready, "no stream, but no error either"


def test_r14_a_stop_leaves_it_ready() -> None:
    readiness = Readiness([SHARED])
    readiness.registered(SHARED)
    readiness.ended()
    readiness.lost(SHARED)
    assert readiness.is_ready


def test_r16_only_a_rejection_that_leaves_nothing_counts() -> None:
    readiness = Readiness([SHARED])
    readiness.registered(SHARED)
    assert readiness.rejected(SHARED, NO) is None
    readiness.lost(SHARED)
    problem = readiness.rejected(SHARED, NO)
    assert isinstance(problem, PullRegistrationError)
    assert problem.queue == "step_and_rpc"


@pytest.mark.parametrize("seed", range(30))
def test_random_lives_follow_the_rules_word_by_word(seed: int) -> None:
    random = Random(seed)
    kinds = random.choice([[SHARED], [SHARED, RESERVED]])
    readiness = Readiness(kinds)
    streams = dict.fromkeys(kinds, 0)
    failing = dict.fromkeys(kinds, False)
    had = dict.fromkeys(kinds, False)
    stopped = latched = False
    for _ in range(60):
        kind = random.choice(kinds)
        match random.choice(["registered", "registered", "lost", "lost", "rejected", "stop"]):
            case "registered":
                readiness.registered(kind)
                streams[kind] += 1
                had[kind], failing[kind] = True, False
            case "lost" if streams[kind]:
                readiness.lost(kind)
                streams[kind] -= 1
            case "rejected":
                readiness.rejected(kind, NO)
                failing[kind] = True
            case "stop" if random.random() < 0.05:
                readiness.ended()
                stopped = True
        latched = latched or all(had.values())
        bad = any(failing[k] and not streams[k] for k in kinds)
        assert readiness.is_ready == (latched and not bad)
        if latched:
            expected = "ready"
        elif stopped:
            expected = "WorkerStopped"
        else:
            expected = "PullRegistrationError" if bad else "waiting"
        assert outcome(readiness) == expected
