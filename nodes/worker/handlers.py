"""Functions of applications, called the way each wants to be: async or in a thread, with typed input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
import trio

from nodes.worker.errors import DefinitionError

CONTEXT_ONLY: Final = 1
WITH_INPUT: Final = 2


class Handler:
    """A bound function ``(context)`` or ``(context, input)``. Raises DefinitionError for another."""

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        required = [
            p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        if not parameters or len(required) > WITH_INPUT or any(p.kind is p.KEYWORD_ONLY for p in required):
            raise DefinitionError(f"{what} must take a context and, if it wants it, the input")
        self._function = function
        self._takes_input = len(parameters) >= WITH_INPUT
        self._async = inspect.iscoroutinefunction(function)
        self._input: msgspec.json.Decoder[Any] | None = None
        if self._takes_input:
            self._input = _decoder(function, parameters[1], what)

    async def call(self, context: Any, raw: msgspec.Raw, limiter: trio.CapacityLimiter) -> Any:
        """Run it. Raises msgspec.DecodeError when the input does not fit, and what the function raises."""
        arguments = (context,) if self._input is None else (context, self._input.decode(raw))
        if self._async:
            return await self._function(*arguments)
        return await trio.to_thread.run_sync(partial(self._function, *arguments), limiter=limiter)


def _decoder(
    function: Callable[..., Any], parameter: inspect.Parameter, what: str
) -> msgspec.json.Decoder[Any]:
    wanted = parameter.annotation
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(wanted, str):
        # The input's annotation alone: others may name what is imported for type checkers only.
        names = getattr(plain, "__globals__", {})
        try:
            wanted = get_type_hints(SimpleNamespace(__annotations__={"it": wanted}), names)["it"]
        except NameError as error:
            raise DefinitionError(
                f"{what}: the annotation of {parameter.name!r} must be known at run time: {error}"
            ) from None
    if wanted is parameter.empty or isinstance(wanted, TypeVar):
        wanted = Any
    try:
        return msgspec.json.Decoder(wanted)
    except TypeError as error:
        raise DefinitionError(f"{what}: {parameter.name!r} cannot be read from JSON: {error}") from None
