"""The dashboard and the alert rules of `monitoring/` use metrics, labels and values that a scrape really has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from pgtrickle import db
from pgtrickle.catalog.install import install
from pgtrickle.monitor.databases import LABEL
from pgtrickle.monitor.metrics import CatalogMetrics

MONITORING = Path(__file__).parents[2] / "monitoring"
RULES = (MONITORING / "alerts.yml").read_text()
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text())
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
_NAME = re.compile(r"\bpgtrickle_\w+")
_LABEL = re.compile(r"\$labels\.(\w+)|\{\{(\w+)\}\}|(\w+)(?==~?\")")


@pytest.fixture
def labels(database18: str) -> dict[str, set[str]]:
    """Every name that a sample can have, with its labels."""
    with db.connect(database18) as conn:
        install(conn)
    collector = CatalogMetrics(database18)
    found: list[Metric] = list(collector.collect())
    collector._connection().close()
    return {
        family.name + suffix: {LABEL, *getattr(family, "_labelnames", ()), *(["le"] if suffix == "_bucket" else [])}
        for family in found
        for suffix in SUFFIXES[family.type]
    }


def queries() -> Iterator[tuple[str, str]]:
    """Each query, with what is shown of its labels."""
    for rule in re.split(r"- alert: ", RULES)[1:]:
        (expression,) = re.findall(r"^ +expr: (.+)$", rule, re.MULTILINE)
        yield expression, rule
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]


def test_all_metrics_and_labels_exist(labels: dict[str, set[str]]) -> None:
    asked = list(queries())
    assert len(asked) > 30
    for expression, shown in asked:
        names = set(_NAME.findall(expression))
        assert names, expression
        assert names - set(labels) == set(), expression
        used = {word for found in _LABEL.findall(f"{expression} {shown}") for word in found if word}
        grouped = {
            word for inner in re.findall(r"(?:by|on|ignoring) \(([\w, ]+)\)", expression) for word in inner.split(", ")
        }
        assert used | grouped <= set().union(*(labels[name] for name in names)), expression


def test_databases_are_told_apart() -> None:
    """A process may serve several, and tables of them may have one name."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            assert len(_NAME.findall(target["expr"])) == target["expr"].count('database=~"$database"'), target["expr"]
    for rule in re.split(r"- alert: ", RULES)[1:]:
        assert "$labels.table" not in rule or "$labels.database" in rule, rule
    assert " on (" not in RULES, "all labels of the scrape count"


def test_every_metric_is_on_the_dashboard(labels: dict[str, set[str]]) -> None:
    drawn = set(_NAME.findall(" ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])))
    assert set(labels) - drawn == set()


def test_statuses_are_those_that_there_are() -> None:
    text = RULES + json.dumps(DASHBOARD).replace('\\"', '"')
    assert set(re.findall(r'status="(\w+)"', text)) <= {"INITIALIZING", "ACTIVE", "SUSPENDED", "ERROR"}


def test_every_alert_says_what_to_do_and_panels_do_not_overlap() -> None:
    rules = re.split(r"- alert: ", RULES)[1:]
    assert len({rule.split()[0] for rule in rules}) == len(rules)
    assert all(re.search(r"^ +action: .+\.$", rule, re.MULTILINE) for rule in rules)
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for grid in [panel["gridPos"]]
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
