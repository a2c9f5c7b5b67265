"""The peer's actor; run as a program it enqueues messages, under ``dramatiq`` it is the worker."""

from __future__ import annotations

import os
import sys
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

URL = os.environ["BENCH_REDIS_URL"]
dramatiq.set_broker(RedisBroker(url=URL))
_client: Any = redis.Redis.from_url(URL)


@dramatiq.actor
def work(value: str) -> None:
    """Count, so that the bench sees progress; a task of ours stores its result instead."""
    _client.incr("done")


if __name__ == "__main__":
    _client.set("done", 0)
    for _ in range(int(sys.argv[1])):
        work.send("in")
