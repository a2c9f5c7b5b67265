"""Celery over Redis: its own worker command runs this module, as a program it enqueues.

Late acknowledgement and no result store: a task survives its worker, as it does with the other systems.
"""

from __future__ import annotations

import os
import sys

from celery import Celery
from noting import note, paced

app = Celery("celery_tasks", broker=os.environ["BENCH_REDIS_URL"])
app.conf.update(task_acks_late=True, task_ignore_result=True, broker_connection_retry_on_startup=True)


@app.task
def work(due: float) -> None:
    note(due)


if __name__ == "__main__":
    for moment in paced(float(sys.argv[2]), int(sys.argv[1])):
        work.delay(moment)
