"""Writes the steps of a plan (``tests/e2e/scenarios/programs.py``)."""

from __future__ import annotations

from typing import Any

Step = list[Any]


def activity(name: str, *arguments: Any, **options: Any) -> Step:
    """Options are those of the SDK; ``attempts`` is short for a retry policy without pauses."""
    return ["activity", name, list(arguments), _options(options)]


def local(name: str, *arguments: Any, **options: Any) -> Step:
    return ["local", name, list(arguments), _options(options)]


def child(name: str, *arguments: Any, **options: Any) -> Step:
    return ["child", name, list(arguments), _options(options)]


def child_plan(*steps: Step, **options: Any) -> Step:
    """A child that follows a plan and does not catch failures."""
    return child("plan", list(steps), False, **options)


def echo(value: Any, seconds: float = 0.0) -> Step:
    return activity("echo", value, seconds)


def sleep(seconds: int) -> Step:
    return ["sleep", seconds]


def until(count: int, **options: Any) -> Step:
    """Wait until signals and updates brought ``count`` things."""
    return ["until", count, {"key": f"until-{count}", **options}]


def every(*members: Step) -> Step:
    """All side by side."""
    return ["list", list(members)]


def first(*then: str, cancel: bool = False, **members: Step) -> Step:
    """A race; then the results of the members named in ``then``."""
    return ["select", [list(member) for member in members.items()], {"cancel": cancel, "then": list(then)}]


def again(*steps: Step, **options: Any) -> Step:
    """Go on in a new run with these steps."""
    return ["again", [list(steps)], options]


def _options(options: dict[str, Any]) -> dict[str, Any]:
    attempts = options.pop("attempts", None)
    if attempts is not None:
        options["retry_policy"] = {"max_attempts": attempts, "backoff_seconds": [0]}
    return options
