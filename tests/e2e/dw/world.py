"""A small world for the examples of ``dw``: what they name exists, and is theirs alone.

Every run of an example gets things of its own: ``order-1001`` becomes ``order-1001-7``, and is made first in
the state that the example needs.
"""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from nodes.cli.dw.profiles import Profile, Profiles, save_profiles
from nodes.cli.dw.program import run
from tests.wire import HEADERS

WORKER = "payments-1"
_NUMBERS = itertools.count(1)


@dataclass
class World:
    """One node with workers for the queue ``orders`` and for flows of type ``parcel``."""

    url: str
    environ: dict[str, str]
    http: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=f"{self.url}/api", headers=HEADERS, trust_env=False, timeout=30)
        self.environ |= {"DURABLE_WORKFLOW_SERVER_URL": self.url, "PROD_TOKEN": "secret-of-prod"}
        body = {"worker_id": WORKER, "task_queue": "payments", "runtime": "external", "build_id": "2026-04"}
        self.post("worker/register", body)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = self.http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def get(self, path: str) -> Any:
        return self.http.get(path).raise_for_status().json()

    # -- things ---------------------------------------------------------------------------------

    def open_order(self, workflow_id: str) -> str:
        body = {"workflow_type": "order", "workflow_id": workflow_id, "task_queue": "orders"}
        return str(self.post("workflows", body)["run_id"])

    def closed_order(self, workflow_id: str) -> None:
        body = {
            "workflow_type": "greet",
            "workflow_id": workflow_id,
            "task_queue": "orders",
            "input": ["you"],
        }
        self.post("workflows", body)
        self._until(f"workflows/{workflow_id}", lambda run: run["is_terminal"])

    def open_parcel(self, flow_id: str) -> None:
        self.post("flows", {"flow_type": "parcel", "start_step": "pack", "flow_id": flow_id, "input": {}})

    def closed_parcel(self, flow_id: str) -> None:
        self.open_parcel(flow_id)
        self.post(f"flows/{flow_id}/channels/signed", {"value": "x"})

    def schedule(self, schedule_id: str) -> None:
        action = {"workflow_type": "report", "task_queue": "orders"}
        spec = {"cron_expressions": ["0 2 * * *"]}
        self.post("schedules", {"schedule_id": schedule_id, "spec": spec, "action": action})

    def paused_schedule(self, schedule_id: str) -> None:
        self.schedule(schedule_id)
        self.post(f"schedules/{schedule_id}/pause", {})

    def activity(self, activity_id: str) -> None:
        self.post("activities", {"activity_id": activity_id, "activity_type": "a", "task_queue": "mail"})

    def worker(self, worker_id: str) -> None:
        self.post(
            "worker/register", {"worker_id": worker_id, "task_queue": "payments", "runtime": "external"}
        )

    def attribute(self, name: str) -> None:
        self.post("search-attributes", {"name": name, "type": "keyword"})

    def namespace(self, name: str) -> None:
        self.post("namespaces", {"name": name})

    def limit(self, queue: str) -> None:
        body = {"activity_tasks": {"max_active_leases_per_queue": 9}}
        self.http.put(f"admission/limits/{queue}", json=body).raise_for_status()

    def unlimited(self) -> None:
        """Nothing that an example left behind holds back the next one."""
        for entry in self.get("admission/limits")["limits"]:
            self.http.delete(f"admission/limits/{entry['task_queue']}").raise_for_status()
        self.post("task-queues/payments/build-ids/resume", {"build_id": "2026-04"})

    def waiting_task(self) -> str:
        self.post("workflows", {"workflow_type": "pay", "task_queue": "payments"})
        found = self.get("task-queues/payments")["stats"]["oldest_ready_task"]["task_id"]
        return str(found)

    def leased(self, plane: str) -> Any:
        body = {"worker_id": WORKER, "task_queue": "payments", "timeout_seconds": 10}
        task = self.post(f"worker/{plane}/poll", body)["task"]
        assert task is not None
        return task

    def leased_query(self) -> str:
        self.worker(WORKER)  # anew: nobody asks a worker that has said nothing for a minute
        run = self.post("workflows", {"workflow_type": "pay", "task_queue": "payments"})
        path = f"workflows/{run['workflow_id']}/query/state"
        threading.Thread(target=self.http.post, args=(path,), kwargs={"json": {}}, daemon=True).start()
        return str(self.leased("query-tasks")["query_task_id"])

    def leased_activity(self) -> dict[str, str]:
        self.post("activities", {"activity_type": "charge", "task_queue": "payments"})
        task = self.leased("activity-tasks")
        return {"$ACTIVITY": task["task_id"], "$ATTEMPT": task["activity_attempt_id"]}

    def leased_task(self) -> Any:
        self.post("workflows", {"workflow_type": "pay", "task_queue": "payments"})
        return self.leased("workflow-tasks")

    # -- examples -------------------------------------------------------------------------------

    def own(self, line: str) -> str:
        """The example with things of its own, which exist."""
        kept = {"prod": Profile(server=self.url, token_env="PROD_TOKEN"), "staging": Profile()}
        save_profiles(self.environ, Profiles(profiles=kept))
        self.unlimited()
        if "limit:clear" in line:
            self.limit("mail")
        number = next(_NUMBERS)
        run_id = ""
        for name, make in self._makers().items():
            if not re.search(rf"(?<![\w-]){name}(?![\w-])", line):
                continue
            mine = f"{name}{number}" if name[0].isupper() else f"{name}-{number}"
            made = make(mine)
            run_id = made if isinstance(made, str) else run_id
            line = re.sub(rf"(?<![\w-]){name}(?![\w-])", mine, line)
        if "$RUN" in line:
            line = line.replace("$RUN", run_id or self.open_order(f"run-{number}"))
        if "$WAITING" in line:
            line = line.replace("$WAITING", self.waiting_task())
        if "$TASK" in line:
            task = self.leased_task()
            line = line.replace("$TASK", task["task_id"])
            line = line.replace("--attempt 1", f"--attempt {task['workflow_task_attempt']}")
        if "$QUERY" in line:
            line = line.replace("$QUERY", self.leased_query())
        if "$ACTIVITY" in line:
            for name, value in self.leased_activity().items():
                line = line.replace(name, value)
        return line

    def fed(self, line: str) -> str:
        """What the part of an example before its last pipe writes."""
        before = line.rpartition(" | ")[0]
        if not before:
            return ""
        shell = ["bash", "-c", before]
        return subprocess.run(shell, env=self.environ, capture_output=True, text=True, check=True).stdout

    def run(self, line: str, *more: str) -> int:
        """Run an example in this process; its exit code."""
        program, *argv = shlex.split(line.rpartition(" | ")[2])
        assert program == "dw"
        return run([*argv, *more], self.environ)

    def _makers(self) -> Mapping[str, Callable[[str], Any]]:
        def nothing(_: str) -> None:
            """The example makes it."""

        return {
            "order-1000": self.closed_order,
            "order-1001": self.open_order,
            "order-1002": self.open_order,
            "order-1003": self.open_order,
            "order-1004": nothing,
            "parcel-1": self.open_parcel,
            "parcel-2": self.closed_parcel,
            "parcel-3": self.open_parcel,
            "parcel-4": nothing,
            "nightly": self.schedule,
            "pulse": self.paused_schedule,
            "weekly": nothing,
            "heartbeat": nothing,
            "mail-1": self.activity,
            "mail-2": nothing,
            "payments-2": nothing,
            "payments-9": self.worker,
            "billing": nothing,
            "trial": self.namespace,
            "Region": nothing,
            "Colour": self.attribute,
        }

    def _until(self, path: str, wanted: Callable[[Any], bool]) -> None:
        for _ in range(300):
            if wanted(self.get(path)):
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"{path} did not become as it should: {self.get(path)}")
