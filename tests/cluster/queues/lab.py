"""Queues without workflows: tasks made by hand, and an audit of everything a partition holds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from cluster.flows.records import FlowInfo, Method, Phase, StepState
from cluster.flows.storage import encode_record, step_field
from cluster.ids import TaskKind, new_run_id
from cluster.queues import claims
from cluster.queues.claims import Claim, ClaimReply, ClaimWaiter
from cluster.store.keys import QueueName, encode
from cluster.store.store import Store
from cluster.store.transaction import ReadyTask, Transaction

LEASE_MS = 60_000


def queue_name(queue: str = "q", marker: str = "", kind: TaskKind = TaskKind.ACTIVITY) -> QueueName:
    return QueueName(kind, "ns", queue, marker)


@dataclass
class Lab:
    """One store, used as nodes use it."""

    store: Store
    session: str = "node~1"
    random: Random = field(default_factory=lambda: Random(1))
    tokens: count[int] = field(default_factory=count)

    # -- what nodes do ----------------------------------------------------------------------

    async def new_run(self, partition: int = 0) -> str:
        run_id = new_run_id(partition, 1_700_000_000_000, self.random)
        await self.store.call("HSET", self.store.keys.run(partition, run_id), "v", 1, "i", "i", "s", "s")
        return run_id

    async def enqueue(
        self,
        type_name: str = "t",
        *,
        partition: int = 0,
        queue: QueueName | None = None,
        run_id: str | None = None,
        **fields: Any,
    ) -> str:
        """A ready task of a new run (or ``run_id``); returns the task's id."""
        queue = queue or queue_name()
        run_id = run_id or await self.new_run(partition)
        task_id = f"{run_id}-{queue.kind}{next(self.tokens) + 1}"
        tx = Transaction(partition)
        if queue.kind == TaskKind.STEP:
            self._write_step(tx, queue, run_id, int(task_id.rpartition("s")[2]))
        tx.enqueue(
            ReadyTask(
                task_id=task_id,
                run_id=run_id,
                heads=queue.encode(),
                type_part=encode(type_name),
                **{"lease_ms": LEASE_MS, "body": b"{}", **fields},
            )
        )
        await self.store.commit(tx)
        return task_id

    def _write_step(self, tx: Transaction, queue: QueueName, run_id: str, k: int) -> None:
        """The records of which the body of a step is made."""
        info = FlowInfo(
            namespace=queue.namespace,
            flow_id=run_id,
            run_id=run_id,
            flow_type=queue.queue,
            start_step="t",
            request_id=run_id,
            started_at_ms=1,
        )
        step = StepState(
            k=k, step_type="t", number=k, method=Method.EXECUTE, phase=Phase.READY, scheduled_at_ms=1
        )
        records = {"i": encode_record(info), step_field(k): encode_record(step)}
        tx.hset(self.store.keys.run(tx.partition, run_id), records)

    async def ask(
        self,
        waiters: Iterable[ClaimWaiter],
        *,
        partitions: Iterable[int] = (0,),
        queues: Iterable[QueueName] = (queue_name(),),
    ) -> ClaimReply:
        return await claims.claim(
            self.store, self.session, list(partitions), list(queues), list(waiters), page_size=100
        )

    async def claim(
        self,
        *types: str,
        token: str = "",
        owner: str = "w",
        queues: Sequence[QueueName] = (queue_name(),),
        **where: Any,
    ) -> Claim | None:
        """Claim one task for one waiter, of any of the markers that ``queues`` have."""
        markers = tuple(queue.marker for queue in queues)
        waiter = ClaimWaiter(owner, token or f"token{next(self.tokens)}", frozenset(types), markers)
        reply = await self.ask([waiter], queues=queues, **where)
        assert len(reply.claims) <= 1
        return reply.claims[0] if reply.claims else None

    async def drain(self, *types: str, **where: Any) -> list[str]:
        """Claim until nothing is handed out any more; the task ids in order."""
        found: list[str] = []
        for _ in range(1000):
            claim = await self.claim(*types, **where)
            if claim is None and not await self.heads_left(*types, **where):
                return found
            if claim is not None:
                found.append(claim.task_id)
        raise AssertionError("claims do not come to an end")

    async def heads_left(self, *types: str, **where: Any) -> bool:
        reply = await self.ask([], **where)
        return any(
            ready is not None and (not types or name in types)
            for heads in reply.heads
            for name, ready in heads.ready_ms.items()
        )

    async def requeue(self, claim: Claim, attempt: int | None = None) -> None:
        """As after a lapse when ``attempt`` is given, else as when it reached nobody."""
        tx = Transaction(claim.partition, frees=True)
        delivery = claim.delivery + 1 if attempt is None else 0
        tx.requeue(claim.task_id, attempt or claim.attempt, delivery)
        await self.store.commit(tx)

    async def drop(self, task_id: str, partition: int = 0) -> None:
        tx = Transaction(partition, frees=True)
        tx.drop(task_id)
        await self.store.commit(tx)

    async def extend(self, task_id: str, lease_ms: int, partition: int = 0) -> None:
        tx = Transaction(partition, frees=True)
        tx.extend(task_id, lease_ms)
        await self.store.commit(tx)

    # -- looking ----------------------------------------------------------------------------

    async def record(self, task_id: str, partition: int = 0) -> dict[str, str]:
        return await self.hash(self.store.keys.task(partition, task_id))

    async def hash(self, key: str) -> dict[str, str]:
        flat = [part.decode() for part in await self.store.call("HGETALL", key)]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    async def scores(self, key: str) -> dict[str, int]:
        flat = await self.store.call("ZRANGE", key, 0, -1, "WITHSCORES")
        return {flat[i].decode(): int(float(flat[i + 1])) for i in range(0, len(flat), 2)}

    async def keys(self, partition: int = 0) -> set[str]:
        """All keys of a partition, without what they begin with."""
        base = f"{self.store.keys.base(partition)}:"
        return {key.decode().removeprefix(base) for key in await self.store.call("KEYS", f"{base}*")}

    async def audit(self, partition: int = 0, damaged: Container[str] = ()) -> dict[str, dict[str, str]]:
        """Check W1, the backlog formula and that leases, tokens and records agree.

        ``damaged`` queues lost their group or cursor: they may show more than there is, never less.
        Returns the task records by task id.
        """
        keys, base = self.store.keys, self.store.keys.base(partition)
        names = await self.keys(partition)
        tasks = {
            name.removeprefix("task:"): await self.hash(f"{base}:{name}")
            for name in names
            if name.startswith("task:")
        }
        queues = {name[2:] for name in names if name.startswith(("q:", "b:"))}
        cursors = await self.hash(keys.cursors(partition))
        registered = {name.decode() for name in await self.store.call("SMEMBERS", keys.queues(partition))}
        heads = {
            f"{name[2:]}:{type_part}": ready
            for name in names
            if name.startswith("h:")
            for type_part, ready in (await self.scores(f"{base}:{name}")).items()
        }
        expected_heads: dict[str, int] = {}
        for queue in queues:
            ready = [t for t in tasks.values() if t["s"] == "r" and f"{t['h']}:{t['y']}" == queue]
            assert queue in registered
            if queue in damaged:
                assert queue in heads or not ready
                heads.pop(queue, None)
                continue
            back = await self.scores(f"{base}:b:{queue}")
            after = f"({cursors[queue]}" if queue in cursors else "-"
            stream = f"{base}:q:{queue}"
            undelivered = [int(row[1][3]) for row in await self.store.call("XRANGE", stream, after, "+")]
            length = await self.store.call("XLEN", stream)
            pending = 0
            if f"q:{queue}" in names:
                pending = (await self.store.call("XPENDING", stream, "g"))[0]
            assert length - pending + len(back) == len(ready), f"backlog of {queue}"
            assert len(undelivered) + len(back) == len(ready), f"cursor of {queue}"
            if ready:
                expected_heads[queue] = min(*undelivered, *back.values(), 1 << 60)
                assert expected_heads[queue] == min(int(t["at"]) for t in ready)
        assert heads == expected_heads
        leased = {task_id: task for task_id, task in tasks.items() if task["s"] == "l"}
        leases = await self.scores(keys.leases(partition))
        assert leases == {task_id: int(task["x"]) for task_id, task in leased.items()}
        held = await self.hash(keys.held(partition))
        assert held == {task["k"]: task_id for task_id, task in leased.items()}
        return tasks
