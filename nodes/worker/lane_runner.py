"""The task in which a lane's handlers run, one after the other.

A trio task and a cancel scope for each attempt would cost more than most of what a worker does for it. Here
both last until an attempt is cancelled or leaves something behind. A handler cannot tell the difference: it
has a context of its own (``contextvars``), and a scope that nothing has cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from math import inf

import trio

from nodes.worker.context import Attempt
from nodes.worker.running import Ended, Job, cancelled, failed


class LaneRunner:
    """``settle`` is told how each attempt has ended, when nothing of its handler runs any more."""

    def __init__(self, nursery: trio.Nursery, settle: Callable[[Ended], None]) -> None:
        self._nursery = nursery
        self._settle = settle
        self._scope = trio.CancelScope()
        self._task: trio.lowlevel.Task | None = None
        self._context: Context | None = None
        """What each handler's context is a copy of."""
        self._job: Job | None = None
        self._attempt = Attempt()

    def start(self, job: Job, attempt: Attempt) -> None:
        """Run a job, the one before it has been settled. ``attempt`` can be cancelled from now on."""
        self._job, self._attempt = job, attempt
        attempt.scope = self._scope
        if self._context is None:
            self._context = copy_context()
            self._nursery.start_soon(self._run)
        else:
            self._resume(self._context.copy())

    def end(self) -> None:
        """Nothing is started any more; the last job has been settled."""
        self._job = None
        if self._context is not None:
            self._resume(self._context)

    def _resume(self, context: Context) -> None:
        if self._task is not None:
            self._task.context = context
            trio.lowlevel.reschedule(self._task)

    async def _run(self) -> None:
        self._task = trio.lowlevel.current_task()
        while self._job is not None:
            ended: Ended | None = None
            try:
                with self._scope:
                    ended = await self._run_in_scope(self._task)
            except Exception as error:
                # Something was raised beside the cancellation, or a scope of the handler is still open.
                ended = failed(error)
            self._scope = trio.CancelScope()
            if self._job is not None:
                self._settle(ended or cancelled(self._attempt.cancel_reason))
                await _park()

    async def _run_in_scope(self, task: trio.lowlevel.Task) -> Ended | None:
        """Run jobs while the scope is as good as new; returns how the last ended, None after :meth:`end`."""
        while self._job is not None:
            ended = await self._job.run(self._attempt)
            if trio.current_effective_deadline() != inf or task.child_nurseries:
                return ended
            self._settle(ended)
            await _park()
        return None


async def _park() -> None:
    """Wait for the next job, or for its end."""
    await trio.lowlevel.wait_task_rescheduled(lambda _raise_cancel: trio.lowlevel.Abort.SUCCEEDED)
