"""Request ids of RPCs: the same id gets the same answer, and what the RPC does is done once.

A call claims its id, in a hash of the run's partition, for as long as it may take: field ``by`` is the
RPC. The commit that does what the handler decided is conditional on that claim and stores the answer
beside it, so neither a repetition nor a call that was thought dead does it again. A repetition that
comes meanwhile waits for the answer. A call that ended without one gives its id back: no effect of it
was stored, so it may be made anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog
import trio

from cluster.errors import ConditionFailed, Refused, StoreError
from cluster.flows.clients import ONCE_SECONDS, Clients
from cluster.ids import partition_of_run
from cluster.store.transaction import Transaction

log = structlog.get_logger(__name__)

CLAIM_GRACE_MS: Final = 5_000
"""A request id stays claimed longer than its RPC may take by this much."""
FINAL_STATUS: Final = 422
"""A refusal with this status is what the handler had to say: it is an answer like any other."""


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A claimed request id: ``key`` is its hash, ``channel`` tells that it was answered or given back."""

    rpc_id: str
    partition: int
    key: str
    channel: str

    def keep(self, tx: Transaction, answer: bytes) -> None:
        """Let ``tx`` store the answer, and hold only while the request id is claimed by this RPC."""
        tx.expect_equal(self.key, "by", self.rpc_id)
        tx.hset(self.key, {"answer": answer})
        tx.redis("EXPIRE", self.key, ONCE_SECONDS)
        tx.publish(self.channel, "")


def answer_of(result: dict[str, Any]) -> bytes:
    """What is stored of a success; members may be ``orjson.Fragment``."""
    return orjson.dumps({"answer": result})


def refusal_of(refused: Refused) -> bytes:
    """What is stored of a refusal."""
    fields = {"reason": refused.reason, "message": refused.message, "status": refused.status}
    return orjson.dumps({"refused": fields, "fields": refused.fields})


class Repeats(Clients):
    """Knows which RPCs were called before."""

    async def claim_request(
        self, run_id: str, name: str, request_id: str, rpc_id: str, seconds: float
    ) -> RpcRequest | dict[str, Any]:
        """The claimed request, or the answer of the call that was first.

        Waits up to ``seconds`` for a call that is under way. Raises Refused: what the handler said
        then, or rpc_in_progress 409.
        """
        partition = partition_of_run(run_id) or 0
        digest = hashlib.blake2b(f"{name}\0{request_id}".encode(), digest_size=16).hexdigest()
        key = self._store.keys.once(partition, run_id, digest)
        place = f"{run_id}/{digest}"
        request = RpcRequest(rpc_id, partition, key, self._store.keys.flow_end_channel(place))
        with trio.move_on_after(seconds):
            async with self._ends.listening(place) as listener:
                while not self._ends.closed:
                    if await self._claim(request, seconds):
                        return request
                    answer, left_ms = await self._look(key)
                    if answer is not None:
                        return _read_answer(answer)
                    with trio.move_on_after(max(left_ms, 0) / 1000):
                        await listener.wait()
        raise Refused("rpc_in_progress", "A call with this request id is under way; ask again.", status=409)

    async def _claim(self, request: RpcRequest, seconds: float) -> bool:
        tx = Transaction(request.partition)
        tx.expect_absent(request.key)
        tx.hset(request.key, {"by": request.rpc_id})
        tx.redis("PEXPIRE", request.key, int(seconds * 1000) + CLAIM_GRACE_MS)
        try:
            await self._store.commit(tx)
        except ConditionFailed:
            # The reply of a commit that was applied may have been lost, and the commit sent again.
            by = await self._store.call("HGET", request.key, "by", idempotent=True)
            return bool(by == request.rpc_id.encode())
        return True

    async def _look(self, key: str) -> tuple[bytes | None, int]:
        """The stored answer, and for how many ms the claim of whoever works on it lasts."""
        answer = await self._store.call("HGET", key, "answer", idempotent=True)
        left_ms = await self._store.call("PTTL", key, idempotent=True)
        return answer, int(left_ms)

    async def keep_answer(self, request: RpcRequest, answer: bytes) -> None:
        """Store an answer that goes with no other change. Raises StoreError; no-op without the claim."""
        tx = Transaction(request.partition, frees=True)
        request.keep(tx, answer)
        try:
            await self._store.commit(tx)
        except ConditionFailed:
            return

    async def give_back_request(self, request: RpcRequest) -> None:
        """The call ended without an answer: the same request may be made again, at the latest when its
        claim has run out.
        """
        tx = Transaction(request.partition, frees=True)
        tx.expect_equal(request.key, "by", request.rpc_id)
        tx.expect_unset(request.key, "answer")
        tx.redis("DEL", request.key)
        tx.publish(request.channel, "")
        try:
            await self._store.commit(tx)
        except StoreError as error:
            log.debug("request_id_stayed_claimed", reason=error.reason)


def _read_answer(stored: bytes) -> dict[str, Any]:
    found = orjson.loads(stored)
    if "refused" in found:
        refused = found["refused"]
        raise Refused(refused["reason"], refused["message"], status=refused["status"], **found["fields"])
    answer: dict[str, Any] = found["answer"]
    return answer
