"""Directs the demo and tells it, step by step."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from cluster.errors import StartupError
from nodes.cli.console import complain, until_signal
from nodes.cli.demo.balancer import Backend, Balancer
from nodes.cli.local import HOST, LocalNode, free_ports, running_nodes, running_store
from nodes.cli.processes import Child, stopping

LIMIT_SECONDS = 60.0
WORKFLOW_ID = "order-1001"


class DemoFailed(Exception):
    """The demo did not go as it should; the message says what happened."""


@dataclass(slots=True)
class Story:
    """The lines told so far are timed from ``begin`` (trio's clock, seconds)."""

    begin: float = field(default_factory=trio.current_time)
    attempts: Counter[str] = field(default_factory=Counter)

    def seconds(self) -> float:
        return trio.current_time() - self.begin

    def tell(self, text: str) -> None:
        sys.stdout.write(f"[{self.seconds():5.2f} s] {text}\n")
        sys.stdout.flush()

    def tell_move(self, old: Backend, new: Backend) -> None:
        self.tell(f"balancer: {old.name} is gone, its clients go to {new.name}")


async def demonstrate() -> int:
    """Run the demo; returns the exit code."""
    if importlib.util.find_spec("durable_workflow") is None:
        raise StartupError("the demo needs the durable-workflow SDK: pip install 'headrace[demo]'")
    story = Story()
    reason = "interrupted"
    try:
        async with until_signal():
            with trio.move_on_after(LIMIT_SECONDS):
                result = await _perform(story)
                sys.stdout.write(f"demo: completed in {story.seconds():.1f} s: {'; '.join(result)}\n")
                return 0
            reason = f"not finished within {LIMIT_SECONDS:.0f} s"
    except* DemoFailed as group:
        reason = str(_first(group))
    complain(f"failed: {reason}", "demo")
    return 1


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _perform(story: Story) -> list[str]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        story.tell("starting an embedded Valkey and two nodes")
        url = await stack.enter_async_context(running_store(directory / "valkey", directory, _environment()))
        local = await stack.enter_async_context(running_nodes(free_ports(2), url, directory, _environment()))
        story.tell(f"ready: {', '.join(f'{node.name} on {node.url}' for node in local)}")

        balancers = await stack.enter_async_context(_background())
        backends = [Backend(node.name, HOST, node.port) for node in local]
        front = Balancer(backends, story.tell_move)
        back = Balancer(backends[::-1], story.tell_move)
        worker_url = f"http://{HOST}:{await balancers.start(front.serve, HOST)}"
        client_url = f"http://{HOST}:{await balancers.start(back.serve, HOST)}"

        worker = await stack.enter_async_context(_process("worker", [worker_url], directory))
        client = await stack.enter_async_context(_process("client", [client_url, WORKFLOW_ID], directory))
        listeners = await stack.enter_async_context(_background())
        listeners.start_soon(_follow_worker, story, worker, local, front)
        return await _follow_client(story, client)


def _environment() -> dict[str, str]:
    ours = ("DW_", "HEADRACE_", "DURABLE_WORKFLOW_", "REDIS_URL")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@asynccontextmanager
async def _background() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _process(name: str, arguments: list[str], directory: Path) -> AsyncIterator[Child]:
    child = Child.start(
        name,
        f"nodes.cli.demo.{name}",
        [*arguments, str(os.getpid())],
        environ=_environment(),
        log=directory / f"{name}.log",
        pipe=True,
    )
    async with stopping([child]):
        yield child


async def _follow_worker(story: Story, worker: Child, local: list[LocalNode], front: Balancer) -> None:
    killed = False
    async for line in worker.lines():
        event = json.loads(line)
        name, attempt = event["name"], event["attempt"]
        match event["event"]:
            case "ready":
                story.tell(f"worker: polls task queue {name} through {front.current.name}")
            case "started":
                story.attempts[name] += 1
                story.tell(f"worker: activity {name} started, attempt {attempt}")
            case "failed":
                story.tell(f"worker: activity {name} failed, attempt {attempt}; to be retried in 1 s")
            case "finished":
                story.tell(f"worker: activity {name} finished")
        if event["event"] == "started" and name == "ship" and not killed:
            victim = next(node for node in local if node.name == front.current.name)
            victim.child.signal(signal.SIGKILL)
            await victim.child.wait()
            story.tell(f"{victim.name} killed (SIGKILL) while the worker runs ship")
            killed = True
    raise DemoFailed(f"the worker ended with code {await worker.wait()}: {worker.last_words()}")


async def _follow_client(story: Story, client: Child) -> list[str]:
    async for line in client.lines():
        event = json.loads(line)
        if event["event"] == "started":
            story.tell(f"client: started workflow {WORKFLOW_ID}, run {event['name']}")
        else:
            counts = ", ".join(f"{name} {count}" for name, count in story.attempts.items())
            story.tell(f"client: got the result; attempts: {counts}")
            if story.attempts != {"reserve": 1, "charge": 2, "ship": 1}:
                raise DemoFailed(f"an activity ran more or less often than it should: {counts}")
            result: list[str] = json.loads(event["name"])
            return result
    raise DemoFailed(f"the client ended with code {await client.wait()}: {client.last_words()}")
