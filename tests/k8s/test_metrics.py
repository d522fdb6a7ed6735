"""Metrics that manifests name are metrics that the services have, and Prometheus' own tools take both."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.generation import tiny_engine
from prometheus_client import CollectorRegistry, generate_latest

from coordinator.metrics import CoordinatorMetrics
from k8s.manifests import ROOT, Document, of_kind, pods, render_with_monitoring
from k8s.netpol import selects
from tandem.rpc.worker_metrics import WorkerMetrics

pytestmark = pytest.mark.k8s

ADAPTER = ROOT / "k8s" / "components" / "monitoring" / "adapter-rules.yaml"
NAME = re.compile(r"\btandem_[a-z_]+")


def registries() -> list[CollectorRegistry]:
    coordinator = CoordinatorMetrics()
    coordinator.watch(lambda: 0, lambda: 0)
    workers = [WorkerMetrics(tiny_engine(role, role), role).registry for role in ("draft", "target")]
    return [coordinator.registry, *workers]


def series() -> set[str]:
    """Names as they are scraped."""
    text = "".join(generate_latest(registry).decode() for registry in registries())
    declared = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    histograms = {
        f"{name}{end}" for name, kind in declared if kind == "histogram" for end in ("_bucket", "_sum", "_count")
    }
    return {name for name, _ in declared} | histograms


def adapter_rules() -> list[dict[str, Any]]:
    return list(yaml.safe_load(ADAPTER.read_text()))


def offered(rules: Iterable[dict[str, Any]], names: set[str]) -> dict[str, str]:
    """Metric as the autoscaler knows it -> series behind it."""
    found = {}
    for rule in rules:
        query = rule["seriesQuery"]
        pattern = re.search(r'__name__=~"([^"]+)"', query)
        wanted = re.compile(pattern[1] if pattern else query.partition("{")[0])
        for name in filter(wanted.fullmatch, names):
            found[rule.get("name", {}).get("as", name)] = name
    return found


def test_autoscalers_ask_for_what_the_adapter_offers(documents: tuple[Document, ...]) -> None:
    """Each pool by what it suffers from, and by nothing of another pool."""
    known = offered(adapter_rules(), series())
    asked = {
        scaler["metadata"]["name"].removeprefix("tandem-"): {
            metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]
        }
        for scaler in of_kind(documents, "HorizontalPodAutoscaler")
    }
    wanted = {
        "coordinator": {"tandem_requests_running"},
        "draft": {"tandem_draft_busy_share", "tandem_draft_calls_waiting"},
        "target": {"tandem_target_calls_waiting", "tandem_target_kv_used_ratio"},
    }
    assert asked.items() <= wanted.items() and "draft" in asked
    assert {name for names in asked.values() for name in names} <= known.keys()


def test_rules_name_metrics_that_there_are() -> None:
    [rules] = of_kind(render_with_monitoring(), "PrometheusRule")
    assert len(offered(adapter_rules(), series())) == 5
    named = set(NAME.findall(str(rules["spec"])))
    assert named and named <= series()


def test_every_pod_of_ours_is_scraped() -> None:
    documents = render_with_monitoring()
    [monitor] = of_kind(documents, "PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for pod in pods(documents):
        if pod.component != "weights":
            assert selects(monitor["spec"]["selector"], pod.labels) and endpoint["port"] in pod.ports


def promtool(*arguments: str, given: str = "") -> str:
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    [rules] = of_kind(render_with_monitoring(), "PrometheusRule")
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules["spec"]))
    num_rules = sum(len(group["rules"]) for group in rules["spec"]["groups"])
    assert f"{num_rules} rules found" in promtool("check", "rules", str(path))


def test_promtool_takes_the_metrics() -> None:
    for registry in registries():
        promtool("check", "metrics", given=generate_latest(registry).decode())
