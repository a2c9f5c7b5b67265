"""Puts the sources together: command line over environment over file over default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.errors import SettingsError
from cluster.settings.names import CONFIG_VARIABLE
from cluster.settings.origins import DEFAULT, Given, Origin, Source
from cluster.settings.report import Problem, bad_value, summary
from cluster.settings.schema import MatchingSettings, Settings
from cluster.settings.sources import read_environment, read_file
from cluster.settings.values import ignored

_SECTION = "matching"


def load_settings(
    options: Mapping[str, object] | None = None,
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of this process.

    ``options`` are values of the command line by key (``{"listen": "127.0.0.1:0"}``; None means not
    given), ``file`` a TOML or YAML file (default: the one ``HEADRACE_CONFIG`` names, if any).
    Raises SettingsError with one line for each thing that is wrong.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get(CONFIG_VARIABLE, "").strip():
        file = Path(environ[CONFIG_VARIABLE].strip())

    from_file, problems = read_file(file) if file is not None else ({}, [])
    from_environment, environment_problems = read_environment(environ)
    problems += environment_problems
    from_options = {
        key: Given(value, Origin(Source.COMMAND_LINE, f"--{key.replace('_', '-')}"))
        for key, value in (options or {}).items()
        if value is not None
    }
    given = from_file | from_environment | from_options

    settings = None
    try:
        settings = Settings.model_validate(_nested(given))
    except ValidationError as error:
        problems += [
            _problem(detail["loc"], detail["msg"], detail["input"], given)
            for detail in error.errors()
            if detail["type"] != "default_factory_not_called"
        ]
    strict = settings.env_audit_strict if settings is not None else True
    fatal = [problem for problem in problems if strict or not problem.warning]
    if fatal or settings is None:
        raise SettingsError(summary(fatal))
    origins = {key: value.origin for key, value in given.items()}
    notes = [
        f"{value.origin}={value.value!r} {reason}"
        for key, value in given.items()
        if (reason := ignored(key, value.value)) is not None
    ]
    notes += _shared_secrets(settings)
    return settings.annotated(origins, (*(problem.text for problem in problems), *notes))


def _shared_secrets(settings: Settings) -> list[str]:
    """A shared secret that is also that of a role lets its holders be nothing but that role."""
    found = []
    for shared, roles in (("auth_token", "_token"), ("signature_key", "_signature_key")):
        secret = getattr(settings, shared)
        found += [
            f"DW_{shared.upper()} equals DW_{role.upper()}{roles.upper()}: who holds it is only {role}"
            for role in ("worker", "operator", "admin")
            if secret and getattr(settings, f"{role}{roles}") == secret
        ]
    return found


def _nested(given: Mapping[str, Given]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in given.items():
        section, dot, name = key.partition(".")
        if dot:
            values.setdefault(section, {})[name] = value.value
        else:
            values[key] = value.value
    return values


def _problem(
    place: tuple[int | str, ...], message: str, value: object, given: Mapping[str, Given]
) -> Problem:
    location = [str(part) for part in place]
    message = message.removeprefix("Value error, ").replace("Input should be", "must be")
    if not location or location == [_SECTION]:
        return Problem(message)
    if location[0] == _SECTION:
        aliases = {name: field.alias or name for name, field in MatchingSettings.model_fields.items()}
        location[1] = aliases.get(location[1], location[1])
    key = ".".join(location[:2] if location[0] == _SECTION else location[:1])
    origin = given[key].origin if key in given else DEFAULT
    return bad_value(key, value, origin, message)
