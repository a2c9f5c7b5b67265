"""Reads settings as they were given: from a TOML or YAML file and from the environment."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cluster.settings.names import (
    BY_KEY,
    BY_VARIABLE,
    CLIENT_VARIABLES,
    CONFIG_VARIABLE,
    LEGACY,
    WITHOUT_EFFECT,
)
from cluster.settings.origins import Given, Origin, Source
from cluster.settings.report import Problem, unknown_key

_TABLE = re.compile(r"\s*\[\s*([\w.\"'-]+)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"'-]+)\s*=")
_PREFIXES = ("DW_", "HEADRACE_")
_NOT_PARSED = frozenset({"task_queue_admission_overrides"})


def read_file(path: Path) -> tuple[dict[str, Given], list[Problem]]:
    """Settings of a file by key; ``matching: {stickyWait: 5s}`` gives ``matching.stickyWait``."""
    try:
        text = path.read_text()
    except OSError as error:
        return {}, [Problem(f"cannot read the settings file {path}: {error.strerror}")]
    except UnicodeDecodeError:
        return {}, [Problem(f"the settings file {path} is not UTF-8 text")]
    try:
        if path.suffix == ".toml":
            entries = list(_toml(text))
        elif path.suffix in {".yaml", ".yml"}:
            entries = list(_yaml(text))
        else:
            return {}, [Problem(f"the settings file {path} must end in .toml, .yaml or .yml")]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return {}, [Problem(f"cannot parse the settings file {path}:{line}: {error.problem}")]
    except (yaml.YAMLError, ValueError) as error:
        return {}, [Problem(f"cannot parse the settings file {path}: {' '.join(str(error).split())}")]

    given: dict[str, Given] = {}
    problems: list[Problem] = []
    for key, value, line in entries:
        origin = Origin(Source.FILE, f"{path}:{line}" if line else str(path))
        if key in given:
            problems.append(Problem(f"setting {key} is given twice, in {given[key].origin} and {origin}"))
        elif key not in BY_KEY:
            problems.append(unknown_key(key, origin))
        elif value is not None and value != "":
            given[key] = Given(value, origin)
    return given, problems


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in _NOT_PARSED:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _toml(text: str) -> Iterator[tuple[str, Any, int]]:
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = header[1].replace('"', "").replace("'", "") + "."
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault(table + assignment[1].replace('"', "").replace("'", ""), number)
    for key, value in _flat(tomllib.loads(text)):
        yield key, value, lines.get(key, 0)


def _yaml(text: str) -> Iterator[tuple[str, Any, int]]:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return
        yield from _yaml_mapping(loader, root, "")
    finally:
        loader.dispose()


def _yaml_mapping(loader: yaml.SafeLoader, node: yaml.Node, prefix: str) -> Iterator[tuple[str, Any, int]]:
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"line {node.start_mark.line + 1}: expected keys and values")
    for key_node, value_node in node.value:
        key = f"{prefix}{loader.construct_object(key_node, deep=True)}"
        if isinstance(value_node, yaml.MappingNode) and key not in _NOT_PARSED:
            yield from _yaml_mapping(loader, value_node, f"{key}.")
        else:
            yield key, loader.construct_object(value_node, deep=True), key_node.start_mark.line + 1


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Given], list[Problem]]:
    """Settings of the environment by key. A secret may also stand in a file named by ``X_FILE``."""
    given: dict[str, Given] = {}
    problems: list[Problem] = []
    for variable in sorted(environ):
        value = environ[variable].strip()
        if not value:
            continue
        origin = Origin(Source.ENVIRONMENT, variable)
        name = BY_VARIABLE.get(variable)
        if name is not None:
            given[name.key] = Given(value, origin)
        elif variable in LEGACY:
            renamed = LEGACY[variable]
            problems.append(Problem(f"{variable} is an old name: rename it to {renamed}", warning=True))
            if not environ.get(renamed, "").strip():
                given[BY_VARIABLE[renamed].key] = Given(value, origin)
        elif secret := _secret_of_file(variable):
            key = BY_VARIABLE[secret].key
            if environ.get(secret, "").strip():
                problems.append(Problem(f"{secret} and {variable} are both set; keep one of them"))
                continue
            try:
                content = Path(value).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                problems.append(Problem(f"{variable}={value!r}: cannot read the file: {reason}"))
                continue
            if content:
                given[key] = Given(content, origin)
            else:
                problems.append(Problem(f"{variable}={value!r}: the file is empty"))
        elif _is_unknown(variable):
            problems.append(_unknown_variable(variable))
    return given, problems


def _secret_of_file(variable: str) -> str | None:
    secret = variable.removesuffix("_FILE")
    name = BY_VARIABLE.get(secret)
    return secret if secret != variable and name is not None and name.secret else None


def _is_unknown(variable: str) -> bool:
    return (
        variable.startswith(_PREFIXES)
        and variable not in CLIENT_VARIABLES
        and variable not in WITHOUT_EFFECT
        and variable != CONFIG_VARIABLE
    )


def _unknown_variable(variable: str) -> Problem:
    bare = {known.partition("_")[2]: known for known in BY_VARIABLE}
    close = difflib.get_close_matches(variable.partition("_")[2], list(bare), n=1, cutoff=0.7)
    hint = f" (did you mean {bare[close[0]]}?)" if close else ""
    return Problem(f"unknown variable {variable}{hint}", warning=variable.startswith("DW_"))
