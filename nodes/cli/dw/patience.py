"""How long a command waits for its server.

A time-out of the HTTP client counts anew with every piece of an answer that trickles in, so a whole answer is
waited for here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

Answer = TypeVar("Answer")


class Patience:
    """Seconds that are left: for the ``whole`` command and all its requests, or for each of them anew."""

    def __init__(self, seconds: float, *, whole: bool) -> None:
        self._seconds = seconds
        self._whole = whole
        self._until = monotonic() + seconds

    def renew(self) -> None:
        """The command begins again, as one does that watches."""
        self._until = monotonic() + self._seconds

    def more(self, seconds: float) -> float:
        """What is left for the next request, and ``seconds`` on top that the server was asked to wait."""
        if not self._whole:
            self.renew()
        self._until += seconds
        return self._until - monotonic()


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """What ``ask`` returns or raises; TimeoutError when that takes longer, and then nobody waits for it."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(max(0.0, seconds))
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]
