"""The first page: how the namespace is doing."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from cluster.pulse import INTERVAL_SECONDS, KEPT, Sample
from nodes.console.charts import Chart, chart
from nodes.console.visits import Visit

_RECENT: Final = 8
_STEP_MS: Final = int(INTERVAL_SECONDS * 1000)
_LEAST_MINUTES: Final = 5
_MINUTES: Final = KEPT * _STEP_MS // 60_000


async def overview(visit: Visit) -> dict[str, Any]:
    """Numbers of now, charts of up to half an hour, the newest workflows."""
    recent = await visit.access.get("/api/workflows", page_size=_RECENT)
    line = await visit.pulse.look(visit.namespace)
    return {"now": line[-1] if line else None, "charts": charts(line), "recent": recent["workflows"]}


def charts(line: list[Sample]) -> list[Chart]:
    """Throughput, backlog, age and latency."""
    times = [sample.at_ms for sample in line]
    watched = ceil((times[-1] - times[0]) / 60_000) if times else 0
    minutes = min(max(watched, _LEAST_MINUTES), _MINUTES)

    def draw(title: str, unit: str, **series: list[float]) -> Chart:
        named = [(name.replace("_", " "), values) for name, values in series.items()]
        return chart(title, unit, times, named, minutes=minutes, step_ms=_STEP_MS)

    return [
        draw(
            "Throughput",
            "tasks a minute",
            handed_out=[float(sample.handed_out) for sample in line],
            added=[float(sample.added) for sample in line],
        ),
        draw(
            "Backlog",
            "tasks",
            ready=[float(sample.ready) for sample in line],
            leased=[float(sample.leased) for sample in line],
        ),
        draw(
            "Oldest ready task", "seconds", waits=[round(sample.oldest_age_ms / 1000, 1) for sample in line]
        ),
        draw(
            "Latency of the API",
            "milliseconds",
            median=[sample.usual_ms for sample in line],
            slowest_1_percent=[sample.slowest_ms for sample in line],
        ),
    ]
