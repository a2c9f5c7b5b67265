"""Takes what clients tell a workflow: finds the run, decides, waits for updates to be over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import trio

from cluster.errors import Refused
from cluster.ids import partition_of_run, partition_of_workflow
from cluster.workflows import client_commands, machine
from cluster.workflows.changes import Changes
from cluster.workflows.client_commands import ClientCommand, CommandKind, Scope
from cluster.workflows.deciding import ATTEMPTS, Decider, Step, contended, expect_workflow_task
from cluster.workflows.limits import Limits
from cluster.workflows.records import Run
from cluster.workflows.storage import Snapshot, load
from cluster.workflows.visibility import not_found

CANCEL_CHILD = "cancel"


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a command is for; ``run_id`` None: the current run."""

    namespace: str
    workflow_id: str
    run_id: str | None = None


Check = Callable[[Run], Awaitable[None]]
"""Looks at the run before a command is applied; raises Refused."""


class ClientAnswers(Decider):
    """Takes signals, updates, cancel and terminate."""

    _limits: Limits
    _update_waits: dict[str, set[trio.Event]]

    async def watch_updates(self) -> None:
        """Hear from now on which updates are over, on whatever node."""
        self._store.on_message(self._store.keys.changed_channel(), self._on_changed)
        self._store.on_reconnect(self._wake_all)
        await self._store.subscribe(self._store.keys.changed_channel())

    async def command(
        self, target: Target, command: ClientCommand, check: Check | None = None
    ) -> dict[str, Any]:
        """Apply a command; the answer to the client. Raises Refused.

        A run that another one follows meanwhile is left for it, unless the target names the run.
        """
        for _ in range(ATTEMPTS):
            run_id = await self._current(target)
            if check is not None:
                await self._check(run_id, target, check)
            try:
                return await self.decide(self._step(run_id, command))
            except Refused as refusal:
                moved = refusal.reason == "run_not_active" and target.run_id is None
                if not moved or await self._current(target) == run_id:
                    raise
        raise contended(target.workflow_id)

    async def _check(self, run_id: str, target: Target, check: Check) -> None:
        cached = self._runs.guess(run_id)
        snapshot = cached if cached is not None else await load(self._store, run_id)
        if snapshot is None:
            raise not_found(target.workflow_id, target.run_id)
        await check(snapshot.run)

    def _step(self, run_id: str, command: ClientCommand) -> Step:
        def decide(snapshot: Snapshot) -> Changes | dict[str, Any]:
            return machine.client_command(
                snapshot.run,
                command,
                snapshot.answer,
                snapshot.workflow_task,
                self._clock.now_us(),
                self._limits,
            )

        return Step(
            run_id,
            decide,
            expect_workflow_task,
            whole=command.kind in (CommandKind.CANCEL, CommandKind.TERMINATE),
            answer=command.receipt,
        )

    async def _current(self, target: Target) -> str:
        """The run a command is for. Raises Refused: instance_not_found, run_not_found,
        historical_run_command_rejected."""
        keys = self._store.keys
        partition = partition_of_workflow(target.workflow_id, keys.partitions)
        namespace, run_id = await self._store.call(
            "HMGET", keys.workflow(partition, target.workflow_id), "ns", "run", idempotent=True
        )
        if namespace is None or namespace.decode() != target.namespace:
            raise not_found(target.workflow_id, None)
        current: str = run_id.decode()
        if target.run_id is None or target.run_id == current:
            return current
        snapshot = await load(self._store, target.run_id)
        if snapshot is None or snapshot.run.info.workflow_id != target.workflow_id:
            raise not_found(target.workflow_id, target.run_id)
        raise Refused(
            "historical_run_command_rejected",
            "The run is not the current one; commands go to the current run.",
            status=409,
            outcome="rejected_historical",
            workflow_id=target.workflow_id,
            run_id=target.run_id,
            target_scope=Scope.RUN.value,
        )

    async def is_kept(self, run: Run, command: ClientCommand) -> bool:
        """Whether the same command came before and its answer is kept."""
        if not command.receipt:
            return False
        snapshot = await load(self._store, run.info.run_id, answer=command.receipt)
        return snapshot is not None and snapshot.answer is not None

    async def close_child(self, target: Target, parent_run_id: str, verb: str, reason: str) -> None:
        """Cancel or terminate a child whose parent closed or gave it up; nothing if it is over."""
        kind = CommandKind.CANCEL if verb == CANCEL_CHILD else CommandKind.TERMINATE
        command = ClientCommand(kind, reason=reason)

        async def check(run: Run) -> None:
            parent = run.info.parent
            if parent is None or parent.run_id != parent_run_id:
                raise client_commands.rejected(
                    run, command, "run_not_active", "The workflow is no child of that run.", status=409
                )

        try:
            await self.command(target, command, check)
        except Refused:
            return

    # -- updates ----------------------------------------------------------------------------

    async def update_over(self, update_id: str, timeout: float) -> dict[str, Any] | None:  # noqa: ASYNC109
        """How an update ended; waits up to ``timeout`` seconds for that, then None."""
        with trio.move_on_after(timeout):
            while True:
                event = trio.Event()
                waiting = self._update_waits.setdefault(update_id, set())
                waiting.add(event)
                try:
                    found = await self.update_result(update_id)
                    if found is not None:
                        return found
                    await event.wait()
                finally:
                    waiting.discard(event)
                    if not waiting and self._update_waits.get(update_id) is waiting:
                        del self._update_waits[update_id]
        return None

    async def update_result(self, update_id: str) -> dict[str, Any] | None:
        """How an update ended, or None while it is open."""
        run_id, _, _ = update_id.rpartition("-u")
        key = self._store.keys.commands(partition_of_run(run_id) or 0, run_id)
        raw = await self._store.call("HGET", key, f"u:{update_id}", idempotent=True)
        return None if raw is None else dict(orjson.loads(raw))

    def _on_changed(self, _channel: str, message: bytes) -> None:
        family, _, update_id = message.decode().partition(" ")
        if family == "update":
            for event in self._update_waits.get(update_id, ()):
                event.set()

    def _wake_all(self) -> None:
        for waiting in self._update_waits.values():
            for event in waiting:
                event.set()
