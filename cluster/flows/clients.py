"""What clients ask of flows: publish, stop, wait, look."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import orjson
import trio

from cluster.errors import Refused
from cluster.flows import machine
from cluster.flows.changes import Changes, View
from cluster.flows.deciding import FlowDecider, Job, run_not_found
from cluster.flows.ends import FlowEnds
from cluster.flows.records import FlowInfo, FlowRun, FlowState, FlowStatus, Task
from cluster.flows.storage import Wants, decode_info, decode_state, load
from cluster.flows.wire import Publication
from cluster.ids import partition_of_flow
from cluster.newest_first import LOOK_LIMIT, Part, Place, newest_first
from cluster.store.transaction import Transaction

ONCE_SECONDS: Final = 600
"""How long a request id of a publication or RPC is remembered."""


@dataclass(frozen=True, slots=True)
class FlowView:
    """A run with its open executions and the records of their tasks, by ``k``."""

    run: FlowRun
    tasks: dict[int, Task]
    run_count: int
    is_current: bool


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A run in a list."""

    info: FlowInfo
    state: FlowState


@dataclass(frozen=True, slots=True)
class StepPage:
    """Entries of the step history: JSON objects, oldest first."""

    entries: list[bytes]
    next_page_token: str | None


class Clients(FlowDecider):
    """Serves clients of flows."""

    _ends: FlowEnds

    # -- looking ----------------------------------------------------------------------------

    async def current_run(self, namespace: str, flow_id: str) -> str:
        """The id of a flow's current run. Raises Refused ``flow_not_found`` (404)."""
        return (await self._instance(namespace, flow_id))[0]

    async def _instance(self, namespace: str, flow_id: str) -> tuple[str, int]:
        keys = self._store.keys
        partition = partition_of_flow(namespace, flow_id, keys.partitions)
        run_id, runs = await self._store.call(
            "HMGET", keys.flow(partition, namespace, flow_id), "run", "runs", idempotent=True
        )
        if run_id is None:
            raise flow_not_found(flow_id)
        return run_id.decode(), int(runs)

    async def describe(self, namespace: str, flow_id: str, run_id: str | None = None) -> FlowView:
        """A run (the current one) with what is open. Raises Refused (404)."""
        current, runs = await self._instance(namespace, flow_id)
        wanted = run_id or current
        picture = await load(self._store, wanted, Wants(every_step=True, every_task=True))
        if picture is None or not _belongs(picture.run.info, namespace, flow_id):
            raise run_not_found(wanted) if run_id else flow_not_found(flow_id)
        return FlowView(picture.run, picture.tasks, runs, wanted == current)

    async def read(self, namespace: str, flow_id: str, run_id: str | None = None) -> FlowRun:
        """A run (the current one) without its executions. Raises Refused (404)."""
        wanted = run_id or await self.current_run(namespace, flow_id)
        picture = await load(self._store, wanted, Wants())
        if picture is None or not _belongs(picture.run.info, namespace, flow_id):
            raise run_not_found(wanted) if run_id else flow_not_found(flow_id)
        return picture.run

    async def wait_closed(
        self, namespace: str, flow_id: str, seconds: float, run_id: str | None = None
    ) -> FlowRun:
        """The run once it is closed, or as it is after ``seconds`` or when the node leaves.

        Raises Refused (flow_not_found, run_not_found 404).
        """
        run = await self.read(namespace, flow_id, run_id)
        if run.state.status.closed or seconds <= 0:
            return run
        wanted = run.info.run_id
        with trio.move_on_after(seconds):
            async with self._ends.listening(wanted) as listener:
                run = await self.read(namespace, flow_id, wanted)
                while not (run.state.status.closed or self._ends.closed):
                    await listener.wait()
                    run = await self.read(namespace, flow_id, wanted)
        return run

    async def steps(
        self, namespace: str, flow_id: str, *, page_size: int, token: str | None, run_id: str | None = None
    ) -> StepPage:
        """A page of a run's step history. Raises Refused (404, or 422 for a token nobody made)."""
        run = await self.read(namespace, flow_id, run_id)
        keys = self._store.keys
        partition = partition_of_flow(namespace, flow_id, keys.partitions)
        key = keys.steps(partition, run.info.run_id)
        after = _sequence(token)
        first = await self._store.call("LINDEX", key, 0, idempotent=True)
        if first is None:
            return StepPage([], None)
        start = max(0, after + 1 - orjson.loads(first)["sequence"])
        rows: list[bytes] = await self._store.call("LRANGE", key, start, start + page_size, idempotent=True)
        page = rows[:page_size]
        more = len(rows) > page_size
        return StepPage(page, str(orjson.loads(page[-1])["sequence"]) if more else None)

    async def list_flows(
        self,
        namespace: str,
        *,
        status: FlowStatus | None,
        flow_type: str | None,
        page_size: int,
        token: str | None,
    ) -> tuple[list[FlowRow], str | None]:
        """Runs of flows of a namespace, newest first, and the token of the next page."""
        keys = self._store.keys

        async def look(partition: int, place: Place | None) -> Part[FlowRow]:
            after = (str(place.ms), place.name) if place else ("", "")
            rows, more, last_ms, last_id = await self._store.run(
                "flow_list",
                [keys.flows(partition, namespace)],
                [keys.base(partition), *after, page_size, LOOK_LIMIT, flow_type or "", status or ""],
                idempotent=True,
            )
            found = [
                (Place(int(ms), run_id.decode()), FlowRow(decode_info(info), decode_state(state)))
                for run_id, ms, info, state in rows
            ]
            return Part(found, Place(int(last_ms), last_id.decode()) if more else None)

        return await newest_first(keys.partitions, look, page_size, token)

    # -- changing ---------------------------------------------------------------------------

    async def publish(
        self,
        namespace: str,
        flow_id: str,
        message: Publication,
        *,
        request_id: str | None = None,
        run_id: str | None = None,
    ) -> bool:
        """Add a message to a channel; False when this request id did so before.

        Raises Refused (flow_not_found 404; flow_closed, flow_closing 409;
        structural_limit_exceeded 422).
        """

        def decide(view: View, now_ms: int) -> Changes:
            return machine.publish(view, [message], now_ms, self._limits)

        done = await self._change(namespace, flow_id, run_id, decide, once=request_id)
        return done is not None

    async def stop(
        self,
        namespace: str,
        flow_id: str,
        kind: machine.StopType,
        reason: str,
        wait: bool,
        run_id: str | None = None,
    ) -> FlowRun:
        """End a run; the run as it is then. Raises Refused (flow_not_found 404, flow_closed 409)."""

        def decide(view: View, now_ms: int) -> Changes:
            return machine.stop(view, kind, reason, wait, now_ms, self._limits)

        def settle(view: View, now_ms: int) -> Changes:
            return machine.settle_stop(view, now_ms, self._limits)

        target = run_id or await self.current_run(namespace, flow_id)
        await self._change(namespace, flow_id, target, decide)
        run = await self.read(namespace, flow_id, target)
        if run.state.stop is not None:
            await self.decide(Job(target, settle, fresh=True))
            run = await self.read(namespace, flow_id, target)
        return run

    async def _change(
        self,
        namespace: str,
        flow_id: str,
        run_id: str | None,
        decide: Callable[[View, int], Changes],
        *,
        once: str | None = None,
    ) -> Changes | None:
        """Decide about a flow's run; None when the request id ``once`` was served before."""
        target = run_id or await self.current_run(namespace, flow_id)

        def checked(view: View, now_ms: int) -> Changes:
            if not _belongs(view.run.info, namespace, flow_id):
                raise run_not_found(target)
            return decide(view, now_ms)

        def expect(tx: Transaction, _view: View) -> None:
            if once is not None:
                digest = hashlib.blake2b(once.encode(), digest_size=16).hexdigest()
                key = self._store.keys.once(tx.partition, target, digest)
                tx.expect_absent(key)
                tx.redis("SET", key, "1", "EX", ONCE_SECONDS)

        return (await self.decide(Job(target, checked, expect, moot="absent"))).changes


def flow_not_found(flow_id: str) -> Refused:
    return Refused("flow_not_found", f"There is no flow {flow_id!r}.", status=404, flow_id=flow_id)


def _belongs(info: FlowInfo, namespace: str, flow_id: str) -> bool:
    return (info.namespace, info.flow_id) == (namespace, flow_id)


def _sequence(token: str | None) -> int:
    """The last sequence number of the page before; a token nobody made counts as absent (1.7)."""
    return int(token) if token and token.isascii() and token.isdigit() and len(token) < 16 else 0
