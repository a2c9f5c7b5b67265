"""The settings tables of ``docs/operations.md``, written from the schema.

``python -m tests.e2e.settings_tables`` rewrites them; a test fails when they are not up to date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cluster.settings import Settings
from cluster.settings.names import BY_KEY, WITHOUT_EFFECT
from cluster.settings.report import rows
from tests.e2e.programs import TOP

OPERATIONS = TOP / "docs/operations.md"
_TABLE = re.compile(r"(<!-- (settings: ([\w.* ]+)|without effect) -->\n)(?:\n?(?:\|.*\n)+)?")
_FOLLOWS = {
    "node_name": "the host's name",
    "server_id": "the node's name",
    "worker_stale_after_seconds": "max(2 x poll timeout, 60)",
    "query_task_timeout": "the poll timeout",
    "query_task_lease_timeout": "the workflow task timeout",
}


def _default(key: str, value: Any) -> str:
    if key in _FOLLOWS:
        return _FOLLOWS[key]
    if value is None:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _settings(wanted: str) -> str:
    defaults: Mapping[str, Any] = {row.key: row.value for row in rows(Settings())}
    keys = (
        [key for key in BY_KEY if key.startswith("matching.")] if wanted == "matching.*" else wanted.split()
    )
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for key in keys:
        text = BY_KEY[key].text.split("; default: ")[0]
        lines.append(f"| `{BY_KEY[key].variable or key}` | {_default(key, defaults[key])} | {text} |")
    return "\n".join(lines) + "\n"


def _without_effect() -> str:
    lines = ["| variable | why |", "| --- | --- |"]
    lines += [f"| `{name}` | {why} |" for name, why in sorted(WITHOUT_EFFECT.items())]
    return "\n".join(lines) + "\n"


def up_to_date(text: str) -> str:
    """``text`` with every settings table written anew."""
    return _TABLE.sub(lambda m: f"{m[1]}\n{_settings(m[3]) if m[3] else _without_effect()}", text)


if __name__ == "__main__":
    OPERATIONS.write_text(up_to_date(OPERATIONS.read_text()))
