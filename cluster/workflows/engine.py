"""The workflow engine of a node: everything that reads or changes runs.

Every decision is made by the pure state machine (``machine``) and stored by one conditional commit:
the run's version, the task records it looked at. See ``deciding`` for the loop.
"""

from __future__ import annotations

from random import Random

from cluster.clock import Clock
from cluster.store.store import Store
from cluster.worker_sessions import WorkerSessions
from cluster.workflows.activity_answers import ActivityAnswers
from cluster.workflows.care import RunCare
from cluster.workflows.client_answers import ClientAnswers
from cluster.workflows.limits import Limits
from cluster.workflows.planning import LeaseTimes
from cluster.workflows.starts import Started, StartRequest, Starts
from cluster.workflows.storage import RunCache
from cluster.workflows.visibility import Visibility
from cluster.workflows.workflow_task_answers import WorkflowTaskAnswers

__all__ = ["Engine", "StartRequest", "Started"]


class Engine(Starts, WorkflowTaskAnswers, ActivityAnswers, ClientAnswers, RunCare, Visibility):
    """Runs workflow executions over a store. One per node; stateless but for its memory."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runs: RunCache,
        *,
        leases: LeaseTimes,
        limits: Limits,
        random: Random,
    ) -> None:
        super().__init__(store, clock, runs, leases, random)
        self._limits = limits
        self._sticky_misses = 0
        self._update_waits = {}
        self._sessions = WorkerSessions(store)

    @property
    def limits(self) -> Limits:
        """The structural limits of runs."""
        return self._limits
