"""Log lines: JSON where a machine reads them, coloured text on a terminal.

Our own code logs with ``structlog.get_logger()``; libraries that use the standard ``logging``
module (hypercorn's ``hypercorn.error``, redis-py) end in the same stream in the same form. No line
holds a secret or a payload: callers log names, ids, reasons and counts.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import Processor

from cluster.settings.schema import LogFormat

HYPERCORN_ERRORS = "hypercorn.error"


def configure_logging(level: str, form: LogFormat, *, node: str = "", stream: TextIO = sys.stderr) -> None:
    """Send everything from ``level`` up to ``stream``; every line carries ``node`` when given."""
    as_json = form is LogFormat.JSON or (form is LogFormat.AUTO and not stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if node and as_json:
        shared.append(_name_node(node))
    renderers: list[Processor]
    if as_json:
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    else:
        # The default shows local variables when rich is there: payloads and tokens among them.
        plain = structlog.dev.plain_traceback
        renderers = [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]

    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))


def _name_node(node: str) -> Processor:
    def processor(_logger: Any, _method: str, event: Any) -> Any:
        event.setdefault("node", node)
        return event

    return processor


def _json(event: Any, **_options: Any) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
