"""``dw env:...``: profiles, so that a server's address, namespace and token need not be typed again."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec

from nodes.cli.dw.arguments import argument, option
from nodes.cli.dw.command import Dw, command
from nodes.cli.dw.connection import read_flag, resolve
from nodes.cli.dw.failures import wrong_usage
from nodes.cli.dw.profiles import Profile, Profiles, load_profiles, save_profiles
from nodes.cli.dw.views import Result, facts, table

Name = Annotated[str, argument("PROFILE", "the profile")]
_MEMBERS = "name current server namespace tls_verify token"


def _shown(name: str, kept: Profiles) -> Result:
    """A profile without its token: only where that comes from."""
    profile = kept.profiles[name]
    return {
        "name": name,
        "current": name == kept.current,
        "server": profile.server,
        "namespace": profile.namespace,
        "tls_verify": profile.tls_verify is not False,
        "token": profile.token_source,
    }


@command(
    "env:list",
    table("profiles", _MEMBERS),
    json="current profiles",
    examples=("dw env:list",),
)
def list_profiles(dw: Dw) -> Result:
    """List the profiles."""
    kept = load_profiles(dw.environ)
    return {"current": kept.current, "profiles": [_shown(name, kept) for name in sorted(kept.profiles)]}


@command(
    "env:set",
    facts(_MEMBERS),
    json=_MEMBERS,
    examples=(
        "dw env:set prod --server https://headrace.example --namespace orders --token-env PROD_TOKEN",
        'echo "$PROD_TOKEN" | dw env:set staging --server https://staging.example --token-stdin',
    ),
)
def set_profile(
    dw: Dw,
    name: Name,
    token_env: Annotated[
        str | None, option("--token-env", metavar="VARIABLE", text="take the token from this variable")
    ] = None,
    token_stdin: Annotated[
        bool, option("--token-stdin", text="keep the token that comes on standard input")
    ] = False,
    use: Annotated[bool, option("--use", text="use this profile from now on")] = False,
) -> Result:
    """Make a profile, or change what is given of one.

    The token is best left where it is: --token-env names a variable, --token-file a file.
    """
    if dw.flags.token is not None:
        raise wrong_usage(
            "a token is not kept from the command line; use --token-stdin, --token-env or --token-file"
        )
    file = dw.flags.token_file
    if (token_env is not None) + token_stdin + (file is not None) > 1:
        raise wrong_usage("give one of --token-env, --token-file and --token-stdin")
    kept = load_profiles(dw.environ)
    changes: dict[str, Any] = {}
    if dw.flags.server is not None:
        changes["server"] = dw.flags.server
    if dw.flags.namespace is not None:
        changes["namespace"] = dw.flags.namespace
    if dw.flags.tls_verify is not None:
        changes["tls_verify"] = read_flag(dw.flags.tls_verify)
    if token_env is not None or token_stdin or file is not None:
        changes |= {
            "token_env": token_env,
            "token_file": None if file is None else str(file.expanduser().absolute()),
            "token": _from_stdin() if token_stdin else None,
        }
    profile = msgspec.structs.replace(kept.profiles.get(name, Profile()), **changes)
    current = name if use or kept.current is None else kept.current
    kept = Profiles(current=current, profiles={**kept.profiles, name: profile})
    save_profiles(dw.environ, kept)
    return _shown(name, kept)


def _from_stdin() -> str:
    token = sys.stdin.readline().strip()
    if not token:
        raise wrong_usage("there is no token on standard input")
    return token


@command("env:use", facts(_MEMBERS), json=_MEMBERS, examples=("dw env:use prod",))
def use_profile(dw: Dw, name: Name) -> Result:
    """Use a profile wherever none is named."""
    kept = load_profiles(dw.environ)
    kept.named(name)
    kept = msgspec.structs.replace(kept, current=name)
    save_profiles(dw.environ, kept)
    return _shown(name, kept)


@command(
    "env:show",
    facts(),
    json="profile server namespace tls_verify token",
    examples=("dw env:show", "dw env:show --env prod"),
)
def show(dw: Dw) -> Result:
    """Show which server, namespace and token a command would use, and why; the token itself is not shown."""
    connection = resolve(dw.flags, dw.environ)
    return {
        "profile": connection.profile,
        "server": connection.server,
        "namespace": connection.namespace,
        "tls_verify": connection.tls_verify,
        "token": f"from {connection.token_source}" if connection.token else None,
    }


@command("env:delete", facts("name outcome"), json="name outcome", examples=("dw env:delete staging",))
def delete(dw: Dw, name: Name) -> Result:
    """Forget a profile."""
    kept = load_profiles(dw.environ)
    kept.named(name)
    left = {key: profile for key, profile in kept.profiles.items() if key != name}
    save_profiles(dw.environ, Profiles(current=None if kept.current == name else kept.current, profiles=left))
    return {"name": name, "outcome": "deleted"}
