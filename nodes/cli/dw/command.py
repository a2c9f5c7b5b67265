"""What a command is: a typed function, the view of its result, examples, and the members its JSON always has.

A function gets a :class:`Dw` and its own arguments, which typer reads from its signature, and returns
the result. :func:`command` enters it into :data:`COMMANDS`; the options that all commands share, printing,
watching and failing are added in one place, :mod:`nodes.cli.dw.program`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nodes.cli.dw.client import ApiClient, path_of
from nodes.cli.dw.connection import Connection, Flags
from nodes.cli.dw.screen import Screen
from nodes.cli.dw.views import Result, View

Run = TypeVar("Run", bound=Callable[..., Any])


@dataclass(slots=True)
class Dw:
    """What a command works with. The connection is made when the first request needs it."""

    flags: Flags
    environ: Mapping[str, str]
    screen: Screen
    connect: Callable[[], tuple[Connection, ApiClient]]
    _made: tuple[Connection, ApiClient] | None = None

    @property
    def connection(self) -> Connection:
        """Which server, as whom. Raises CallFailed."""
        return self._make()[0]

    @property
    def client(self) -> ApiClient:
        return self._make()[1]

    def get(self, *path: str, query: Mapping[str, Any] | None = None, **options: Any) -> Result:
        """``GET /api/<path>``, each part one segment. Raises CallFailed, as all the others."""
        return self.client.call("GET", path_of(*path), query=query, **options)

    def post(self, *path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Result:
        """``POST``; members of ``body`` that are None are left out unless ``nulls=True``."""
        return self.client.call("POST", path_of(*path), body=body or {}, **options)

    def put(self, *path: str, body: Mapping[str, Any], **options: Any) -> Result:
        """``PUT``; as :meth:`post`."""
        return self.client.call("PUT", path_of(*path), body=body, **options)

    def delete(self, *path: str) -> Result:
        """``DELETE``."""
        return self.client.call("DELETE", path_of(*path))

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._made is not None:
            self._made[1].__exit__()

    def _make(self) -> tuple[Connection, ApiClient]:
        if self._made is None:
            self._made = self.connect()
        return self._made


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``run`` returns its result, or None when it has written everything itself.

    ``members`` are what the JSON result always has; ``watch`` says whether it may be shown again and
    again.
    """

    name: str
    run: Callable[..., Result | None]
    view: View
    members: tuple[str, ...]
    examples: tuple[str, ...]
    watch: bool = False

    @property
    def summary(self) -> str:
        """The first line of what it says about itself."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]

    @property
    def noun(self) -> str:
        """What it is about: ``task-queue`` for ``task-queue:list``."""
        return self.name.partition(":")[0]


@dataclass(slots=True)
class Registry:
    """All commands by name, in the order in which their modules are read."""

    commands: dict[str, Command] = field(default_factory=dict)

    def add(self, command: Command) -> None:
        """Raises ValueError when the name is taken."""
        if command.name in self.commands:
            raise ValueError(f"{command.name} stands twice")
        self.commands[command.name] = command


COMMANDS: Final = Registry()


def command(
    name: str, view: View, *, json: str = "", examples: tuple[str, ...], watch: bool = False
) -> Callable[[Run], Run]:
    """Make a function a command; ``json`` names the members of its result, parted by blanks."""

    def add(run: Run) -> Run:
        COMMANDS.add(Command(name, run, view, tuple(json.split()), examples, watch))
        return run

    return add
