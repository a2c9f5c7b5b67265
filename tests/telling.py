"""How a worker process tells its test that it polls."""

from __future__ import annotations

import logging
import sys


class TellReady(logging.Handler):
    """Writes ``ready`` when the SDK's worker logs that it has registered."""

    def emit(self, record: logging.LogRecord) -> None:
        if " registered on " in record.getMessage():
            sys.stdout.write("ready\n")
            sys.stdout.flush()
