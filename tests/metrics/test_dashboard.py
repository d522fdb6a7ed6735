"""Every query of the dashboard asks for what the services serve, in the form that its kind wants."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from metrics.registries import registries, sample_names

DASHBOARD = Path(__file__).parents[2] / "k8s" / "components" / "monitoring" / "dashboard.json"
PANELS = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
METRIC = re.compile(r"\b(?:tandem|process)_\w+")


@pytest.mark.parametrize(("title", "expr"), EXPRESSIONS)
def test_a_query_finds_what_it_asks_for(title: str, expr: str) -> None:
    asked = set(METRIC.findall(expr))
    assert asked and not asked - sample_names()


@pytest.mark.parametrize(("title", "expr"), EXPRESSIONS)
def test_counters_are_read_as_rates_and_gauges_as_they_are(title: str, expr: str) -> None:
    rated = set(re.findall(r"rate\((\w+)\[\$__rate_interval\]\)", expr))
    counted = {name for name in METRIC.findall(expr) if name.endswith(("_total", "_bucket"))}
    assert rated == counted


@pytest.mark.parametrize(("title", "expr"), EXPRESSIONS)
def test_brackets_match(title: str, expr: str) -> None:
    assert expr.count("(") == expr.count(")") and expr.count("[") == expr.count("]")


@pytest.mark.parametrize(("title", "expr"), EXPRESSIONS)
def test_a_query_groups_by_labels_that_are_there(title: str, expr: str) -> None:
    known = {
        label
        for registry in registries()
        for family in registry.collect()
        for s in family.samples
        for label in s.labels
    }
    asked = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expr) for label in group.split(",")}
    assert not asked - known


def test_nothing_that_a_service_serves_is_left_out_but_details() -> None:
    """What an operator has no panel for, nobody looks at."""
    asked = {name for _, expr in EXPRESSIONS for name in METRIC.findall(expr)}
    details = ("_sum", "_count", "process_")
    bare = {name for name in sample_names() if not name.endswith(details[:2]) and not name.startswith(details[2])}
    assert not bare - asked
