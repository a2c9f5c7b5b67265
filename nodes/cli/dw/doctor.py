"""``dw doctor``: looks at everything between here and the store, and says what to do about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from cluster.version import VERSION
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode, Finished
from nodes.cli.dw.server import compatibility
from nodes.cli.dw.views import Block, Facts, Result, Rows

SKEW_SECONDS: Final = 5.0
SLOW_SECONDS: Final = 1.0
LAG_SECONDS: Final = 60
_ANY: Final = frozenset({503})


class Standing(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``code`` is what ``dw`` exits with when it failed."""

    check: str
    status: Standing
    detail: str
    advice: str = ""
    code: ExitCode = ExitCode.FAILURE


@dataclass(slots=True)
class Examination:
    """Findings so far; checks that build on a failed one are skipped."""

    dw: Dw
    findings: list[Finding] = field(default_factory=list)

    def look(self, check: str, find: Callable[[Dw], Iterator[Finding]]) -> bool:
        """Run one check; whether nothing in it failed."""
        found: list[Finding] = []
        try:
            found += find(self.dw)
        except CallFailed as failure:
            found.append(_refused(check, failure))
        self.findings += found
        return all(finding.status is not Standing.FAILED for finding in found)

    def skip(self, *checks: str) -> None:
        """What could not be looked at."""
        self.findings += [Finding(check, Standing.SKIPPED, "needs what failed above") for check in checks]


def _refused(check: str, failure: CallFailed) -> Finding:
    advice = "; ".join(failure.advice)
    if failure.status == 403:
        # What the token's role may not see cannot be judged, which is no fault of the server.
        return Finding(check, Standing.SKIPPED, str(failure), advice)
    return Finding(check, Standing.FAILED, str(failure), advice, failure.code)


def _view(result: Result) -> Iterable[Block]:
    yield Rows(result["checks"], ("status", "check", "detail", "advice"))
    yield Facts({name: result[name] for name in ("server", "namespace", "status")})


@command(
    "doctor",
    _view,
    json="status server namespace dw_version checks",
    examples=("dw doctor", "dw doctor --json"),
)
def doctor(dw: Dw) -> Result:
    """Check the way to the server, versions, token, store, clocks, nodes and queues; say what to do.

    Exit code 0 when nothing failed (warnings do not count), else the code of the first failure: 3 not
    reachable, 4 token, 8 versions, 1 anything else. Checks that the token's role may not do are skipped.
    """
    examination = Examination(dw)
    look = examination.look
    with dw.screen.waiting("looking"):
        if look("reachable", _reachable):
            look("ready", _ready)
            if look("versions", _versions):
                look("namespace", _namespace)
                look("clock", _clock)
                look("nodes", _nodes)
                look("partitions", _partitions)
                look("store", _store)
                look("queues", _queues)
            else:
                examination.skip("namespace", "clock", "nodes", "partitions", "store", "queues")
        else:
            examination.skip(
                "ready", "versions", "namespace", "clock", "nodes", "partitions", "store", "queues"
            )
    return _judge(dw, examination.findings)


def _judge(dw: Dw, findings: list[Finding]) -> Result:
    first = next((finding for finding in findings if finding.status is Standing.FAILED), None)
    has_warning = any(finding.status is Standing.WARNING for finding in findings)
    status = Standing.WARNING if has_warning else Standing.OK
    report = {
        "status": Standing.FAILED if first else status,
        "server": dw.connection.server,
        "namespace": dw.connection.namespace,
        "dw_version": VERSION,
        "checks": [
            {
                "check": finding.check,
                "status": finding.status,
                "detail": finding.detail,
                "advice": finding.advice or None,
            }
            for finding in findings
        ],
    }
    if first is None:
        return report
    dw.screen.show(report, _view)
    raise Finished(first.code)


def _reachable(dw: Dw) -> Iterator[Finding]:
    began = time.monotonic()
    answer = dw.get("health", accept=_ANY)
    seconds = time.monotonic() - began
    said = f"{answer.get('status')} after {seconds * 1000:.0f} ms"
    if answer.get("status") != "serving":
        yield Finding(
            "reachable", Standing.WARNING, said, "the node is up, but its store is not; look at its logs"
        )
    elif seconds > SLOW_SECONDS:
        yield Finding("reachable", Standing.WARNING, said, "look at the load of the nodes and of the store")
    else:
        yield Finding("reachable", Standing.OK, said)


def _ready(dw: Dw) -> Iterator[Finding]:
    answer = dw.get("ready", accept=_ANY)
    bad = [(name, check) for name, check in answer.get("checks", {}).items() if check.get("status") != "ok"]
    if not bad:
        yield Finding("ready", Standing.OK, "may be sent work")
    for name, check in bad:
        yield Finding(
            "ready", Standing.FAILED, f"{name}: {check.get('status')}", check.get("remediation") or ""
        )


def _versions(dw: Dw) -> Iterator[Finding]:
    info = dw.get("cluster", "info")
    source = dw.connection.token_source
    yield Finding(
        "token", Standing.OK, f"accepted, from {source}" if dw.connection.token else "none is needed"
    )
    problems = compatibility(info)
    for problem in problems:
        yield Finding(
            "versions", Standing.FAILED, problem, "use a dw of the server's release", ExitCode.INCOMPATIBLE
        )
    if not problems:
        yield Finding("versions", Standing.OK, f"server {info.get('version')}, dw {VERSION}")


def _namespace(dw: Dw) -> Iterator[Finding]:
    shown = dw.get("namespaces", dw.connection.namespace)
    yield Finding("namespace", Standing.OK, f"{shown['name']}, kept for {shown['retention_days']} days")


def _clock(dw: Dw) -> Iterator[Finding]:
    began = time.time()
    told = dw.get("nodes").get("generated_at")
    middle = (began + time.time()) / 2
    skew = middle - datetime.fromisoformat(str(told)).timestamp()
    said = f"this machine is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the store"
    if abs(skew) > SKEW_SECONDS:
        yield Finding(
            "clock", Standing.WARNING, said, "synchronise the clocks (NTP); signatures and schedules need it"
        )
    else:
        yield Finding("clock", Standing.OK, said)


def _nodes(dw: Dw) -> Iterator[Finding]:
    nodes: list[dict[str, Any]] = dw.get("nodes")["nodes"]
    silent = [node["name"] for node in nodes if node["status"] != "alive"]
    versions = {node["version"] for node in nodes}
    draining = sum(node["draining"] for node in nodes)
    if silent:
        yield Finding(
            "nodes",
            Standing.WARNING,
            f"silent: {', '.join(silent)}",
            "look whether they run and reach the store",
        )
    if len(versions) > 1:
        yield Finding(
            "nodes",
            Standing.WARNING,
            f"of several releases: {', '.join(sorted(versions))}",
            "finish the upgrade",
        )
    if not silent and len(versions) <= 1:
        yield Finding("nodes", Standing.OK, f"{len(nodes)} alive, {draining} draining")


def _partitions(dw: Dw) -> Iterator[Finding]:
    shown = dw.get("partitions")
    if shown["unowned_count"]:
        said = f"{shown['unowned_count']} of {shown['partition_count']} have no owner"
        yield Finding(
            "partitions", Standing.WARNING, said, "look again in 5 s; if it stays, look at the nodes' logs"
        )
    else:
        yield Finding("partitions", Standing.OK, f"{shown['partition_count']}, all owned")


def _store(dw: Dw) -> Iterator[Finding]:
    shown = dw.get("system", "store")
    for finding in shown["findings"]:
        yield Finding(
            "store", Standing(finding["status"]), finding["message"], "change the store's settings as it says"
        )
    if not shown["findings"]:
        yield Finding("store", Standing.OK, f"settings are right for durability {shown['durability']}")


def _queues(dw: Dw) -> Iterator[Finding]:
    shown = dw.get("scaling")
    late = [row for row in shown["task_queues"] if row["oldest_age_seconds"] > LAG_SECONDS]
    for row in late:
        name = row["task_queue"]
        said = f"{name}: {row['backlog']} wait, the oldest for {row['oldest_age_seconds']} s"
        advice = (
            f"dw task-queue:describe {name} says what holds them back"
            if row["active_workers"]
            else "start workers for it"
        )
        yield Finding("queues", Standing.WARNING, said, advice)
    if not late:
        total = shown["total"]
        yield Finding(
            "queues",
            Standing.OK,
            f"{total['backlog']} tasks wait, the oldest for {total['oldest_age_seconds']} s",
        )
