"""How each fault is brought about, and how it heals."""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import redis
import trio

from tests.chaos.arrangements import follow
from tests.chaos.plan import Fault, Planned
from tests.chaos.record import FaultBegan, FaultEnded, Recorder
from tests.chaos.site import Site
from tests.cluster_processes import NodeProcess, kill
from tests.faults import FaultProxy
from tests.ports import free_port
from tests.servers import Server
from tests.waiting import eventually

LOSE_EVERY: Final = 0.3
LOAD_SECONDS: Final = 3.0
"""How long Redis loads its file when it is to take long."""
COMMAND_BYTES: Final = 100
"""Of a command in that file, about."""
NAP_SECONDS: Final = 60e-6
"""What the shortest delay really takes."""
LONGEST_DELAY_US: Final = 300
FAIL_OVER_SECONDS: Final = 60.0
"""Sentinel lets twice its fail-over time-out pass between two of them."""


@dataclass
class Injector:
    """Works a plan off, one fault after the other, and records when each began and was healed."""

    site: Site
    recorder: Recorder

    async def run(self, plan: list[Planned]) -> None:
        """Inject everything; returns when the site is whole again after the last fault."""
        for planned in plan:
            await trio.sleep(planned.pause)
            began = FaultBegan(
                number=planned.number,
                fault=planned.fault,
                target=str(planned.target),
                forgets=self._forgets(planned.fault),
            )
            self.recorder.note(began)
            await _INJECTIONS[planned.fault](self, planned)
            await self.site.whole()
            self.recorder.note(FaultEnded(number=planned.number))

    def _forgets(self, fault: Fault) -> bool:
        """Whether the store may lose what it acknowledged under this durability."""
        memory = self.site.layout.promised == "memory"
        return memory and fault in (Fault.FAIL_OVER, Fault.FAIL_OVER_LAGGING)

    def _node(self, planned: Planned) -> NodeProcess:
        nodes = self.site.cluster.nodes
        return nodes[planned.target % len(nodes)]

    def _proxy(self, planned: Planned) -> FaultProxy:
        return self.site.to_redis[planned.target % len(self.site.to_redis)]

    def _server(self, planned: Planned) -> Server:
        primaries = self.site.store.primaries()
        return primaries[planned.target % len(primaries)]

    # -- nodes --------------------------------------------------------------------------------

    async def kill_node(self, planned: Planned) -> None:
        node = self._node(planned)
        node.kill()
        await trio.sleep(planned.seconds)
        node.start()

    async def stop_node(self, planned: Planned) -> None:
        node = self._node(planned)
        assert await node.stop(within=60) == 0, node.log[-2000:]
        await trio.sleep(planned.seconds)
        node.start()

    async def freeze_node(self, planned: Planned) -> None:
        node = self._node(planned)
        node.signal(signal.SIGSTOP)
        await trio.sleep(planned.seconds)
        node.signal(signal.SIGCONT)

    async def jump_clock(self, planned: Planned) -> None:
        self.site.set_clock("+3600s" if planned.target % 2 else "-3600s")
        await trio.sleep(planned.seconds)
        self.site.set_clock("+0s")

    # -- between nodes and Redis --------------------------------------------------------------

    async def cut_node(self, planned: Planned) -> None:
        proxy = self._proxy(planned)
        await _cut(proxy, planned.seconds)

    async def mute_node(self, planned: Planned) -> None:
        await _mute(self._proxy(planned), planned.seconds)

    async def half_open(self, planned: Planned) -> None:
        await self._proxy(planned).half_close()
        await trio.sleep(planned.seconds)

    async def reset_node(self, planned: Planned) -> None:
        await self._proxy(planned).reset()
        await trio.sleep(planned.seconds)

    async def slow_redis(self, planned: Planned) -> None:
        for proxy in self.site.to_redis:
            proxy.delay = 0.02
        await trio.sleep(planned.seconds)
        for proxy in self.site.to_redis:
            proxy.delay = 0.0

    async def drip_redis(self, planned: Planned) -> None:
        proxy = self._proxy(planned)
        proxy.drip = 64
        await trio.sleep(planned.seconds)
        proxy.drip = 0

    async def lose_reply(self, planned: Planned) -> None:
        with trio.move_on_after(planned.seconds):
            while True:
                for proxy in self.site.to_redis:
                    proxy.lose_reply_to = b"EVALSHA"
                await trio.sleep(LOSE_EVERY)
        for proxy in self.site.to_redis:
            proxy.lose_reply_to = None

    # -- workers ------------------------------------------------------------------------------

    async def kill_worker(self, planned: Planned) -> None:
        index = planned.target % len(self.site.staff)
        kill(self.site.staff[index][1])
        await trio.sleep(planned.seconds)
        await self.site.replace(index)

    async def freeze_worker(self, planned: Planned) -> None:
        _, child = self.site.staff[planned.target % len(self.site.staff)]
        child.signal(signal.SIGSTOP)
        await trio.sleep(planned.seconds)
        child.signal(signal.SIGCONT)

    async def cut_workers(self, planned: Planned) -> None:
        await _cut(self.site.entrance, planned.seconds)

    async def mute_workers(self, planned: Planned) -> None:
        await _mute(self.site.entrance, planned.seconds)

    async def reset_workers(self, planned: Planned) -> None:
        await self.site.entrance.reset()
        await trio.sleep(planned.seconds)

    # -- Redis --------------------------------------------------------------------------------

    async def restart_redis(self, planned: Planned) -> None:
        server = self._server(planned)
        server.kill()
        await trio.sleep(planned.seconds)
        await trio.to_thread.run_sync(server.start)

    async def loading(self, planned: Planned) -> None:
        server = self._server(planned)
        with server.client() as client:
            delay = load_delay(client.info("persistence")["aof_current_size"])
        server.kill()
        whole = server.options
        slow = ("--key-load-delay", str(delay), "--loading-process-events-interval-bytes", "1024")
        server.options = (*whole, *slow)
        try:
            await trio.to_thread.run_sync(server.start)
        finally:
            server.options = whole

    async def freeze_redis(self, planned: Planned) -> None:
        server = self._server(planned)
        server.signal(signal.SIGSTOP)
        await trio.sleep(planned.seconds)
        server.signal(signal.SIGCONT)

    async def flush_scripts(self, planned: Planned) -> None:
        for server in self.site.store.primaries():
            with server.client() as client:
                client.script_flush()
        await trio.sleep(planned.seconds)

    async def fill(self, planned: Planned) -> None:
        with self._server(planned).client() as client:
            client.config_set("maxmemory", 1)
            await trio.sleep(planned.seconds)
            client.config_set("maxmemory", 0)

    async def read_only(self, planned: Planned) -> None:
        with self._server(planned).client() as client:
            client.replicaof("127.0.0.1", free_port())
            await trio.sleep(planned.seconds)
            client.replicaof("NO", "ONE")

    async def fail_over(self, planned: Planned) -> None:
        store = self.site.store
        await store.in_sync()
        await self._lose_primary(planned.seconds)

    async def fail_over_lagging(self, planned: Planned) -> None:
        """The replicas hear nothing for a while, then they are all there is."""
        store = self.site.store
        await store.in_sync()
        for replica in store.replicas():
            with replica.client() as client:
                client.replicaof("127.0.0.1", free_port())
        await self._lose_primary(planned.seconds)

    async def _lose_primary(self, seconds: float) -> None:
        store = self.site.store
        old, others = self._server(Planned(0, Fault.FAIL_OVER, 0, 0, 0)), store.replicas()
        await trio.sleep(seconds)
        old.kill()

        def promoted() -> bool:
            try:
                (chosen,) = store.primaries()
                if chosen not in others:
                    return False
                with chosen.client() as client:
                    return bool(client.info("replication")["role"] == "master")
            except redis.RedisError:
                return False

        await eventually(promoted, FAIL_OVER_SECONDS)
        follow(old, store.primaries()[0])
        await trio.to_thread.run_sync(old.start)
        await store.in_sync()


def load_delay(size: int) -> int:
    """Redis' ``key-load-delay`` that makes it load a file of ``size`` bytes in about LOAD_SECONDS, at most.

    Microseconds after each command; below zero one microsecond after so many of them.
    """
    each = LOAD_SECONDS / max(1.0, size / COMMAND_BYTES)
    if each <= NAP_SECONDS:
        return -math.ceil(NAP_SECONDS / each)
    return min(LONGEST_DELAY_US, math.ceil((each - NAP_SECONDS) * 1e6))


async def _cut(proxy: FaultProxy, seconds: float) -> None:
    proxy.refusing = True
    await proxy.cut()
    await trio.sleep(seconds)
    proxy.refusing = False


async def _mute(proxy: FaultProxy, seconds: float) -> None:
    proxy.black_hole()
    await trio.sleep(seconds)
    proxy.black_hole(False)


_INJECTIONS: Final[Mapping[Fault, Callable[[Injector, Planned], Awaitable[None]]]] = {
    Fault.KILL_NODE: Injector.kill_node,
    Fault.STOP_NODE: Injector.stop_node,
    Fault.FREEZE_NODE: Injector.freeze_node,
    Fault.JUMP_CLOCK: Injector.jump_clock,
    Fault.CUT_NODE: Injector.cut_node,
    Fault.MUTE_NODE: Injector.mute_node,
    Fault.HALF_OPEN: Injector.half_open,
    Fault.RESET_NODE: Injector.reset_node,
    Fault.SLOW_REDIS: Injector.slow_redis,
    Fault.DRIP_REDIS: Injector.drip_redis,
    Fault.LOSE_REPLY: Injector.lose_reply,
    Fault.KILL_WORKER: Injector.kill_worker,
    Fault.FREEZE_WORKER: Injector.freeze_worker,
    Fault.CUT_WORKERS: Injector.cut_workers,
    Fault.MUTE_WORKERS: Injector.mute_workers,
    Fault.RESET_WORKERS: Injector.reset_workers,
    Fault.RESTART_REDIS: Injector.restart_redis,
    Fault.LOADING: Injector.loading,
    Fault.FREEZE_REDIS: Injector.freeze_redis,
    Fault.FLUSH_SCRIPTS: Injector.flush_scripts,
    Fault.FULL: Injector.fill,
    Fault.READ_ONLY: Injector.read_only,
    Fault.FAIL_OVER: Injector.fail_over,
    Fault.FAIL_OVER_LAGGING: Injector.fail_over_lagging,
}
