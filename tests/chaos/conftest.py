"""What chaos tests share: short leases, so that what a dead worker held is soon back."""

from __future__ import annotations

import pytest


@pytest.fixture
def short_leases() -> dict[str, str]:
    """Settings under which a lost task is handed out again after two seconds."""
    return {"DW_ACTIVITY_TASK_TIMEOUT": "2", "DW_WORKFLOW_TASK_TIMEOUT": "2"}
