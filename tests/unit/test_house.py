"""The house is in order: layers, declared dependencies, exact versions."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import headrace
from cluster.version import VERSION

TOP = Path(__file__).parents[2]
OWN = {"cluster", "nodes", "headrace", "tests"}
IMPURE = ("trio", "redis", "structlog", "cluster.store", "cluster.queues", "cluster.membership")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((TOP / "pyproject.toml").read_text())


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[\[<>=!~ ]", requirement)[0]) for requirement in requirements}


def sources(*folders: str) -> Iterator[Path]:
    """Source files; programs of benchmark peers import what is installed on demand only."""
    for folder in folders:
        yield from (path for path in (TOP / folder).rglob("*.py") if path.parent.name != "programs")


def imports(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def distributions(*folders: str) -> list[set[str]]:
    """For each foreign package imported in ``folders`` the distributions that it may be from."""
    known = packages_distributions()
    roots = {name.split(".")[0] for source in sources(*folders) for name in imports(source)}
    foreign = roots - OWN - set(sys.stdlib_module_names)
    return [{canonical(name) for name in known[root]} for root in foreign]


def test_everything_imported_is_declared(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    declared = names(project["project"]["dependencies"])
    served = declared | names(extras["demo"]) | names(extras["tracing"])
    for candidates in distributions("cluster", "nodes"):
        assert candidates & served, candidates
    for candidates in distributions("tests"):
        assert candidates & (served | names(extras["test"])), candidates


def test_everything_declared_is_used(project: dict[str, Any]) -> None:
    # hiredis makes redis-py's parser fast, tzdata is what zoneinfo reads where the system has none.
    without_import = {"hiredis", "tzdata"}
    used = set().union(*distributions("cluster", "nodes"))
    assert names(project["project"]["dependencies"]) <= used | without_import


def test_bounds_and_exact_versions(project: dict[str, Any]) -> None:
    lines = (TOP / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    exact = {canonical(name) for name in pinned}
    requirements = project["project"]["dependencies"]
    for requirement in requirements:
        assert re.fullmatch(r"[A-Za-z0-9_-]+>=[\d.]+,<[\d.]+", requirement)
    for extra in project["project"]["optional-dependencies"].values():
        requirements = requirements + extra
    assert names(requirements) - {"headrace"} <= exact
    assert not re.search(r"https?:|@ ", "\n".join(lines))


def test_pure_modules_are_checked_as_such(project: dict[str, Any]) -> None:
    contracts = project["tool"]["importlinter"]["contracts"]
    (pure,) = (contract["source_modules"] for contract in contracts if "pure" in contract["name"])
    for source in sources("cluster/workflows"):
        module = f"cluster.workflows.{source.stem}"
        impure = any(name.startswith(IMPURE) for name in imports(source))
        if source.stem != "__init__":
            assert impure or module in pure or _imports_impure(source, pure), (
                f"{module} belongs into the list"
            )


def _imports_impure(source: Path, pure: list[str]) -> bool:
    own = (name for name in imports(source) if name.startswith("cluster.workflows."))
    return any(name not in pure for name in own)


def test_the_version_is_the_same_everywhere() -> None:
    assert headrace.__version__ == VERSION
    assert f"## {VERSION}" in (TOP / "CHANGELOG.md").read_text()


def test_the_license_is_there() -> None:
    assert "Apache License" in (TOP / "LICENSE").read_text()
