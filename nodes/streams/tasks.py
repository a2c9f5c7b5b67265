"""Tasks as a worker gets them: what the engine wrote, and what only the hand-out knows."""

from __future__ import annotations

import msgspec
import orjson

from cluster.flows.finishing import ResultKind, StepResult
from cluster.flows.planning import Taker
from cluster.queues.barrier import Held
from cluster.queues.hand_outs import HandedOut
from cluster.queues.rpc_run import RpcRun
from cluster.queues.slot_claims import StepClaim
from cluster.times import iso_ms
from cluster.upkeep.orphans import Orphan


class StepBody(msgspec.Struct, frozen=True):
    """What the node itself reads of a step's task."""

    flow_type: str
    step_type: str
    method: str
    flow_id: str = ""
    traceparent: str = ""


class RpcBody(msgspec.Struct, frozen=True):
    """What the node itself reads of an RPC's task."""

    method_timeout_ms: int = 0


_rpc_body = msgspec.json.Decoder(RpcBody)
_step_body = msgspec.json.Decoder(StepBody)


class RunningStep(msgspec.Struct, frozen=True):
    """A step attempt on a slot of this node."""

    attempt_id: str
    task_id: str
    partition: int
    attempt: int
    delivery: int
    method: str
    flow_type: str
    step_type: str
    worker_id: str
    session: str
    flow_id: str = ""
    traceparent: str = ""
    ticket: str = ""

    def held(self) -> Held:
        """What the store should say of it."""
        return Held(
            self.partition, self.task_id, self.attempt, self.delivery, self.worker_id, ticket=self.ticket
        )

    def result(
        self,
        kind: ResultKind,
        output: bytes | None = None,
        failure: bytes | None = None,
        taker: Taker | None = None,
    ) -> StepResult:
        """The end of this attempt; ``output`` and ``failure`` are JSON, ``taker`` is the slot it ran on."""
        return StepResult(
            task_id=self.task_id,
            attempt=self.attempt,
            delivery=self.delivery,
            method=self.method,
            worker_id=self.worker_id,
            session=self.session,
            kind=kind,
            output=output,
            failure=None if failure is None else _failure(failure),
            taker=taker,
        )


def running_step(handed_out: HandedOut, worker_id: str, session: str) -> RunningStep:
    """The attempt that was handed out."""
    body = _step_body.decode(handed_out.body)
    return RunningStep(
        attempt_id=f"{handed_out.task_id}{body.method[:1]}-{handed_out.attempt}.{handed_out.delivery}",
        task_id=handed_out.task_id,
        partition=handed_out.partition,
        attempt=handed_out.attempt,
        delivery=handed_out.delivery,
        method=body.method,
        flow_type=body.flow_type,
        step_type=body.step_type,
        worker_id=worker_id,
        session=session,
        flow_id=body.flow_id,
        traceparent=body.traceparent,
        ticket=handed_out.ticket if isinstance(handed_out, StepClaim) else "",
    )


def orphan_result(orphan: Orphan, kind: ResultKind) -> StepResult:
    """The end of an attempt whose node or reply is gone."""
    return StepResult(
        task_id=orphan.task_id,
        attempt=orphan.attempt,
        delivery=orphan.delivery,
        method=orphan.method,
        worker_id=orphan.worker_id,
        session=orphan.session,
        kind=kind,
    )


def step_task(handed_out: HandedOut, step: RunningStep) -> bytes:
    """The task of a step, as JSON."""
    more: dict[str, object] = {
        "task_id": step.task_id,
        "attempt_id": step.attempt_id,
        "attempt": step.attempt,
    }
    if step.attempt == 1:
        more["first_attempt_at"] = iso_ms(handed_out.handed_out_ms)
    return _joined(handed_out.body, more)


def rpc_task(run: RpcRun) -> bytes:
    """The task of an RPC, as JSON."""
    return _joined(run.body, {"task_id": run.rpc_id, "attempt_id": run.rpc_id, "attempt": 1})


def rpc_seconds(run: RpcRun) -> float:
    """How long the caller waits for the RPC, from the hand-out on; 0: nobody said."""
    return _rpc_body.decode(run.body).method_timeout_ms / 1000


def _joined(body: bytes, more: dict[str, object]) -> bytes:
    # Both are objects with members, so they are joined without looking into either.
    return body.rstrip()[:-1] + b"," + orjson.dumps(more)[1:]


def _failure(failure: bytes) -> dict[str, object]:
    """Whatever a worker calls a failure is one."""
    try:
        value = orjson.loads(failure)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        return value
    return {"message": "The worker reported a failure that is no object.", "type": "InvalidFailure"}
