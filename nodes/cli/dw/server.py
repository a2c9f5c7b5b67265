"""``dw server:...``, ``upgrade``: the server as a whole, and how its release and dw's go together."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from cluster.version import VERSION
from nodes.cli.dw.arguments import option
from nodes.cli.dw.client import CONTROL_PLANE_VERSION, WORKER_PROTOCOL_VERSION, incompatible
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.failures import CallFailed, ExitCode
from nodes.cli.dw.views import Block, Facts, Result, facts

REQUEST_CONTRACT = ("durable-workflow.v2.control-plane-request.contract", 1)
_DEGRADED = frozenset({503})


def _info(result: Result) -> Iterable[Block]:
    shown = {name: result.get(name) for name in ("server_id", "version", "default_namespace")}
    versions = {name: result.get(name, {}).get("version") for name in ("control_plane", "worker_protocol")}
    yield Facts(shown | versions)


def compatibility(info: Result) -> list[str]:
    """Why this ``dw`` cannot work with the server that said ``info``; nothing when it can."""
    problems = []
    control = info.get("control_plane") or {}
    if str(control.get("version")) != CONTROL_PLANE_VERSION:
        problems.append(f"the server speaks control plane version {control.get('version')}, dw speaks 2")
    contract = control.get("request_contract") or {}
    if (contract.get("schema"), contract.get("version")) != REQUEST_CONTRACT:
        problems.append("the server's request contract is another one than dw's")
    spoken = str((info.get("worker_protocol") or {}).get("version"))
    if spoken.partition(".")[0] != WORKER_PROTOCOL_VERSION.partition(".")[0]:
        problems.append(f"the server speaks worker protocol {spoken}, dw speaks {WORKER_PROTOCOL_VERSION}")
    clients = (info.get("client_compatibility") or {}).get("clients") or {}
    supported = (clients.get("cli") or {}).get("supported_versions")
    if supported and not within(VERSION, supported):
        problems.append(f"the server supports dw {supported}, this is {VERSION}")
    return problems


def within(version: str, ranges: str) -> bool:
    """Whether ``version`` is in e.g. ``>=0.1,<1.0``; a part that cannot be read holds nothing back."""
    have = _numbers(version)
    for part in ranges.split(","):
        bound = part.strip().lstrip("<>=")
        sign, wanted = part.strip().removesuffix(bound), _numbers(bound)
        outside = {
            ">=": have < wanted,
            ">": have <= wanted,
            "<": have >= wanted,
            "<=": have > wanted,
            "==": have != wanted,
        }
        if wanted and outside.get(sign, False):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    while found and found[-1] == 0:
        found.pop()
    return tuple(found) or (0,)


@command(
    "server:health",
    facts(),
    json="status timestamp checks",
    examples=("dw server:health", "dw server:health --json"),
    watch=True,
)
def health(dw: Dw) -> Result:
    """Show whether the server serves; exit code 6 when it does not."""
    return dw.get("health")


@command("server:ready", facts(), json="status timestamp checks", examples=("dw server:ready",), watch=True)
def ready(dw: Dw) -> Result:
    """Show whether the server may be sent work, and which check fails."""
    answer = dw.get("ready", accept=_DEGRADED)
    if answer.get("status") != "ready":
        failing = [
            f"{name}: {check.get('remediation') or check.get('status')}"
            for name, check in answer.get("checks", {}).items()
            if check.get("status") != "ok"
        ]
        raise CallFailed(f"not ready; {'; '.join(failing)}", ExitCode.SERVER, status=503, body=answer)
    return answer


@command(
    "server:info",
    _info,
    json="server_id version default_namespace capabilities limits control_plane worker_protocol",
    examples=("dw server:info", "dw server:info --json"),
)
def info(dw: Dw) -> Result:
    """Show the server's version; with --json also its limits and capabilities.

    Exit code 8 when this dw cannot work with it.
    """
    answer = dw.get("cluster", "info")
    problems = compatibility(answer)
    if problems:
        raise incompatible("; ".join(problems), answer)
    return answer


@command("server:start-dev", facts(), examples=("dw server:start-dev --port 8090",))
def start_dev(
    dw: Dw,
    nodes: Annotated[int, option("--nodes", metavar="N", text="how many nodes (1)", min=1, max=16)] = 1,
    port: Annotated[int, option("--port", metavar="PORT", text="of the first node (8080)", min=1)] = 8080,
    data_dir: Annotated[
        Path, option("--data-dir", metavar="DIR", text="where data and logs are kept (.headrace)")
    ] = Path(".headrace"),
) -> None:
    """Run nodes for development on this machine until Ctrl-C, as headrace dev does."""
    arguments = ["dev", "--nodes", str(nodes), "--port", str(port), "--data-dir", str(data_dir)]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "nodes.cli.main", *arguments], dict(dw.environ))  # noqa: S606


@command(
    "upgrade",
    facts("dw_version server_version compatible advice"),
    json="dw_version server_version compatible advice",
    examples=("dw upgrade",),
)
def upgrade(dw: Dw) -> Result:
    """Show whether dw and the server are of one release, and what to install if not.

    Nothing is installed: dw is a part of the headrace package.
    """
    answer = dw.get("cluster", "info")
    server: Any = answer.get("version")
    problems = compatibility(answer)
    wanted = f'pip install "headrace=={server}"'
    return {
        "dw_version": VERSION,
        "server_version": server,
        "compatible": not problems,
        "advice": "nothing to do" if server == VERSION else wanted,
    }
