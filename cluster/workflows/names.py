"""Names of what belongs to a run: its timers, and the entries beside its record."""

from __future__ import annotations

from typing import Final

RUN_TIMER: Final = "r"
TASK_TIMER: Final = "w"


def activity_timer(step: int) -> str:
    return f"a{step}"


def timer_timer(step: int) -> str:
    return f"t{step}"


def wait_timer(step: int) -> str:
    return f"q{step}"


def command_entry(command_id: str) -> str:
    """The name under which it is kept who asked for a command."""
    return f"c:{command_id}"


def start_command(run_id: str) -> str:
    """The id of the command that started a run."""
    return f"{run_id}-m0"
