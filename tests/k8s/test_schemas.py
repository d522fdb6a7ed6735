"""What an API server would refuse: every document against its schema, unknown fields included."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from k8s.manifests import ROOT, Document, kustomize, pods, render_with_monitoring

pytestmark = pytest.mark.k8s

SCHEMAS = Path(__file__).parent / "schemas"
VERSIONS = ("1.30", "1.34")  # 1.30 is the first that knows preStop.sleep without being asked to


def check(documents: Iterable[Document], version: str) -> None:
    """The validators are imported where they are used: `make test-k8s` installs them, and `make test` collects this."""
    import jsonschema
    import kubernetes_validate

    for document in documents:
        own = SCHEMAS / f"{document['kind']}.json"
        if own.exists():
            jsonschema.validate(document, json.loads(own.read_text()))
        else:
            kubernetes_validate.validate(document, version, strict=True)


def as_pods(documents: tuple[Document, ...]) -> list[Document]:
    """Every pod template as the pod that its controller would make."""
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "labels": dict(pod.labels)}, "spec": pod.spec}
        for pod in pods(documents)
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_api_server_would_take_every_document(documents: tuple[Document, ...], version: str) -> None:
    check(documents, version)
    check(as_pods(documents), version)


def test_it_would_take_the_monitoring_too() -> None:
    documents = render_with_monitoring()
    assert {"PodMonitor", "PrometheusRule"} <= {document["kind"] for document in documents}
    check(documents, VERSIONS[0])


def test_nothing_is_there_twice(documents: tuple[Document, ...]) -> None:
    names = Counter((document["kind"], document["metadata"]["name"]) for document in documents)
    assert not [name for name, count in names.items() if count > 1]


def test_the_base_stands_alone() -> None:
    check(kustomize(ROOT / "k8s" / "base"), VERSIONS[0])


def _broken(document: Document, path: tuple[Any, ...], value: Any) -> Document:
    copy = json.loads(json.dumps(document))
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return dict(copy)


def test_a_misspelt_field_is_found(documents: tuple[Document, ...]) -> None:
    """Otherwise the checks above would show nothing."""
    import jsonschema
    import kubernetes_validate

    for document in documents:
        if "spec" in document and document["kind"] != "Namespace":
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                check([_broken(document, ("spec", "replicsa"), 1)], VERSIONS[0])
    for pod in as_pods(documents):
        with pytest.raises(kubernetes_validate.ValidationError):
            check([_broken(pod, ("spec", "containers", 0, "readinesProbe"), {})], VERSIONS[0])
