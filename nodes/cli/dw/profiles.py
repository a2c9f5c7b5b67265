"""Named profiles: server, namespace and where the token is, kept in a file of the user's own.

The file is ``profiles.json`` in DW_CONFIG_HOME (or ``dw`` in XDG_CONFIG_HOME, or ``~/.config/dw``),
readable by its owner only. A profile names the variable or the file with the token; a token itself is
kept only when it was handed over on standard input.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from nodes.cli.dw.failures import CallFailed, ExitCode, wrong_usage

_FILE: Final = "profiles.json"


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place to connect to; None leaves a thing to the environment or the default."""

    server: str | None = None
    namespace: str | None = None
    tls_verify: bool | None = None
    token_env: str | None = None
    token_file: str | None = None
    token: str | None = None

    def secret(self, environ: Mapping[str, str]) -> str | None:
        """The token this profile leads to, None without one. Raises CallFailed."""
        if self.token_env is not None:
            found = environ.get(self.token_env)
            if not found:
                raise wrong_usage(f"the profile takes its token from {self.token_env}, which is not set")
            return found
        return self.token if self.token_file is None else read_token(Path(self.token_file))

    @property
    def token_source(self) -> str | None:
        """Where the token comes from, in words; never the token."""
        if self.token_env is not None:
            return f"variable {self.token_env}"
        if self.token_file is not None:
            return f"file {self.token_file}"
        return None if self.token is None else "kept in the profile"


class Profiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All profiles, and the one that is used when none is named."""

    current: str | None = None
    profiles: dict[str, Profile] = {}

    def named(self, name: str) -> Profile:
        """Raises CallFailed when there is none of this name."""
        if name not in self.profiles:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise wrong_usage(f"no profile {name!r}; there are: {known}", "dw env:set makes one")
        return self.profiles[name]


def read_token(path: Path) -> str:
    """The token in a file. Raises CallFailed."""
    try:
        token = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise wrong_usage(f"cannot read the token file {path}: {error}") from error
    if not token:
        raise wrong_usage(f"the token file {path} is empty")
    return token


def profiles_file(environ: Mapping[str, str]) -> Path:
    """Where the profiles of this user are."""
    own = environ.get("DW_CONFIG_HOME")
    if own:
        return Path(own) / _FILE
    shared = environ.get("XDG_CONFIG_HOME")
    return (Path(shared) if shared else Path.home() / ".config") / "dw" / _FILE


def load_profiles(environ: Mapping[str, str]) -> Profiles:
    """What is kept; nothing when there is no file. Raises CallFailed for one that makes no sense."""
    path = profiles_file(environ)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Profiles)
    except FileNotFoundError:
        return Profiles()
    except (OSError, msgspec.DecodeError) as error:
        raise CallFailed(
            f"cannot read {path}: {error}", ExitCode.REFUSED, advice=("correct or remove the file",)
        ) from error


def save_profiles(environ: Mapping[str, str], profiles: Profiles) -> Path:
    """Replace what is kept, all or nothing. Raises CallFailed."""
    path = profiles_file(environ)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A temporary file is readable by its owner only, and the rename keeps that.
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as written:
            written.write(msgspec.json.format(msgspec.json.encode(profiles), indent=2) + b"\n")
        os.replace(written.name, path)
    except OSError as error:
        raise CallFailed(f"cannot write {path}: {error}", ExitCode.FAILURE) from error
    return path
