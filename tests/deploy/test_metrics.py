"""Every metric that a rule or the dashboard names is exported by a running node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster_processes import NodeProcess
from tests.ports import free_ports

FILES = Path(__file__).parents[2] / "deploy/helm/headrace/files"
NAME = re.compile(r"\bheadrace_[a-z0-9_]+")


def rule_expressions() -> Iterator[str]:
    for group in yaml.safe_load((FILES / "rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def dashboard_expressions() -> Iterator[str]:
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture
async def exported(valkey_url: str, prefix: str, tmp_path: Path) -> set[str]:
    """Names of the samples that a node shows or will show, as a scraper knows them."""
    (port,) = free_ports(1)
    node = NodeProcess("node", valkey_url, tmp_path, port, {"HEADRACE_KEY_PREFIX": prefix})
    node.start()
    try:
        await node.ready()
        async with httpx.AsyncClient(base_url=node.url, trust_env=False) as client:
            text = (await client.get("/metrics")).text
    finally:
        node.kill()
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {
        family.name + suffix
        for family in text_string_to_metric_families(text)
        for suffix in suffixes[family.type]
    }


async def test_rules_and_dashboard_name_only_metrics_that_exist(exported: set[str]) -> None:
    named = {name for text in (*rule_expressions(), *dashboard_expressions()) for name in NAME.findall(text)}
    assert len(named) > 20
    assert named - exported == set()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
