"""The Lua files of the system, loaded from the package and addressed by content.

A file may start with lines ``-- include: name``; the text of ``lua/lib/<name>.lua`` is then put
in front of it (in that order, each once) before hashing, so that scripts can share functions.
Nodes of different versions run side by side: a script's address is the SHA-1 of its text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_INCLUDE: Final = re.compile(r"^-- include: ([a-z_]+)$", re.MULTILINE)
_LUA: Final = files("cluster.store") / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script with its includes and its address in Redis."""

    name: str
    source: bytes
    sha: str


def assemble(name: str, text: str, library: dict[str, str]) -> Script:
    """Put ``text`` behind the parts it includes and hash it. Raises KeyError for an unknown part."""
    parts: dict[str, str] = {}

    def include(body: str) -> None:
        for wanted in _INCLUDE.findall(body):
            if wanted not in parts:
                include(library[wanted])
                parts[wanted] = library[wanted]

    include(text)
    source = "\n".join((*parts.values(), text)).encode()
    return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


@cache
def _library() -> dict[str, str]:
    folder = _LUA / "lib"
    entries = folder.iterdir() if folder.is_dir() else ()
    return {e.name.removesuffix(".lua"): e.read_text() for e in entries if e.name.endswith(".lua")}


@cache
def script(name: str) -> Script:
    """The script in ``lua/<name>.lua``. Raises FileNotFoundError when there is none."""
    text = (_LUA / f"{name}.lua").read_text()
    return assemble(name, text, _library())


def load_all() -> None:
    """Read every script now: a package that is replaced under a running node must not mix two releases."""
    for name in names():
        script(name)


def names() -> list[str]:
    """All scripts there are, sorted."""
    return sorted(e.name.removesuffix(".lua") for e in _LUA.iterdir() if e.name.endswith(".lua"))
