"""The workflow state machine: every decision the engine can ask for.

Each function takes what is stored and what happened, and returns the :class:`Changes` to commit in
one transaction. None of them reads a clock, draws a random number or does I/O, so the same input
always gives the same changes. ``lease`` is the task record of the task in question, ``task_lease``
that of the run's open workflow task (state "" when it has none). Times are UTC microseconds.

====================================  =========================================
what happened                         decision
====================================  =========================================
a run is started                      ``start``
a standalone activity is started      ``start_host``
a worker answers a workflow task      ``complete_workflow_task``, ``fail_workflow_task``
a workflow task's lease ran out       ``workflow_task_lapsed``
timer ``w``: its back-off is over     ``workflow_task_due``
a worker answers an activity          ``complete_activity``, ``fail_activity``
an activity's lease ran out           ``activity_lapsed``
timer ``a<step>``                     ``activity_deadline``
timer ``t<step>``                     ``timer_due``
timer ``q<step>``                     ``wait_due``
timer ``r``                           ``run_deadline``
a client says something               ``client_command``
a child closed for good               ``child_over``
====================================  =========================================

Who may answer is decided before, in ``guards``.
"""

from cluster.workflows.activities import activity_deadline, activity_lapsed, complete_activity, fail_activity
from cluster.workflows.children import child_over
from cluster.workflows.client_commands import apply as client_command
from cluster.workflows.closing import run_deadline
from cluster.workflows.deadlines import activity_lease_ms, hand_out_deadline, next_due_ms
from cluster.workflows.limits import Limits
from cluster.workflows.starting import start, start_host
from cluster.workflows.timers import timer_due
from cluster.workflows.waits import wait_due
from cluster.workflows.workflow_tasks import (
    complete_workflow_task,
    fail_workflow_task,
    workflow_task_due,
    workflow_task_lapsed,
)

__all__ = [
    "Limits",
    "activity_deadline",
    "activity_lapsed",
    "activity_lease_ms",
    "child_over",
    "client_command",
    "complete_activity",
    "complete_workflow_task",
    "fail_activity",
    "fail_workflow_task",
    "hand_out_deadline",
    "next_due_ms",
    "run_deadline",
    "start",
    "start_host",
    "timer_due",
    "wait_due",
    "workflow_task_due",
    "workflow_task_lapsed",
]
