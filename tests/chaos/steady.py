"""Work that is offered at a steady rate, whatever happens to the servers.

A client that waits for what it started offers less as soon as something is slow, and so hides it. Here
executions begin by the clock: what the servers do not take at once waits, and the rate of hand-outs says
how they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from tests.chaos.clients import Clients
from tests.chaos.record import Recorder
from tests.chaos.recorded_worker import open_client
from tests.chaos.site import TENANTS
from tests.wire import Wire

STEPS: Final = 10
"""Of a flow, each a task."""
ACTIVITIES: Final = 3
TASKS_OF_WORKFLOW: Final = 2 * ACTIVITIES + 1
"""Its activities, and a workflow task before and after each."""
FLOWS_BEFORE_WORKFLOW: Final = 4
SECONDS: Final = 0.02
"""How long one task takes."""
_ROUND: Final = FLOWS_BEFORE_WORKFLOW * STEPS + TASKS_OF_WORKFLOW


@dataclass
class Steady:
    """Starts executions at ``rate`` tasks a second, of both planes and all tenants.

    Goes on until it has offered ``tasks`` tasks and ``stopping`` is set.
    """

    url: str
    recorder: Recorder
    seed: int
    rate: float
    tasks: int
    stopping: trio.Event = field(default_factory=trio.Event)
    offered: int = 0

    def __post_init__(self) -> None:
        self._clients: Sequence[Clients] = [
            Clients(self.url, tenant, self.recorder, Random(f"{self.seed} {tenant}")) for tenant in TENANTS
        ]

    async def run(self) -> None:
        """Start everything; returns when the last start was acknowledged."""
        async with trio.open_nursery() as nursery:
            for clients in self._clients:
                nursery.start_soon(self._offer, clients)

    async def _offer(self, clients: Clients) -> None:
        """One tenant's share: rounds of some flows and a workflow, spread evenly over their time."""
        pause = _ROUND * len(self._clients) / self.rate / (FLOWS_BEFORE_WORKFLOW + 1)
        due, number = trio.current_time(), 0
        async with open_client(self.url, clients.tenant) as client, trio.open_nursery() as nursery:
            wire = Wire(client)
            while self.offered < self.tasks or not self.stopping.is_set():
                number += 1
                if number % (FLOWS_BEFORE_WORKFLOW + 1):
                    execution = f"{clients.tenant}-f{number}"
                    nursery.start_soon(clients.start_flow, wire, execution, STEPS, SECONDS)
                    self.offered += STEPS
                else:
                    execution = f"{clients.tenant}-w{number}"
                    nursery.start_soon(clients.start_workflow, wire, execution, ACTIVITIES, SECONDS)
                    self.offered += TASKS_OF_WORKFLOW
                due += pause
                await trio.sleep_until(due)

    async def look_back(self, within: float) -> None:
        """Note how everything ended; waits so long (s) for what has not."""
        for clients in self._clients:
            await clients.look_back(within)
