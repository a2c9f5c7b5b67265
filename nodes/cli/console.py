"""What the commands share: one line for each refusal, and how trio programs are run."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import trio

from cluster.errors import StartupError

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


def complain(text: str, program: str = "headrace") -> None:
    """Each line of ``text`` on standard error, after the program's name."""
    for line in text.splitlines():
        sys.stderr.write(f"{program}: {line}\n")
    sys.stderr.flush()


def refuse(error: StartupError) -> NoReturn:
    """End the process because it cannot start."""
    complain(str(error))
    sys.exit(EXIT_REFUSED)


def startup_errors(error: BaseException) -> list[StartupError] | None:
    """The startup errors that ``error`` consists of, or None when it holds anything else."""
    if isinstance(error, StartupError):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return None
    found: list[StartupError] = []
    for inner in error.exceptions:
        errors = startup_errors(inner)
        if errors is None:
            return None
        found += errors
    return found


def run_program(main: Callable[[], Awaitable[int | None]]) -> NoReturn:
    """Run a trio program and exit with its result; refusals become lines, not tracebacks."""
    try:
        code = trio.run(main)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (StartupError, BaseExceptionGroup) as error:
        errors = startup_errors(error)
        if errors is None:
            raise
        complain("\n".join(dict.fromkeys(str(one) for one in errors)))
        sys.exit(EXIT_REFUSED)
    sys.exit(code or 0)


@asynccontextmanager
async def until_signal() -> AsyncIterator[None]:
    """Cancels the block when SIGINT or SIGTERM comes; afterwards the program goes on behind it."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            yield
            nursery.cancel_scope.cancel()
