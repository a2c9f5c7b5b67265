"""A pull worker that misbehaves in every way the protocol knows, and writes down what it sees.

``python -m tests.chaos.streams_worker PARENT URL FLOW_TYPE NAME SEED EVENTS``. It speaks the protocol by
hand, because half-closing in the moment of a hand-out is what a good library avoids.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from wsproto.utilities import LocalProtocolError

from nodes.cli.processes import end_with_parent
from tests.chaos.streams_events import EventLog
from tests.stream_client import Frame, Refused, StreamClient, connect

CONNECTIONS: Final = 2
SHARED: Final = 4
RPC_ONLY: Final = 1
"""Slots of a connection."""
LONGEST_WORK: Final = 0.03
IDLE_CLOSE: Final = 0.1
"""Seconds between two half-closes of idle slots, in the mean."""
RETRY: Final = {"execute": {"timeout_seconds": 5, "retry": {"initial_interval_seconds": 0.05}}}
WAITS: Final = {**RETRY, "wait_for": RETRY["execute"]}
FOLLOWERS: Final[dict[str, list[tuple[str, Any]]]] = {
    "a": [("b", RETRY), ("c", WAITS)],
    "b": [("d", RETRY)],
}
"""Steps of a flow: a leads to b and c, b to d."""
COUNTER_STEP: Final = "count"
"""The only step of the flow that RPCs count in; it waits for ever."""
ENDINGS: Final = {
    "output": 70,
    "beat_and_output": 8,
    "failure": 6,
    "half_close": 6,
    "half_close_after_beat": 2,
    "reset": 3,
    "decline": 3,
    "drop": 1,
    "silence": 1,
}
"""How likely a step ends in which way. ``silence``: only its timeout ends it, and a cancel the handler."""


@dataclass
class Slot:
    """A slot as this worker sees it."""

    number: int
    kind: str
    idle: bool = False
    leaving: bool = False
    attempt_id: str = ""
    silent: bool = False
    cancelled: str = ""
    """The attempt that the node asked to stop last."""


@dataclass
class Life:
    """One connection, from hello to its end."""

    client: StreamClient
    log: EventLog
    random: Random
    session: str
    nursery: trio.Nursery
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    slots: dict[int, Slot] = field(default_factory=dict)

    async def run(self) -> None:
        for kind in ["step_and_rpc"] * SHARED + ["rpc_only"] * RPC_ONLY:
            await self.open(kind)
        self.nursery.start_soon(self.close_idle_slots)
        while True:
            frame = await self.client.take(lambda _: True, within=3600)
            await self.obey(frame)

    async def open(self, kind: str) -> None:
        slot = Slot(next(self.numbers), kind)
        self.slots[slot.number] = slot
        await self.client.send({"type": "open", "slot": slot.number, "kind": kind})

    async def obey(self, frame: Frame) -> None:
        slot = self.slots.get(frame.get("slot") or 0)
        match frame["type"]:
            case "reconnect":
                await self.client.drop()
            case "registered" if slot is not None:
                slot.idle = True
            case "rejected" if slot is not None:
                del self.slots[slot.number]
                await trio.sleep(0.2)
                await self.open(slot.kind)
            case "task" if slot is not None:
                self.handed_out(slot, frame["task"])
            case "cancel" if slot is not None and slot.attempt_id == frame["attempt_id"]:
                slot.cancelled = slot.attempt_id
                if slot.silent:
                    await self.end_cancelled(slot)
            case "confirmed" if slot is not None:
                self.log.write(
                    "confirmed",
                    attempt_id=frame["attempt_id"],
                    accepted=frame["accepted"],
                    reason=frame.get("reason", ""),
                )
                if slot.attempt_id == frame["attempt_id"]:
                    slot.idle, slot.attempt_id = True, ""
            case "closed" if slot is not None:
                if slot.attempt_id:
                    self.log.write("closed", attempt_id=slot.attempt_id, reason=frame["reason"])
                del self.slots[slot.number]
                if frame["reason"] != "reconnect":
                    await self.open(slot.kind)

    def handed_out(self, slot: Slot, task: Frame) -> None:
        slot.idle, slot.attempt_id, slot.silent = False, task["attempt_id"], False
        self.log.write(
            "handed_out",
            attempt_id=task["attempt_id"],
            kind=task["kind"],
            slot_kind=slot.kind,
            session=self.session,
            flow_id=task["flow_id"],
            execution=task.get("step_execution_id", ""),
            method=task.get("method", ""),
            attempt=task["attempt"],
            first_attempt_at=task.get("first_attempt_at") if task["attempt"] == 1 else None,
        )
        if slot.leaving:
            # It crossed the half-close: not run, and it must come back as the same attempt (R77).
            self.log.write("ending", attempt_id=task["attempt_id"], how="half_close")
            return
        self.nursery.start_soon(self.work, slot, task)

    async def work(self, slot: Slot, task: Frame) -> None:
        how = "output"
        if task["kind"] == "step":
            (how,) = self.random.choices(list(ENDINGS), list(ENDINGS.values()))
        await trio.sleep(self.random.uniform(0, LONGEST_WORK))
        place = {"slot": slot.number, "attempt_id": task["attempt_id"]}
        if how in ("beat_and_output", "half_close_after_beat"):
            await self.client.send({"type": "heartbeat", **place, "checkpoint": {"n": task["attempt"]}})
        self.log.write("ending", attempt_id=task["attempt_id"], how=how)
        match how:
            case "output" | "beat_and_output":
                await self.client.send({"type": "output", **place, "output": output_of(task)})
            case "failure":
                failure = {"message": "on purpose", "type": "OnPurpose"}
                await self.client.send({"type": "output", **place, "failure": failure})
            case "half_close" | "half_close_after_beat":
                slot.leaving = True
                await self.client.send({"type": "half_close", "slot": slot.number})
            case "reset":
                await self.client.send({"type": "reset", "slot": slot.number})
            case "decline":
                await self.client.send({"type": "decline", **place, "reason": "no_capacity"})
            case "silence":
                slot.silent = True
                if slot.cancelled == task["attempt_id"]:
                    await self.end_cancelled(slot)
            case "drop":
                await self.client.drop()

    async def end_cancelled(self, slot: Slot) -> None:
        """A handler that said nothing ends because it was told to."""
        failure = {"message": "cancelled", "type": "Cancelled"}
        place = {"slot": slot.number, "attempt_id": slot.attempt_id}
        await self.client.send({"type": "output", **place, "failure": failure})

    async def close_idle_slots(self) -> None:
        """Half-close now and then what is idle, so that it crosses hand-outs."""
        while True:
            await trio.sleep(self.random.uniform(0, 2 * IDLE_CLOSE))
            idle = [slot for slot in self.slots.values() if slot.idle and not slot.leaving]
            if idle:
                slot = self.random.choice(idle)
                slot.leaving = True
                await self.client.send({"type": "half_close", "slot": slot.number})


def output_of(task: Frame) -> Any:
    """What the handler of a task returns."""
    if task["kind"] == "rpc":
        count = task["attributes"].get("n", 0) + 1
        return {"result": count, "attributes": {"n": count}}
    if task["method"] == "wait_for":
        waits = {"channel": "never"} if task["step_type"] == COUNTER_STEP else {"timer_seconds": 0.05}
        return {"conditions": {"items": [{"id": "it", **waits}]}}
    following = FOLLOWERS.get(task["step_type"])
    if following is None:
        return {"decision": {"dead_end": True}}
    return {"decision": {"next": [{"step_type": name, "options": options} for name, options in following]}}


async def connected(url: str, flow_type: str, name: str, random: Random, log: EventLog) -> None:
    """Keep one connection, whatever happens to it."""
    while True:
        life: Life | None = None
        try:
            async with connect(url) as client:
                welcome = await client.hello(name, flow_type, task_limit=64, reserved_rpc_slots=2)
                async with trio.open_nursery() as nursery:
                    life = Life(client, log, random, welcome["session"], nursery)
                    nursery.start_soon(life.run)
        except* (OSError, Refused, AssertionError, trio.TrioInternalError, trio.TooSlowError):
            pass
        except* (trio.BrokenResourceError, trio.ClosedResourceError, LocalProtocolError):
            pass
        if life is not None:
            lost = [slot.attempt_id for slot in life.slots.values() if slot.attempt_id]
            log.write("cut", attempt_ids=lost)
        await trio.sleep(0.1)


async def main(url: str, flow_type: str, name: str, seed: int, events: Path) -> None:
    log = EventLog(events, name)
    async with trio.open_nursery() as nursery:
        for number in range(CONNECTIONS):
            random = Random(f"{seed} {number}")
            nursery.start_soon(connected, url, flow_type, name, random, log)
        print("ready", flush=True)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    trio.run(main, sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), Path(sys.argv[6]))
