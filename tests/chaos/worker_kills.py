"""Workers are killed at every moment of both protocols; somebody else finishes what they had.

``python -m tests.chaos.worker_kills [--kills 1000] [--lanes 6] [--nodes 2] [--keep DIR]`` prints how soon the
work of each dead worker was handed out again, by where it died, and ends with 1 when a promise was broken.

A *lane* has a queue of its own. One life after the other: a victim comes as far as its moment, an execution
is started, the victim dies, and a rescuer that asked for work only when the victim had its task gets what is
left. So the time from the death to the next hand-out is exactly what the servers take.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import trio

from nodes.cli.processes import Child
from tests.chaos import victim
from tests.chaos.chain import NOTHING_TO_DO, chain_of
from tests.chaos.checker import check
from tests.chaos.programs import run_program
from tests.chaos.record import Answered, HandedOut, Observed, Outcome, Recorder, Verb, now, read_lines
from tests.chaos.recorded_worker import ask, open_client
from tests.chaos.recovery import SECOND, Spread, spread
from tests.chaos.victim import LEASE_NS, TENANT, WORKFLOW, Moment
from tests.cluster_processes import Cluster, environment, kill, make_cluster
from tests.servers import run_server
from tests.stream_client import StreamClient, connect
from tests.waiting import eventually
from tests.wire import Wire, complete

PING_SECONDS: Final = 1.0
SETTINGS: Final = f"matching:\n  pingInterval: {PING_SECONDS:g}s\n  stickyWait: 500ms\n  dispatchWait: 4s\n"
RETRY_SECONDS: Final = 0.05
OPTIONS: Final = {"execute": {"retry": {"initial_interval_seconds": RETRY_SECONDS, "maximum_attempts": 10}}}
RESCUE_SECONDS: Final = 20.0
SILENT_EVERY: Final = 25
"""Black holes take seconds, so there is only one in so many lives."""
LOUD: Final = [moment for moment in Moment if not moment.silent]
SILENT: Final = [moment for moment in Moment if moment.silent]
NEXT_ATTEMPT: Final[dict[Moment, int]] = {
    Moment.HANDED_OUT: 2,
    Moment.BEATEN: 2,
    Moment.BEATEN_HALF_CLOSED: 2,
    Moment.RESET: 2,
    Moment.SILENT: 2,
    Moment.SILENT_BEATEN: 2,
    Moment.HALF_CLOSED: 1,
    Moment.DECLINED: 1,
    Moment.DECIDING: 2,
    Moment.WORKING: 2,
    Moment.BEATING: 2,
}
"""Under which number the task comes again, where nothing else would do (docs/protocol.md)."""


def moment_of(life: int) -> Moment:
    """Where the victim of a life dies: each moment in its turn."""
    if life % SILENT_EVERY == 0:
        return SILENT[life // SILENT_EVERY % len(SILENT)]
    return LOUD[life % len(LOUD)]


@dataclass
class Rescues:
    """Seconds from a death to the next hand-out, by moment; ``wrong`` is what should not have been."""

    kills: int = 0
    after: defaultdict[Moment, list[float]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[str] = field(default_factory=list)

    def spreads(self) -> dict[Moment, Spread]:
        return {moment: spread(self.after[moment]) for moment in Moment if self.after[moment]}

    def __str__(self) -> str:
        rows = [f"{moment:38} {found}" for moment, found in self.spreads().items()]
        return "\n".join([f"{self.kills} workers killed; seconds until the task came again:", *rows])


@dataclass
class Lane:
    """``url`` is where both the victims and the rescuer go."""

    number: int
    cluster: Cluster
    url: str
    rescues: Rescues
    wire: Wire
    recorder: Recorder
    stream: StreamClient
    slots: int = 0

    @property
    def queue(self) -> str:
        return f"lane-{self.number}"

    async def live(self, life: int) -> None:
        """One victim, one execution, one rescue."""
        moment = moment_of(life)
        child = self._victim(life, moment)
        try:
            await (self._life_of_polls if moment.polls else self._life_of_stream)(child, life, moment)
        finally:
            kill(child)
        self.rescues.kills += 1

    def _victim(self, life: int, moment: Moment) -> Child:
        parts, name = urlsplit(self.url), f"victim-{life}"
        record = self.cluster.directory / f"{self.queue}.events"
        where = [str(parts.hostname), str(parts.port), str(record)]
        return Child.start(
            name,
            "tests.chaos.victim",
            [str(os.getpid()), *where, name, self.queue, moment],
            environ=environment(),
            log=self.cluster.directory / f"{name}.log",
            pipe=True,
        )

    async def _told(self, child: Child, *words: str) -> None:
        """Wait for words of a victim, one after the other; its end counts as all of them."""
        lines = child.lines()
        with trio.fail_after(RESCUE_SECONDS):
            for word in words:
                async for line in lines:
                    if line == word:
                        break
        await lines.aclose()

    async def _death(self, child: Child, moment: Moment) -> int:
        """When the victim had died, or stands still (ns)."""
        with trio.fail_after(RESCUE_SECONDS):
            if moment.silent:
                state = Path(f"/proc/{child.process.pid}/stat")
                await eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
                return now()
            code = await child.wait()
        died = now()
        if code != -signal.SIGKILL:
            self.rescues.wrong.append(f"{child.name} ended with {code}: {child.log.read_text()[-500:]}")
        return died

    # -- streams ------------------------------------------------------------------------------

    async def _life_of_stream(self, child: Child, life: int, moment: Moment) -> None:
        execution = f"f{life}"
        if moment.with_task or moment is Moment.IDLE:
            await self._told(child, "idle")
        else:
            await self._death(child, moment)
        body = {
            "flow_type": self.queue,
            "flow_id": execution,
            "start_step": "s",
            "step_options": OPTIONS,
            "request_id": execution,
            "ignore_already_started": True,
        }
        await self._start("/api/flows", execution, body)
        if moment.with_task:
            await self._told(child, "task")
        self.slots += 1
        await self.stream.open(self.slots)
        died = await self._death(child, moment)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._rescue_step, life, moment, died)
            await self._until_over("flows", execution)
            nursery.cancel_scope.cancel()
        await self.stream.send({"type": "half_close", "slot": self.slots})

    async def _rescue_step(self, life: int, moment: Moment, died: int) -> None:
        frame = await self.stream.next("task", within=RESCUE_SECONDS, slot=self.slots)
        task = frame["task"]
        victim.note_step(self.recorder, task)
        self._rescued(life, moment, died, task["attempt"])
        op = victim.invoke_step(self.recorder, task)
        confirmed = await self.stream.complete(frame, victim.output_of(task), within=RESCUE_SECONDS)
        outcome = Outcome.OK if confirmed["accepted"] else Outcome.REFUSED
        self.recorder.note(Answered(op=op, outcome=outcome))

    def _rescued(self, life: int, moment: Moment, died: int, attempt: int) -> None:
        self.rescues.after[moment].append(max(0, now() - died) / SECOND)
        expected = NEXT_ATTEMPT.get(moment)
        if expected not in (None, attempt):
            self.rescues.wrong.append(f"{moment} in life {life}: attempt {attempt}, not {expected}")

    # -- polls --------------------------------------------------------------------------------

    async def _life_of_polls(self, child: Child, life: int, moment: Moment) -> None:
        execution = f"w{life}"
        if moment.with_task:
            await self._told(child, "idle")
        else:
            await self._death(child, moment)
        body = {"workflow_type": WORKFLOW, "task_queue": self.queue, "workflow_id": execution}
        await self._start("/api/workflows", execution, {**body, "duplicate_policy": "use-existing"})
        died = await self._death(child, moment)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._rescue_polls, life, moment, died)
            await self._until_over("workflows", execution)
            nursery.cancel_scope.cancel()

    async def _rescue_polls(self, life: int, moment: Moment, died: int) -> None:
        """Do what there is to do until cancelled; the first hand-out is the rescue."""
        worker = f"rescuer-{self.number}"
        await self.wire.register(worker, self.queue, workflows=[WORKFLOW], activities=[victim.ACTIVITY])
        first = trio.Event()

        async def serve(kind: str) -> None:
            while True:
                sent = now()
                task = await self.wire.poll(kind, worker, self.queue, seconds=20)
                if task is not None:
                    token = victim.note_poll(self.recorder, task, sent)
                    if not first.is_set():
                        first.set()
                        number = task.get("attempt_number") or task["workflow_task_attempt"]
                        self._rescued(life, moment, died, number)
                    await self._finish(kind, task, token)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, "workflow")
            nursery.start_soon(serve, "activity")

    async def _finish(self, kind: str, task: dict[str, Any], token: str) -> None:
        if kind == "activity":
            body: dict[str, Any] = {"result": victim.payload_of(token)}
            verb = Verb.COMPLETE
        else:
            chain = chain_of(task["history_events"])
            if chain.done:
                tokens = [victim.value_of(one["payload_codec"], one["result"]) for one in chain.done]
                body, verb = {"commands": [complete(tokens)]}, Verb.CLOSE
            elif not chain.open:
                body, verb = {"commands": [victim.schedule_command(self.queue)]}, Verb.DECIDE
            else:
                body, verb = {"failure": NOTHING_TO_DO}, Verb.FAIL
        op = self.recorder.invoke(verb, TENANT, task["workflow_id"], task=task["task_id"], token=token)
        path = f"/api/worker/{kind}-tasks/{task['task_id']}/{'fail' if verb is Verb.FAIL else 'complete'}"
        answer = {**victim.answer_of(task), **body}
        await ask(self.recorder, op, lambda: self.wire.client.post(path, json=answer))

    # -- clients ------------------------------------------------------------------------------

    async def _start(self, path: str, execution: str, body: dict[str, Any]) -> None:
        op = self.recorder.invoke(Verb.START, TENANT, execution)
        outcome = await ask(self.recorder, op, lambda: self.wire.client.post(path, json=body))
        assert outcome is Outcome.OK, f"{execution} was not started: {outcome}"

    async def _until_over(self, plane: str, execution: str) -> None:
        """Wait for the end and note it; what does not end is noted as it is."""
        body: dict[str, Any] = {}
        sent = now()

        async def over() -> bool:
            nonlocal body, sent
            sent = now()
            body = (await self.wire.client.get(f"/api/{plane}/{execution}")).json()
            return bool(body.get("is_terminal"))

        with suppress(trio.TooSlowError):
            await eventually(over, RESCUE_SECONDS)
        result = body.get("result" if plane == "flows" else "output") or ()
        self.recorder.note(
            Observed(
                tenant=TENANT,
                execution=execution,
                status=body.get("status", "missing"),
                sent=sent,
                terminal=bool(body.get("is_terminal")),
                results=tuple(result),
                final=True,
            )
        )


async def run_worker_kills(directory: Path, *, kills: int, lanes: int, nodes: int = 2) -> Rescues:
    """Let ``kills`` workers die, in so many lanes at once; all promises of the checker are checked."""
    rescues = Rescues()
    settings = directory / "headrace.yaml"
    settings.write_text(SETTINGS)
    lease = str(LEASE_NS // SECOND)
    environ = {
        "HEADRACE_CONFIG": str(settings),
        "DW_ACTIVITY_TASK_TIMEOUT": lease,
        "DW_WORKFLOW_TASK_TIMEOUT": lease,
    }
    with (
        run_server("valkey", directory) as server,
        make_cluster(nodes, server.url, directory / "nodes", environ) as cluster,
    ):
        await cluster.start()
        lives = iter(range(1, kills + 1))

        async def run_lane(number: int) -> None:
            url = cluster.nodes[number % nodes].url
            rescuer = Recorder(cluster.directory / f"rescuer-{number}.events", f"rescuer-{number}")
            with rescuer as recorder:
                async with open_client(url, TENANT) as client, connect(url) as stream:
                    client.timeout = httpx.Timeout(RESCUE_SECONDS + 10)
                    await stream.hello(f"rescuer-{number}", f"lane-{number}", task_limit=64)
                    lane = Lane(number, cluster, url, rescues, Wire(client), recorder, stream)
                    for life in lives:
                        await lane.live(life)

        async with trio.open_nursery() as nursery:
            for number in range(lanes):
                nursery.start_soon(run_lane, number)
        lines = read_lines(sorted(cluster.directory.glob("*.events")))
    rescues.wrong += [str(broken) for broken in check(lines)]
    assert any(isinstance(line, HandedOut) for line in lines)
    return rescues


async def _main(options: argparse.Namespace, directory: Path) -> Sequence[str]:
    rescues = await run_worker_kills(directory, kills=options.kills, lanes=options.lanes, nodes=options.nodes)
    print(rescues)
    return rescues.wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--lanes", type=int, default=6, help="how many workers live at a time")
    parser.add_argument("--nodes", type=int, default=2)
    return run_program(parser, _main, argv)


if __name__ == "__main__":
    sys.exit(main())
