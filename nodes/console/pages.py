"""The table of pages: their names are their addresses below ``console/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodes.console.views import activities, cluster, flows, overview, queues, schedules, workers, workflows
from nodes.console.visits import Look


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``section`` is the entry of the navigation it belongs to."""

    name: str
    title: str
    template: str
    look: Look
    section: str


_ALL: Final = (
    Page("", "Overview", "overview", overview.overview, ""),
    Page("workflows", "Workflows", "workflows", workflows.workflows, "workflows"),
    Page("workflow", "Workflow", "workflow", workflows.workflow, "workflows"),
    Page("event", "Event", "event", workflows.event, "workflows"),
    Page("runs", "Runs", "runs", workflows.runs, "workflows"),
    Page("activities", "Activities", "activities", activities.activities, "activities"),
    Page("activity", "Activity", "activity", activities.activity, "activities"),
    Page("flows", "Flows", "flows", flows.flows, "flows"),
    Page("flow", "Flow", "flow", flows.flow, "flows"),
    Page("task-queues", "Task queues", "task-queues", queues.task_queues, "task-queues"),
    Page("task-queue", "Task queue", "task-queue", queues.task_queue, "task-queues"),
    Page("why", "Why a task waits", "why", queues.why, "task-queues"),
    Page("workers", "Workers", "workers", workers.workers, "workers"),
    Page("worker", "Worker", "worker", workers.worker, "workers"),
    Page("schedules", "Schedules", "schedules", schedules.schedules, "schedules"),
    Page("schedule", "Schedule", "schedule", schedules.schedule, "schedules"),
    Page("namespaces", "Namespaces", "namespaces", cluster.namespaces, "namespaces"),
    Page("cluster", "Cluster", "cluster", cluster.cluster, "cluster"),
)
PAGES: Final[Mapping[str, Page]] = {page.name: page for page in _ALL}
SECTIONS: Final = tuple(page for page in _ALL if page.name == page.section)
"""What the navigation shows."""
