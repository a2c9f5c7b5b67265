"""When an attempt of a step that failed is tried again, and one that did not run is handed out again."""

from __future__ import annotations

from typing import Final

from cluster.flows.records import MethodOptions, StepState
from cluster.flows.wire import Failure
from cluster.times import milliseconds

RETURNS_AT_ONCE: Final = 5
"""So often an attempt that did not run is handed out again without a pause."""
SHORTEST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 10_000


def retry_delay_ms(step: StepState, failure: Failure, now_ms: int) -> int | None:
    """Milliseconds until the next attempt, or None when the policy allows none.

    ``step`` is the execution whose current attempt failed. A delay the handler asked for changes
    no limit. The total duration only decides whether another attempt is made.
    """
    policy = step.options.of(step.method)
    if failure.non_retryable:
        return None
    if policy.max_attempts and step.attempt >= policy.max_attempts:
        return None
    if step.first_attempt_at_ms and now_ms - step.first_attempt_at_ms >= policy.total_ms:
        return None
    if failure.retry_after_seconds is not None:
        return milliseconds(failure.retry_after_seconds)
    return _backoff_ms(policy, step.attempt)


def _backoff_ms(policy: MethodOptions, attempt: int) -> int:
    """The pause after ``attempt``: initial x coefficient^(attempt - 1), at most the longest."""
    pause = float(policy.initial_ms)
    for _ in range(attempt - 1):
        pause *= policy.coefficient
        if pause >= policy.longest_ms or policy.coefficient == 1:
            break
    return min(int(pause), policy.longest_ms)


def return_pause_ms(delivery: int) -> int:
    """The pause before an attempt is handed out as number ``delivery``, counted from 0.

    Returns use up no attempt, so nothing else bounds how often an attempt goes round; whoever returns
    everything must not keep the cluster busy (pull-dispatch D-11). The pause doubles with each round
    and never becomes a failure.
    """
    rounds = delivery - RETURNS_AT_ONCE - 1
    if rounds < 0:
        return 0
    return min(SHORTEST_PAUSE_MS << min(rounds, 10), LONGEST_PAUSE_MS)
