"""The deployment files say what they must and name only settings that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyOptions

from cluster.settings.names import BY_KEY, BY_VARIABLE
from cluster.settings.schema import Settings
from cluster.version import VERSION
from nodes.node import LEAVE_SECONDS

TOP = Path(__file__).parents[2]
CHART = TOP / "deploy/helm/headrace"
CHECKED = (
    "compose.yaml",
    "deploy/Dockerfile",
    "deploy/haproxy.cfg",
    "deploy/nginx.conf.template",
    "deploy/valkey.conf",
    "deploy/systemd/headrace.service",
    "deploy/kubernetes/headrace.yaml",
    "deploy/helm/headrace/values.yaml",
    "deploy/helm/headrace/templates/deployment.yaml",
    "deploy/helm/headrace/templates/_names.tpl",
    "docs/deployment.md",
    "README.md",
)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document = yaml.safe_load((TOP / "compose.yaml").read_text())
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    text = (TOP / "deploy/Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(None, 1)[1]) for line in lines]


def test_compose_follows_the_compose_specification() -> None:
    parsed = PyOptions(apply_merge=True).from_yaml((TOP / "compose.yaml").read_text())
    parsed.validate()


def test_compose_runs_three_equal_nodes(compose: dict[str, Any]) -> None:
    nodes = {name: service for name, service in compose["services"].items() if name.startswith("node-")}
    assert len(nodes) == 3
    stripped = []
    for name, service in nodes.items():
        environment = dict(service["environment"])
        assert environment.pop("HEADRACE_NODE_NAME") == name
        stripped.append({**service, "environment": environment})
    assert stripped[0] == stripped[1] == stripped[2]
    assert stripped[0]["depends_on"] == {"valkey": {"condition": "service_healthy"}}
    assert stripped[0]["read_only"] is True
    assert (TOP / stripped[0]["build"]["dockerfile"]).is_file()


def test_compose_refers_only_to_what_exists(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name in service.get("depends_on", []):
            assert name in services
        for name in service.get("networks", []):
            assert name in compose["networks"]
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (TOP / source).is_file()
        for variable in service.get("environment", {}):
            assert variable in BY_VARIABLE or re.fullmatch(r"NODE_[123](_WORKERS)?", variable)
    healthy = [name for name, service in services.items() if "healthcheck" in service]
    assert healthy == ["valkey", "balancer"]


def test_compose_opens_only_the_balancer_and_only_here(compose: dict[str, Any]) -> None:
    published = {
        name: service["ports"] for name, service in compose["services"].items() if "ports" in service
    }
    assert published == {"balancer": ["127.0.0.1:8080:8080"]}
    assert compose["networks"]["inside"]["internal"] is True


def test_compose_has_no_default_secret(compose: dict[str, Any]) -> None:
    environment = compose["services"]["node-1"]["environment"]
    assert environment["DW_AUTH_DRIVER"] == "token"
    assert environment["DW_AUTH_TOKEN"].startswith("${DW_AUTH_TOKEN:?")


def test_the_balancer_knows_the_nodes_of_the_compose_file(compose: dict[str, Any]) -> None:
    named = compose["services"]["balancer"]["environment"].values()
    nodes = ["node-1", "node-2", "node-3"]
    assert sorted(named) == sorted(f"{node}:{port}" for node in nodes for port in (8080, 8081))
    own = compose["services"]["node-1"]["environment"]
    assert (own["HEADRACE_LISTEN"], own["HEADRACE_WORKER_LISTEN"]) == ("0.0.0.0:8080", "0.0.0.0:8081")


def test_the_store_keeps_what_it_is_told() -> None:
    lines = (TOP / "deploy/valkey.conf").read_text().splitlines()
    options = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert options["appendonly"] == "yes"
    assert options["appendfsync"] == "always"
    assert options["maxmemory-policy"] == "noeviction"


def test_the_image_is_small_pinned_and_unprivileged(dockerfile: list[tuple[str, str]]) -> None:
    bases = [value for word, value in dockerfile if word == "FROM"]
    assert all(re.match(r"python:3\.11-slim-\w+", base) for base in bases)
    users = [value for word, value in dockerfile if word == "USER"]
    assert users
    assert users[-1] not in {"root", "0"}
    last = [word for word, _ in dockerfile]
    assert last.index("USER") < last.index("ENTRYPOINT")
    text = " ".join(value for _, value in dockerfile)
    assert "-c constraints.txt" in text
    assert "HEALTHCHECK" in last
    assert "ADD" not in last


def test_the_image_gets_every_file_it_copies(dockerfile: list[tuple[str, str]]) -> None:
    allowed = [line[1:] for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for word, value in dockerfile
        if word == "COPY" and not value.startswith("--from")
        for source in value.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (TOP / source).exists()
        assert source in allowed


@pytest.mark.parametrize("name", CHECKED)
def test_every_setting_named_in_a_file_exists(name: str) -> None:
    named = set(re.findall(r"\b(?:DW|HEADRACE)_[A-Z0-9_]*[A-Z0-9]\b", (TOP / name).read_text()))
    assert named <= set(BY_VARIABLE) | {"DW_SERVER_URL", "HEADRACE_CONFIG"}


@pytest.mark.parametrize("ports", [("",), ("", "_WORKERS")], ids=["one-port", "two-ports"])
def test_haproxy_accepts_its_configuration(ports: tuple[str, ...]) -> None:
    haproxy = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert haproxy is not None, "haproxy is not installed: apt-get install haproxy"
    nodes = {f"NODE_{number}{port}": f"127.0.0.1:{number}" for number in (1, 2, 3) for port in ports}
    checked = subprocess.run(
        [haproxy, "-c", "-f", "deploy/haproxy.cfg"],
        cwd=TOP,
        env={**os.environ, **nodes},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_every_value_of_the_chart_is_known_to_its_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values.keys() == schema["properties"].keys() - {"global"}


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    documents = yaml.safe_load_all((TOP / "deploy/kubernetes/headrace.yaml").read_text())
    (deployment,) = [found for found in documents if found["kind"] == "Deployment"]
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def test_a_pod_may_take_as_long_to_leave_as_its_node(pod: dict[str, Any]) -> None:
    """What runs on streams gets its time, then partitions and session are given up."""
    drain = Settings().matching.drain_wait
    linger = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= drain + LEAVE_SECONDS + linger


def test_only_a_dead_process_is_restarted(pod: dict[str, Any]) -> None:
    """A node without Redis is not ready; restarting it would not help."""
    container = pod["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/api/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/api/ready"


def test_a_pod_has_no_rights_it_does_not_need(pod: dict[str, Any]) -> None:
    security = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False


def test_tokens_come_from_a_secret_only(pod: dict[str, Any]) -> None:
    secrets = {name.variable for name in BY_KEY.values() if name.secret}
    for variable in pod["containers"][0]["env"]:
        if variable["name"] in secrets - {"REDIS_URL"}:
            assert set(variable) == {"name", "valueFrom"}
