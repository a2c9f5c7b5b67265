"""dramatiq over Redis: its own worker command runs this module, as a program it enqueues."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from noting import note, paced

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS_URL"]))


@dramatiq.actor
def work(due: float) -> None:
    note(due)


if __name__ == "__main__":
    for moment in paced(float(sys.argv[2]), int(sys.argv[1])):
        work.send(moment)
