"""A worker of the workflow plane that writes down what it gets and what it is told, in a process of its own.

``python -m tests.chaos.recorded_worker URL TENANT PARENT_PID RECORD [--id=] [--seed=] [--lease=]``

It speaks the wire by hand, so that each request and answer is seen. Its workflow ``signing`` is a chain of
``sign`` activities; each answers with the token of its hand-out, and the workflow's result is the list of
them; in the place of one that was given up comes another. Now and then it fails an attempt, leaves one
alone, or answers after its lease is over.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import httpx
import trio

from cluster import payloads
from cluster.workflows.records import Payload
from nodes.cli.processes import end_with_parent
from tests.chaos.chain import NOTHING_TO_DO, chain_of
from tests.chaos.record import Answered, HandedOut, Outcome, Recorder, Verb, now
from tests.wire import HEADERS, Wire, complete, envelope, schedule

QUEUE: Final = "signs"
WORKFLOW: Final = "signing"
ACTIVITY: Final = "sign"
MOST_ATTEMPTS: Final = 60
POLL_SECONDS: Final = 2
ANSWER_SECONDS: Final = 5.0
WORKFLOW_POLLERS: Final = 2
ACTIVITY_POLLERS: Final = 4
NOT_DONE: Final = frozenset(
    {
        "store_unavailable",
        "store_full",
        "node_not_ready",
        "store_recovering",
        "store_durability_lost",
        "request_timeout",  # the node stood still for so long that the body seemed slow
    }
)


async def ask(recorder: Recorder, op: str, request: Callable[[], Awaitable[httpx.Response]]) -> Outcome:
    """Send a recorded request and record how it was answered."""
    try:
        answer = judge(op, await request())
    except httpx.TransportError as error:
        answer = Answered(op=op, outcome=Outcome.UNKNOWN, reason=type(error).__name__)
    recorder.note(answer)
    return answer.outcome


def judge(op: str, response: httpx.Response) -> Answered:
    """What an answer says about what was done."""
    if response.is_success:
        return Answered(op=op, outcome=Outcome.OK, created=response.status_code == httpx.codes.CREATED)
    try:
        reason = str(response.json().get("reason"))
    except ValueError:
        reason = f"status {response.status_code}"
    if response.is_client_error and reason not in NOT_DONE:
        return Answered(op=op, outcome=Outcome.REFUSED, reason=reason)
    done = Outcome.NOT_DONE if reason in NOT_DONE else Outcome.UNKNOWN
    return Answered(op=op, outcome=done, reason=reason)


def open_client(url: str, tenant: str) -> httpx.AsyncClient:
    """Requests of one tenant, each with a bounded wait."""
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    headers = {**HEADERS, "X-Namespace": tenant}
    return httpx.AsyncClient(
        base_url=url, headers=headers, timeout=ANSWER_SECONDS, limits=limits, trust_env=False
    )


class RecordedWorker:
    """Polls for both kinds of tasks. ``lease`` (s) is how long the server leases one."""

    def __init__(
        self, wire: Wire, recorder: Recorder, tenant: str, worker: str, lease: float, random: Random
    ) -> None:
        self._wire = wire
        self._recorder = recorder
        self._tenant = tenant
        self._worker = worker
        self._lease = lease
        self._random = random

    async def run(self) -> None:
        """Register, then work until cancelled."""
        await self._persist(self._register)
        async with trio.open_nursery() as nursery:
            for _ in range(WORKFLOW_POLLERS):
                nursery.start_soon(self._poll_forever, "workflow", self._decide)
            for _ in range(ACTIVITY_POLLERS):
                nursery.start_soon(self._poll_forever, "activity", self._sign)
            print("ready", flush=True)

    async def _persist(self, job: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await job()
            except (httpx.TransportError, AssertionError):
                await trio.sleep(0.1)
            else:
                return

    async def _register(self) -> None:
        await self._wire.register(self._worker, QUEUE, workflows=[WORKFLOW], activities=[ACTIVITY])

    async def _poll_forever(
        self, kind: str, treat: Callable[[dict[str, Any], str, int], Awaitable[None]]
    ) -> None:
        poll_id, sent = uuid4().hex, now()
        while True:
            body: dict[str, Any] = {
                "worker_id": self._worker,
                "task_queue": QUEUE,
                "timeout_seconds": POLL_SECONDS,
                "poll_request_id": poll_id,
            }
            try:
                response = await self._wire.client.post(
                    f"/api/worker/{kind}-tasks/poll", json=body, timeout=POLL_SECONDS + ANSWER_SECONDS
                )
            except httpx.TransportError:
                await trio.sleep(0.05)
                continue  # under the same id: what was leased meanwhile is asked for again
            if response.status_code == httpx.codes.OK:
                if (task := response.json()["task"]) is not None:
                    await treat(task, poll_id, sent)
            else:
                await trio.sleep(0.1)
                if response.is_client_error:
                    await self._persist(self._register)
            poll_id, sent = uuid4().hex, now()

    def _note_hand_out(self, task: dict[str, Any], belongs_to: str, token: str, sent: int) -> None:
        is_activity = "attempt_number" in task
        self._recorder.note(
            HandedOut(
                tenant=self._tenant,
                belongs_to=belongs_to,
                execution=task["workflow_id"],
                task=task["task_id"],
                attempt=task["attempt_number" if is_activity else "workflow_task_attempt"],
                token=token,
                sent=sent,
                lasts=int(self._lease * 1e9),
                most_attempts=MOST_ATTEMPTS if is_activity else 0,
                renumbered=is_activity,
                cap=f"{self._tenant}:{ACTIVITY}" if is_activity else "",
            )
        )

    # -- workflow tasks -----------------------------------------------------------------------

    async def _decide(self, task: dict[str, Any], poll_id: str, sent: int) -> None:
        tenant, count, seconds = _arguments(task["arguments"])
        token = f"{task['task_id']}/{poll_id}"
        self._note_hand_out(task, tenant, token, sent)
        chain = chain_of(task["history_events"])
        answer: dict[str, Any]
        body = {
            "lease_owner": task["lease_owner"],
            "workflow_task_attempt": task["workflow_task_attempt"],
        }
        if len(chain.done) == count:
            results = [_decode(payload["payload_codec"], payload["result"]) for payload in chain.done]
            verb, answer = Verb.CLOSE, {"commands": [complete(results)]}
        elif not chain.open:
            retry = {"max_attempts": MOST_ATTEMPTS, "backoff_seconds": [0]}
            arguments = (tenant, len(chain.done), seconds)
            command = schedule(ACTIVITY, QUEUE, *arguments, retry_policy=retry)
            verb, answer = Verb.DECIDE, {"commands": [command]}
        else:
            verb, answer = Verb.FAIL, {"failure": NOTHING_TO_DO}
        await self._answer(task, verb, "workflow", token, {**body, **answer})

    # -- activities ---------------------------------------------------------------------------

    async def _sign(self, task: dict[str, Any], _: str, sent: int) -> None:
        tenant, _number, seconds = _arguments(task["arguments"])
        token = f"{task['task_id']}/{task['activity_attempt_id']}"
        self._note_hand_out(task, tenant, token, sent)
        chance = self._random.random()
        if chance < 0.01:
            return  # left alone until its lease is over
        await trio.sleep(self._lease * 1.3 if chance < 0.03 else seconds)
        body = {"lease_owner": task["lease_owner"], "activity_attempt_id": task["activity_attempt_id"]}
        if 0.03 < chance < 0.06:
            failure = {"message": "on purpose", "type": "Planned"}
            await self._answer(task, Verb.FAIL, "activity", token, {**body, "failure": failure})
        else:
            await self._answer(task, Verb.COMPLETE, "activity", token, {**body, "result": envelope(token)})

    async def _answer(
        self, task: dict[str, Any], verb: Verb, kind: str, token: str, body: dict[str, Any]
    ) -> None:
        """Answer a task, again and again while the outcome is open."""
        path = f"/api/worker/{kind}-tasks/{task['task_id']}/{'fail' if verb is Verb.FAIL else 'complete'}"
        for _ in range(10):
            op = self._recorder.invoke(
                verb, self._tenant, task["workflow_id"], task=task["task_id"], token=token
            )
            outcome = await ask(self._recorder, op, lambda: self._wire.client.post(path, json=body))
            if outcome in (Outcome.OK, Outcome.REFUSED):
                return
            await trio.sleep(0.1)


def _decode(codec: str, blob: str) -> Any:
    return payloads.decode(Payload(codec=codec, blob=blob))


def _arguments(shown: dict[str, str]) -> tuple[str, int, float]:
    """Tenant, how many signatures (of an activity: which one), seconds each takes."""
    tenant, number, seconds = _decode(shown["codec"], shown["blob"])
    return tenant, number, seconds


async def main(options: argparse.Namespace) -> None:
    with Recorder(Path(options.record), options.id) as recorder:
        async with open_client(options.url, options.tenant) as client:
            random = Random(f"{options.seed} {options.id}")
            await RecordedWorker(
                Wire(client), recorder, options.tenant, options.id, options.lease, random
            ).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tenant")
    parser.add_argument("parent", type=int)
    parser.add_argument("record")
    parser.add_argument("--id", default=f"worker-{os.getpid()}")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--lease", type=float, default=2.0)
    parsed = parser.parse_args()
    end_with_parent(parsed.parent)
    trio.run(main, parsed)
