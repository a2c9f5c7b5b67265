"""One run of everything: real processes, a plan of faults, a record of what was seen, a verdict.

``python -m tests.chaos.campaign [--seed N] [--rounds N] [--store single,sentinel,cluster] [--keep DIR]``
prints a table of faults and what became of the work, and ends with 1 when a promise was broken.
``make chaos`` is the same.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import trio

from tests.chaos.arrangements import Kind
from tests.chaos.checker import Broken, check
from tests.chaos.clients import Clients
from tests.chaos.injection import Injector
from tests.chaos.plan import POSSIBLE, Fault, Planned, make_plan
from tests.chaos.record import Cap, Invoked, Line, Recorder, Remains, Verb, read_lines
from tests.chaos.recorded_worker import ACTIVITY
from tests.chaos.remains import LASTING, compact, families
from tests.chaos.reporting import summarise
from tests.chaos.site import CAP, TENANTS, Layout, Site, open_site
from tests.cluster_processes import kill
from tests.waiting import eventually

IN_FLIGHT = 3
SETTLE_SECONDS = 90.0
TICKET_SECONDS = 30.0
"""Whatever is left after that is noted as left over."""
BEFORE_SECONDS = 2.0
AFTER_SECONDS = 2.0
PREFIX = "hr1"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a campaign showed. ``complaints`` are tracebacks in logs of nodes."""

    layout: Layout
    plan: Sequence[Planned]
    lines: Sequence[Line]
    broken: Sequence[Broken]
    complaints: Sequence[str]

    @property
    def clean(self) -> bool:
        return not self.broken and not self.complaints


async def run_campaign(
    directory: Path, layout: Layout, plan: Sequence[Planned], seed: int, *, in_flight: int = IN_FLIGHT
) -> Verdict:
    """Run a plan against a site of its own in ``directory``; raises when the work does not settle."""
    async with open_site(directory, layout, seed) as site:
        await site.start()
        with Recorder(directory / "clients.events", "clients") as recorder:
            recorder.note(Cap(cap=f"{TENANTS[0]}:{ACTIVITY}", most=CAP))
            url = site.cluster.url
            clients = [Clients(url, tenant, recorder, Random(f"{seed} {tenant}")) for tenant in TENANTS]
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(client.run, in_flight)
                await trio.sleep(BEFORE_SECONDS)
                await Injector(site, recorder).run(list(plan))
                await trio.sleep(AFTER_SECONDS)
                for client in clients:
                    client.stopping.set()
                nursery.cancel_scope.deadline = trio.current_time() + SETTLE_SECONDS
            clients[-1].workflows += await _sdk_workflows(site)
            for client in clients:
                await client.look_back()
            complaints = await close_site(site)
            await note_remains(site, recorder)
        lines = read_lines(site.records())
    return Verdict(layout, plan, lines, check(lines), complaints)


async def _sdk_workflows(site: Site) -> list[str]:
    """Let the SDK's client end; what it has started, for a last look."""
    if site.sdk_client is None:
        return []
    site.sdk_client.signal(signal.SIGTERM)
    with trio.fail_after(SETTLE_SECONDS):
        code = await site.sdk_client.wait()
    assert code == 0, site.sdk_client.log.read_text(errors="replace")[-3000:]
    return sorted(
        {
            line.execution
            for line in read_lines(site.records())
            if isinstance(line, Invoked) and line.verb is Verb.START and "-client-" in line.who
        }
    )


async def close_site(site: Site) -> list[str]:
    """Stop everything but Redis; returns what nodes complained about."""
    complaints = []
    await _audited(site)
    for _, worker in site.staff:
        if worker.exit_code is not None:
            complaints.append(f"a worker died: {worker.log.read_text(errors='replace')[-3000:]}")
        kill(worker)
    for node in site.cluster.nodes:
        code = await node.stop(within=60)
        if code:
            complaints.append(f"{node.name} ended with {code}")
    for log in sorted(site.directory.glob("node-*.log")):
        if "Traceback" in (text := log.read_text(errors="replace")):
            start = text.index("Traceback")
            complaints.append(f"{log.name}: {text[start : start + 3000]}")
    return complaints


async def _audited(site: Site) -> None:
    """Wait for the audit of admission, which drops tickets that a fault left without a lease (D2)."""

    def no_tickets() -> bool:
        return not any(
            list(client.scan_iter(match=f"{PREFIX}:{{a.*}}:t:*"))
            for server in site.store.primaries()
            for client in [server.client()]
        )

    with suppress(trio.TooSlowError):
        await eventually(no_tickets, TICKET_SECONDS)


async def note_remains(site: Site, recorder: Recorder) -> None:
    """Note what is left in the store; nodes must be gone."""
    """Note what is left in the store; nodes must be gone."""
    await compact(site.store.url, PREFIX, within=60)
    for server in site.store.primaries():
        with server.client() as client:
            for family, number in families(client, PREFIX).items():
                recorder.note(Remains(family=family, number=number, expected=family in LASTING))


async def _run_all(options: argparse.Namespace, directory: Path) -> bool:
    clean = True
    for kind in [Kind(name) for name in options.store.split(",")]:
        faults = [Fault[name] for name in options.faults.split(",")] if options.faults else POSSIBLE[kind]
        plan = make_plan(options.seed, faults, options.rounds)
        layout = Layout(kind, replicas=options.replicas, durability=options.durability)
        place = directory / kind
        place.mkdir(parents=True, exist_ok=True)
        print(f"{kind}: seed {options.seed}, {len(plan)} faults, durability {layout.promised}", flush=True)
        began = time.monotonic()
        verdict = await run_campaign(place, layout, plan, options.seed)
        print(summarise(verdict.lines), flush=True)
        for what in (*verdict.broken, *verdict.complaints):
            print(f"BROKEN {what}")
        print(f"{kind}: {'clean' if verdict.clean else 'BROKEN'} after {time.monotonic() - began:.0f} s\n")
        clean = clean and verdict.clean
    return clean


def options_of(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line, or of ``argv``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--store", default="single,sentinel,cluster")
    parser.add_argument("--faults", default="", help="names of tests/chaos/plan.py, with commas")
    parser.add_argument("--durability", default="")
    parser.add_argument("--replicas", type=int, default=1, help="of the primary under Sentinel")
    parser.add_argument("--keep", default="", help="directory for logs and records")
    return parser.parse_args(argv)


def main() -> int:
    options = options_of()
    with tempfile.TemporaryDirectory() as temporary:
        return 0 if trio.run(_run_all, options, Path(options.keep or temporary)) else 1


if __name__ == "__main__":
    sys.exit(main())
