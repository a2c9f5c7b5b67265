"""The facade: the only door through which the rest of the system reaches Redis.

Replies are raw: bulk strings ``bytes``, integers ``int``, nil ``None``, arrays ``list``.
Errors are the StoreErrors of :mod:`cluster.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio
from redis.crc import key_slot

from cluster.errors import (
    ConditionFailed,
    DurabilityLost,
    NotDurable,
    OutcomeUnknown,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from cluster.store.aggregator import Aggregator, CommitResult, Packed, split
from cluster.store.connection import Argument
from cluster.store.durability import parse_durability
from cluster.store.keys import DEFAULT_PREFIX, Keys
from cluster.store.nurseries import plain_nursery
from cluster.store.pipe import CALL_TIMEOUT, Pipe, PipeStatistics, open_pipe
from cluster.store.pubsub import PubSub, PubSubStatistics, open_pubsub
from cluster.store.scripts import load_all as load_all_scripts
from cluster.store.scripts import script as load_script
from cluster.store.transaction import Transaction

ASK_AGAIN_FOR: Final = 30.0  # seconds an ambiguous commit is re-asked (rule G1)
ASK_AGAIN_PAUSE: Final = 0.1

_APPLIED, _ALREADY, _CONDITION, _INTERNAL = 1, 2, 0, -1


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counts since the store was opened."""

    pipe: PipeStatistics
    pubsub: PubSubStatistics
    commits: int
    commit_calls: int
    commits_asked_again: int


class Store:
    """See the module; made by :func:`open_store`."""

    def __init__(self, keys: Keys, pipe: Pipe, pubsub: PubSub, nursery: trio.Nursery) -> None:
        self.keys = keys
        self._pipe = pipe
        self._pubsub = pubsub
        self._aggregator = Aggregator(nursery, self._send_group)
        self._commits = 0
        self._commit_calls = 0
        self._asked_again = 0
        self._doubt: str | None = None
        self._lease_ends: list[Callable[[str, str], None]] = []
        self.clustered = pipe.clustered

    @property
    def generation(self) -> str:
        """Identity of the server behind us (run id and replication id); another value means that
        it was restarted or replaced, so what it confirmed last may be lost."""
        return self._pipe.generation

    def doubt(self, problem: str | None) -> None:
        """Refuse commits and hand-outs with DurabilityLost while ``problem`` says why the server would not
        keep what the durability setting promises (A2); None: it does again. Reads go on."""
        self._doubt = problem

    def on_new_generation(self, handler: Callable[[], None]) -> None:
        """Call ``handler()`` in the trio thread when :attr:`generation` has changed, also the first time
        that a server of a Cluster is met."""
        self._pipe.on_new_generation(handler)

    # -- commands and scripts ---------------------------------------------------------------

    async def call(self, *command: Argument, idempotent: bool = False, urgent: bool = False) -> Any:
        """One plain Redis command; ``command[1]``, when present, is the key that routes it.

        With ``idempotent`` it is sent again after a lost reply, else that raises OutcomeUnknown.
        """
        slot = self._slot(command[1]) if len(command) > 1 else 0
        return await self._pipe.execute(command, slot=slot, idempotent=idempotent, urgent=urgent)

    async def run(
        self,
        script: str,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        idempotent: bool = False,
        urgent: bool = False,
        stamped: bool = False,
    ) -> Any:
        """Run ``lua/<script>.lua``; ``keys[0]`` routes it.

        ``urgent`` takes the lane for renewals: nothing queues in front of it, and it does not wait
        for replicas. ``stamped``: the first GENERATION among ``args`` becomes the stamp of the server that
        runs it, which tells one server, and one life of it, from any other. Hand-outs are stamped.
        """
        if stamped and self._doubt is not None:
            raise DurabilityLost(self._doubt)
        body = load_script(script)
        return await self._pipe.execute(
            ["EVALSHA", body.sha, len(keys), *keys, *args],
            slot=self._slot(keys[0]),
            script=body,
            idempotent=idempotent,
            urgent=urgent,
            stamped=stamped,
        )

    def _slot(self, key: Argument) -> int:
        if not self.clustered:
            return 0
        return key_slot(key if isinstance(key, bytes) else str(key).encode())

    # -- commits ----------------------------------------------------------------------------

    async def commit(self, tx: Transaction) -> bool:
        """Apply a transaction if all its conditions hold.

        True: applied now; False: this request id had been applied before. Raises ConditionFailed
        when a condition did not hold, TransactionTooLarge before anything is sent. A lost reply
        is asked for again with the same request id for up to ASK_AGAIN_FOR seconds; after that,
        or without a request id, OutcomeUnknown.
        """
        result = await self._aggregator.commit(Packed(tx, tx.pack()))
        if isinstance(result, StoreError):
            raise result
        return result

    async def commit_many(self, txs: Sequence[Transaction]) -> list[bool | ConditionFailed]:
        """Commit transactions in order, each on its own; on a Redis Cluster all are of one partition.

        Returns :meth:`commit`'s result or the ConditionFailed of each; any other error is raised
        once all were tried (a caller that repeats them needs request ids).
        """
        if self.clustered and len({tx.partition for tx in txs}) > 1:
            raise ValueError("on a cluster commit_many takes transactions of one partition")
        results: list[CommitResult] = []
        for group in split([Packed(tx, tx.pack()) for tx in txs]):
            results += await self._send_group(group)
        answers: list[bool | ConditionFailed] = []
        for result in results:
            if isinstance(result, StoreError) and not isinstance(result, ConditionFailed):
                raise result
            answers.append(result)
        return answers

    async def _send_group(self, group: Sequence[Packed]) -> list[CommitResult]:
        """Commit a group of one mode in one script call: one result per transaction, never raises."""
        self._commits += len(group)
        if self._doubt is not None:
            return [DurabilityLost(self._doubt)] * len(group)
        try:
            return await self._ask(group)
        except OutcomeUnknown as lost:
            return await self._ask_again(group, lost)
        except StoreRefused as error:
            if len(group) == 1:
                return [error]
            # A script that broke off may have applied a part of the group: settle one by one.
            unknown = OutcomeUnknown(f"a commit that travelled along failed: {error}")
            return [result for item in group for result in await self._ask_again([item], unknown)]
        except StoreError as error:
            return [error] * len(group)

    async def _ask_again(self, group: Sequence[Packed], lost: OutcomeUnknown) -> list[CommitResult]:
        """Re-ask the repeatable transactions of a group whose outcome is open (rule G1).

        "Not executed" and "memory full" settle nothing here: they tell of this attempt only.
        """
        results: list[CommitResult] = [lost] * len(group)
        again = [index for index, item in enumerate(group) if item.repeatable]
        deadline = trio.current_time() + ASK_AGAIN_FOR
        while again and trio.current_time() < deadline and not self._pipe.closed:
            self._asked_again += len(again)
            answers: list[CommitResult] = []
            try:
                answers = await self._ask([group[index] for index in again])
            except (OutcomeUnknown, StoreUnavailable, StoreFull):
                await trio.sleep(ASK_AGAIN_PAUSE)
                continue
            except NotDurable as error:
                answers = [error] * len(again)
            except StoreError as error:
                answers = [error] if len(again) == 1 else []
            for index, answer in zip(again, answers, strict=False):
                results[index] = answer
            break
        return results

    async def _ask(self, group: Sequence[Packed]) -> list[CommitResult]:
        first = group[0].tx
        mode = "allow" if first.frees else "refuse"
        self._commit_calls += 1
        arguments: list[str | bytes] = [mode, self.keys.prefix]
        for item in group:
            arguments += self.keys.base(item.tx.partition), item.data
        replies = await self.run("commit", [self.keys.touch(first.partition)], arguments)
        for item, reply in zip(group, replies, strict=True):
            if reply[0] == _APPLIED:
                ended, handed_over = reply[1], iter(reply[2])
                if ended:
                    self._tell_ended(ended)
                item.tx.handed_over = {task.decode(): int(next(handed_over)) for task in handed_over}
        return [_result(item.tx, reply) for item, reply in zip(group, replies, strict=True)]

    def on_lease_end(self, handler: Callable[[str, str], None]) -> None:
        """Call ``handler(encoded heads, ticket)`` for each admitted lease that a commit ended.

        A commit whose reply was lost does not say so.
        """
        self._lease_ends.append(handler)

    def _tell_ended(self, ended: list[bytes]) -> None:
        for heads, ticket in zip(ended[::2], ended[1::2], strict=True):
            for handler in self._lease_ends:
                handler(heads.decode(), ticket.decode())

    # -- pub/sub ----------------------------------------------------------------------------

    def on_message(self, channel_prefix: str, handler: Callable[[str, bytes], None]) -> None:
        """Call ``handler(channel, message)`` in the trio thread for channels that start so.

        The handler must be quick and may not raise. Messages come at most once (see
        :meth:`on_reconnect`).
        """
        self._pubsub.on_message(channel_prefix, handler)

    def on_reconnect(self, handler: Callable[[], None]) -> None:
        """Call ``handler()`` after pub/sub was re-established: anything may have been missed."""
        self._pubsub.on_reconnect(handler)

    async def subscribe(self, *channels: str) -> None:
        """Returns once Redis confirmed; counted, so each needs its own :meth:`unsubscribe`.

        Raises StoreUnavailable when Redis stays away; the channels are then not subscribed.
        """
        await self._pubsub.subscribe(*channels)

    async def unsubscribe(self, *channels: str) -> None:
        """The opposite of :meth:`subscribe`; does not wait for Redis."""
        self._pubsub.unsubscribe(*channels)

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            pipe=self._pipe.statistics(),
            pubsub=self._pubsub.statistics(),
            commits=self._commits,
            commit_calls=self._commit_calls,
            commits_asked_again=self._asked_again,
        )


def _result(tx: Transaction, reply: list[Any]) -> CommitResult:
    """One entry of ``commit.lua``'s reply."""
    code = reply[0]
    if code == _APPLIED:
        return True
    if code == _ALREADY:
        return False
    if code == _CONDITION:
        index = int(reply[1])
        return ConditionFailed(index, tx.conditions[index], reply[2] if len(reply) > 2 else None)
    return StoreRefused(f"commit failed: {bytes(reply[1]).decode(errors='replace')}")


@asynccontextmanager
async def open_store(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    partitions: int = 16,
    durability: str = "memory",
    call_timeout: float = CALL_TIMEOUT,
) -> AsyncIterator[Store]:
    """Connect to Redis; everything started for it ends with the block.

    ``url`` is one of :mod:`cluster.store.topology`'s forms, ``call_timeout`` (s) how long a call
    waits while Redis is away. Raises StartupError for a bad URL or durability, StoreUnavailable
    when Redis cannot be reached in time. Start-up checks are in :mod:`cluster.store.checks`.
    """
    replicas = parse_durability(durability).replicas
    load_all_scripts()
    async with (
        open_pipe(url, replicas=replicas, call_timeout=call_timeout) as pipe,
        open_pubsub(url) as pubsub,
        plain_nursery() as nursery,
    ):
        store = Store(Keys(prefix, partitions), pipe, pubsub, nursery)
        await store.call("PING", idempotent=True)
        yield store
