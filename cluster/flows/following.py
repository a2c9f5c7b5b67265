"""The commonest decision by a short way: an execute ended, and all it wants is further steps.

Nearly every step of a flow ends so, and nothing in the flow waits for it: no conditions, no locks, no
messages. :func:`follow` then says at once what ``machine`` would come to, which a test compares over random
flows; it knows no rules of its own and leaves whatever is special, a limit that is reached too, to the
machine.
"""

from __future__ import annotations

from msgspec.structs import replace

from cluster.flows.changes import Changes, DropTask, Effect, ReadyStep, View
from cluster.flows.decision import StepEvent, json_object
from cluster.flows.limits import FlowLimits
from cluster.flows.records import Method, Phase, StepState
from cluster.flows.wire import ExecuteOutput


def follow(
    view: View,
    step: StepState,
    worker: str,
    delivery: int,
    output: ExecuteOutput,
    now_ms: int,
    limits: FlowLimits,
) -> Changes | None:
    """What follows the execute of ``step``, run by ``worker`` as this ``delivery``; None: ask the machine."""
    state, wanted = view.run.state, output.decision
    special = output.attributes or output.publish or wanted.cancel is not None or not wanted.next
    if special or state.stop is not None or state.waiting or state.locked or state.locks:
        return None
    steps: dict[int, StepState | None] = {step.k: None}
    effects: list[Effect] = [DropTask(step.k)]
    opened: list[str] = []
    numbers = state.numbers.copy()
    attributes = json_object(view.run.attributes)
    k, stored = state.next_k, 0
    for each in wanted.next:
        options, payload = each.options.read(), bytes(each.input)
        if options.locks or len(payload) > limits.payload_size:
            return None
        numbers[each.step_type] = number = numbers.get(each.step_type, 0) + 1
        following = StepState(
            k=k,
            step_type=each.step_type,
            number=number,
            parent=step.k,
            options=options,
            input=payload,
            method=Method.EXECUTE if options.wait_for is None else Method.WAIT_FOR,
            phase=Phase.READY,
            scheduled_at_ms=now_ms,
            ready_at_ms=now_ms,
            attributes=attributes,
        )
        steps[k] = following
        effects.append(ReadyStep(following))
        opened.append(following.execution_id)
        stored += 2 * (len(payload) + len(attributes))
        k += 1
    still_open = (*[other for other in state.open if other != step.k], *range(state.next_k, k))
    if (
        len(still_open) > limits.open_step_count
        or len(numbers) > limits.step_type_count
        or stored > limits.decision_size
    ):
        return None
    entry = {
        "event": StepEvent.COMPLETED,
        "k": step.k,
        "step_execution_id": step.execution_id,
        "step_type": step.step_type,
        "method": step.method,
        "attempt": step.attempt,
        "at_ms": now_ms,
        "worker_id": worker,
        "delivery": delivery,
        "next": opened,
    }
    after = replace(
        state,
        last_worker=worker,
        open=still_open,
        next_k=k,
        numbers=numbers,
        last_progress_at_ms=now_ms,
        history_length=state.history_length + 1,
    )
    return Changes(after, steps=steps, effects=effects, history=[entry])
