"""What the documents tell people to type works; what they refer to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.settings.names import BY_KEY, WITHOUT_EFFECT
from tests.e2e.programs import HEADRACE, TOP, environment, started
from tests.e2e.reference import METRICS, REASONS, metrics_page, reasons_page, scrape
from tests.e2e.settings_tables import up_to_date
from tests.ports import free_port_range

DOCUMENTS = sorted([*TOP.glob("*.md"), *TOP.glob("docs/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?:\]\(|^\[[^\]]+\]: )(?!https?://|#)([^)#\s]+)", re.MULTILINE)
INCLUDED = re.compile(r'^--8<-- "([\w.]+):([\w-]+)"$', re.MULTILINE)

# Lines that set something up which the tests have set up themselves.
SETS_UP = ("pip install", "headrace dev", "make ", "docker compose", "git clone", "DW_AUTH_TOKEN=$(openssl")


def blocks(document: Path, language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(document.read_text()) if name == language]


@dataclass(frozen=True)
class Machine:
    """Two running nodes, and a directory whose ``bin`` has our commands."""

    port: int
    directory: Path

    def run(self, script: str) -> str:
        script = script.replace(":8080", f":{self.port}").replace(":8081", f":{self.port + 1}")
        env = environment({"DURABLE_WORKFLOW_SERVER_URL": f"http://127.0.0.1:{self.port}"})
        env["PATH"] = f"{self.directory / 'bin'}:{env['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-s"],
            input=script,
            cwd=self.directory,
            env=env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@contextmanager
def running_machine(directory: Path) -> Iterator[Machine]:
    """A machine of its own, as far as a reader can tell."""
    binaries = directory / "bin"
    binaries.mkdir()
    modules = {"headrace": "-m nodes.cli.main", "dw": "-m nodes.cli.dw", "python": "", "python3": ""}
    for name, arguments in modules.items():
        (binaries / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (binaries / name).chmod(0o755)
    port = free_port_range(2)
    data = str(directory / "data")
    with started(*HEADRACE, "dev", "--nodes", "2", "--port", str(port), "--data-dir", data) as dev:
        assert dev.stdout is not None
        assert dev.stdout.readline().startswith("headrace: ready")
        yield Machine(port, directory)
        dev.terminate()
        dev.wait()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with running_machine(tmp_path_factory.mktemp("docs")) as machine:
        yield machine


def save_programs(machine: Machine) -> None:
    """Save the programs of the README where its commands look for them."""
    for name, python in zip(("hello.py", "parcel.py"), blocks(TOP / "README.md", "python"), strict=True):
        (machine.directory / name).write_text(python.replace(":8080", f":{machine.port}"))


def test_the_readme_can_be_followed(machine: Machine) -> None:
    readme = TOP / "README.md"
    save_programs(machine)
    shown = ""
    for block in blocks(readme, "sh"):
        if not any(line.startswith(SETS_UP) for line in block.splitlines()):
            shown += machine.run(block)
    assert "hello, world\n" in shown
    assert "a kettle to Käthe\n" in shown
    assert shown.count("greeter") == 2
    assert '"outcome":"started_new"' in shown.replace(" ", "")
    assert "status: completed\n" in shown


def test_a_node_can_be_killed_in_the_first_hour(tmp_path: Path) -> None:
    (block,) = blocks(TOP / "docs/first-hour.md", "sh")
    with running_machine(tmp_path) as machine:
        save_programs(machine)
        assert machine.run(block).count("a kettle to Käthe\n") == 2
        with pytest.raises(AssertionError, match="curl"):
            machine.run("curl --fail --silent --show-error http://127.0.0.1:8081/api/live")


def test_the_program_of_the_flows_runs(machine: Machine) -> None:
    flows = TOP / "docs/flows.md"
    (program,) = blocks(flows, "python")
    (machine.directory / "ride.py").write_text(program.replace(":8080", f":{machine.port}"))
    (commands,) = blocks(flows, "sh")
    shown = machine.run(commands)
    assert "Jo leaves alone\n" in shown
    assert "the stable does not answer" in shown


@pytest.mark.parametrize("name", ["operations", "admission"])
def test_commands_of_the_documents_work(machine: Machine, name: str) -> None:
    for block in blocks(TOP / f"docs/{name}.md", "sh"):
        if not any(line.startswith(SETS_UP) for line in block.splitlines()):
            machine.run(block)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_shell_blocks_parse_and_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for block in blocks(document, "sh"):
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        assert set(re.findall(r"^make (\w+)", block, re.MULTILINE)) <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: path.name)
def test_links_of_what_a_page_includes_lead_somewhere_from_there(page: Path) -> None:
    """What is included keeps its links as labels, which each of the two documents defines for itself."""
    defined = set(re.findall(r"^\[([^\]]+)\]: ", page.read_text(), re.MULTILINE))
    for name, section in INCLUDED.findall(page.read_text()):
        text = (TOP / name).read_text()
        start, end = (f"<!-- --8<-- [{mark}:{section}] -->" for mark in ("start", "end"))
        part = text.partition(start)[2].partition(end)[0]
        assert part, f"{name} has no section {section}"
        assert LINK.findall(part) == [], f"{page.name} includes links that hold for {name} only"
        assert set(re.findall(r"\]\[([\w-]+)\]", part)) <= defined


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_named_in_the_text_exist(document: Path) -> None:
    named = re.findall(r"`((?:cluster|nodes|deploy|tests|docs)/[\w./-]*\w)`", document.read_text())
    for name in named:
        assert (TOP / name).exists(), f"{document.name} names {name}"


def test_the_page_of_reasons_is_up_to_date() -> None:
    assert REASONS.read_text() == reasons_page(), "run: python -m tests.e2e.reference"


async def test_the_page_of_metrics_is_up_to_date(tmp_path: Path) -> None:
    assert METRICS.read_text() == metrics_page(await scrape(tmp_path)), "run: python -m tests.e2e.reference"


def test_operations_documents_every_setting() -> None:
    text = (TOP / "docs/operations.md").read_text()
    assert text == up_to_date(text), "run: python -m tests.e2e.settings_tables"
    documented = set(re.findall(r"^\| `([A-Za-z_.0-9]+)` \|", text, re.MULTILINE))
    expected = {name.variable or key for key, name in BY_KEY.items()} | set(WITHOUT_EFFECT)
    assert expected <= documented
