"""Clients of both planes that start, signal and watch executions, and write down what they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx
import trio

from tests.chaos import recorded_flow_worker as flows
from tests.chaos import recorded_worker as signing
from tests.chaos.record import Observed, Outcome, Recorder, Verb, now
from tests.chaos.recorded_worker import ask, open_client
from tests.waiting import eventually
from tests.wire import Wire, envelope

LONG: Final = 3
"""Tasks in one execution."""
SECONDS: Final = 0.1
"""How long one task takes."""
LOOK_EVERY: Final = 0.2
SIGNALS: Final = 2
LAST_LOOKS: Final = 8
LAST_SECONDS: Final = 30.0


@dataclass
class Clients:
    """All clients of one tenant; ``stop`` lets what is open end and starts nothing more."""

    url: str
    tenant: str
    recorder: Recorder
    random: Random
    stopping: trio.Event = field(default_factory=trio.Event)
    workflows: list[str] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)

    async def run(self, in_flight: int) -> None:
        """Keep so many executions of each plane open until told to stop; return when all are over."""
        async with open_client(self.url, self.tenant) as client, trio.open_nursery() as nursery:
            wire = Wire(client)
            for place in range(in_flight):
                nursery.start_soon(self._workflows, wire, place)
                nursery.start_soon(self._flows, wire, place)

    async def start_workflow(self, wire: Wire, execution: str, count: int, seconds: float) -> None:
        """Start a workflow of ``count`` activities of so many seconds; returns when that is acknowledged."""
        self.workflows.append(execution)
        body = {
            "workflow_type": signing.WORKFLOW,
            "task_queue": signing.QUEUE,
            "workflow_id": execution,
            "input": envelope([self.tenant, count, seconds]),
            "duplicate_policy": "use-existing",
        }
        await self._insist(wire, Verb.START, execution, "", "/api/workflows", body)

    async def start_flow(self, wire: Wire, execution: str, count: int, seconds: float) -> None:
        """The same with a flow of ``count`` steps."""
        self.flows.append(execution)
        body = {
            "flow_type": flows.FLOW,
            "flow_id": execution,
            "start_step": "seal",
            "input": {"tenant": self.tenant, "count": count, "seconds": seconds, "tokens": []},
            "step_options": flows.OPTIONS,
            "request_id": execution,
            "ignore_already_started": True,
        }
        await self._insist(wire, Verb.START, execution, "", "/api/flows", body)

    async def _workflows(self, wire: Wire, place: int) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            execution = f"{self.tenant}-w{place}-{number}"
            await self.start_workflow(wire, execution, LONG, SECONDS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._signal, wire, execution)
                await self._until_over(wire, execution, self.look_at_workflow)
                nursery.cancel_scope.cancel()

    async def _signal(self, wire: Wire, execution: str) -> None:
        for number in range(SIGNALS):
            await trio.sleep(self.random.uniform(0, LONG * SECONDS))
            token = f"{execution}-s{number}"
            path = f"/api/workflows/{execution}/signal/{token}"
            await self._insist(wire, Verb.SIGNAL, execution, token, path, {"request_id": token})

    async def _flows(self, wire: Wire, place: int) -> None:
        number = 0
        while not self.stopping.is_set():
            number += 1
            execution = f"{self.tenant}-f{place}-{number}"
            await self.start_flow(wire, execution, LONG, SECONDS)
            await self._until_over(wire, execution, self.look_at_flow)

    async def _insist(
        self, wire: Wire, verb: Verb, execution: str, token: str, path: str, body: dict[str, Any]
    ) -> None:
        """Ask until there is a clear answer; each time is an operation of its own."""
        outcome = Outcome.UNKNOWN
        while outcome in (Outcome.UNKNOWN, Outcome.NOT_DONE):
            op = self.recorder.invoke(verb, self.tenant, execution, token=token)
            outcome = await ask(self.recorder, op, lambda: wire.client.post(path, json=body))
            if outcome is not Outcome.OK:
                await trio.sleep(0.1)

    async def _until_over(self, wire: Wire, execution: str, look: Any) -> None:
        while True:
            await trio.sleep(LOOK_EVERY)
            if (seen := await look(wire, execution)) is not None and seen.terminal:
                return

    # -- looking ------------------------------------------------------------------------------

    async def look_at_workflow(self, wire: Wire, execution: str, final: bool = False) -> Observed | None:
        """Describe a workflow; None when there was no answer."""
        sent = now()
        body = await _read(wire, f"/api/workflows/{execution}")
        if body is None:
            return None
        signals: list[str] = []
        if final and body:
            try:
                events = await wire.history(execution, body["run_id"])
            except httpx.TransportError:
                return None
            signals = [e["payload"]["signal_name"] for e in events if e["event_type"] == "SignalReceived"]
        return self._note(execution, sent, body, body.get("output"), signals, final)

    async def look_at_flow(self, wire: Wire, execution: str, final: bool = False) -> Observed | None:
        """The same of a flow."""
        sent = now()
        body = await _read(wire, f"/api/flows/{execution}")
        if body is None:
            return None
        return self._note(execution, sent, body, body.get("result"), [], final)

    def _note(
        self,
        execution: str,
        sent: int,
        body: dict[str, Any],
        result: Sequence[str] | None,
        signals: Sequence[str],
        final: bool,
    ) -> Observed:
        terminal = bool(body.get("is_terminal"))
        seen = Observed(
            tenant=self.tenant,
            execution=execution,
            status=body.get("status", "missing"),
            sent=sent,
            terminal=terminal,
            results=tuple(result or ()) if terminal else None,
            signals=tuple(signals),
            final=final,
        )
        if seen.terminal or final:
            self.recorder.note(seen)
        return seen

    async def look_back(self, within: float = LAST_SECONDS) -> None:
        """Look at everything once more; waits so long (s) for what is not over yet."""
        limit = trio.CapacityLimiter(LAST_LOOKS)
        until = trio.current_time() + within

        async def seen(found: Any, execution: str) -> bool:
            look: Observed | None = await found(wire, execution, final=True)
            return look is not None and (look.terminal or trio.current_time() > until)

        async def look(found: Any, execution: str) -> None:
            async with limit:
                await eventually(lambda: seen(found, execution), within + LAST_SECONDS)

        async with open_client(self.url, self.tenant) as client, trio.open_nursery() as nursery:
            wire = Wire(client)
            for execution in self.workflows:
                nursery.start_soon(look, self.look_at_workflow, execution)
            for execution in self.flows:
                nursery.start_soon(look, self.look_at_flow, execution)


async def _read(wire: Wire, path: str) -> dict[str, Any] | None:
    """A good answer; nothing for what is not there; None when no answer came."""
    try:
        response = await wire.client.get(path)
    except httpx.TransportError:
        return None
    if response.status_code == httpx.codes.NOT_FOUND:
        return {}
    if not response.is_success:
        return None
    body: dict[str, Any] = response.json()
    return body
