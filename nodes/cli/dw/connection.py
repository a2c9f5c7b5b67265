"""Which server, as whom: flag before variable before profile before default (``server-behaviour 10.1``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.profiles import Profile, load_profiles, read_token

DEFAULT_SERVER: Final = "http://localhost:8080"
DEFAULT_NAMESPACE: Final = "default"
SERVER_VARIABLES: Final = ("DURABLE_WORKFLOW_SERVER_URL", "DW_SERVER_URL")
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Flags:
    """What was typed; None where nothing was."""

    server: str | None = None
    env: str | None = None
    namespace: str | None = None
    token: str | None = None
    token_file: Path | None = None
    tls_verify: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """What holds. ``token`` must never be shown; ``token_source`` says where it came from."""

    server: str
    namespace: str
    token: str | None
    token_source: str
    tls_verify: bool
    profile: str | None

    def __repr__(self) -> str:
        return f"Connection({self.server!r}, {self.namespace!r}, token from {self.token_source})"


def resolve(flags: Flags, environ: Mapping[str, str]) -> Connection:
    """Put together what was typed, the environment and the profile. Raises CallFailed."""
    name = flags.env or environ.get("DW_ENV")
    kept = load_profiles(environ)
    name = name or kept.current
    profile = Profile() if name is None else kept.named(name)
    token, source = _token(flags, environ, profile)
    verify = flags.tls_verify or environ.get("DURABLE_WORKFLOW_TLS_VERIFY")
    return Connection(
        server=flags.server or _variable(environ, *SERVER_VARIABLES) or profile.server or DEFAULT_SERVER,
        namespace=(
            flags.namespace
            or _variable(environ, "DURABLE_WORKFLOW_NAMESPACE")
            or profile.namespace
            or DEFAULT_NAMESPACE
        ),
        token=token,
        token_source=source,
        tls_verify=read_flag(verify) if verify else profile.tls_verify is not False,
        profile=name,
    )


def read_flag(text: str) -> bool:
    """``true``, ``no``, ``1`` ... as a truth value. Raises CallFailed."""
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise wrong_usage(f"--tls-verify is true or false, not {text!r}")


def _variable(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _token(flags: Flags, environ: Mapping[str, str], profile: Profile) -> tuple[str | None, str]:
    if flags.token:
        return flags.token, "--token"
    if flags.token_file is not None:
        return read_token(flags.token_file), f"file {flags.token_file}"
    if environ.get("DURABLE_WORKFLOW_AUTH_TOKEN"):
        return environ["DURABLE_WORKFLOW_AUTH_TOKEN"], "DURABLE_WORKFLOW_AUTH_TOKEN"
    if environ.get("DURABLE_WORKFLOW_AUTH_TOKEN_FILE"):
        path = Path(environ["DURABLE_WORKFLOW_AUTH_TOKEN_FILE"])
        return read_token(path), f"file {path}"
    return profile.secret(environ), profile.token_source or "nowhere"
