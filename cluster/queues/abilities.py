"""What the shared slots of a worker can run, as a text that the commit of a step can look into.

Words between spaces, with names encoded: ``<flow type>:<step type>`` for each type of a list,
``<flow type>:*`` without a list, and ``!<flow type>:<step type>`` for what was declined in spite of that.
``lib/queues.lua`` reads it: a step is never kept for a worker none of whose slots could take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cluster.queues.stream_workers import NameKind, Skills, StreamWorker
from cluster.store.keys import encode

LONGEST: Final = 4096
"""A longer text is not worth its place in every partition: nothing is said then."""
UNKNOWN: Final = ""
"""The worker may be able to run anything."""


def abilities(worker: StreamWorker, skills: Iterable[Skills]) -> str:
    """What slots of ``worker`` that were registered with ``skills`` can run; or UNKNOWN."""
    words: set[str] = set()
    for flow in [flow for one in skills for flow in one.flows]:
        flow_type = encode(flow.flow_type)
        lacking = worker.lacking(NameKind.STEP, flow.flow_type)
        if flow.step_types is None:
            words.add(f"{flow_type}:*")
            words.update(f"!{flow_type}:{name}" for name in lacking)
        else:
            names = frozenset(encode(name) for name in flow.step_types)
            words.update(f"{flow_type}:{name}" for name in names - lacking)
    text = f" {' '.join(sorted(words))} "
    return text if len(text) <= LONGEST else UNKNOWN
