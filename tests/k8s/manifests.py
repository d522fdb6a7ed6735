"""The overlays as kubectl renders them, and the pods in them, whatever owns them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from tandem.config import Config, load_config

Document = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
OVERLAYS = ("cpu", "gpu", "kuberay", "leaderworkerset")
SERVICES = ("coordinator", "draft", "target")
COMPONENT = "app.kubernetes.io/component"


def kustomize(folder: Path) -> list[Document]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@functools.cache
def render(overlay: str) -> tuple[Document, ...]:
    return tuple(kustomize(ROOT / "k8s" / "overlays" / overlay))


@functools.cache
def render_with_monitoring() -> tuple[Document, ...]:
    """An overlay with the optional component, as its reader is told to add it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "k8s", Path(folder) / "k8s")
        overlay = Path(folder) / "k8s" / "overlays" / "cpu"
        with (overlay / "kustomization.yaml").open("a") as file:
            file.write("components: [../../components/monitoring]\n")
        return tuple(kustomize(overlay))


def of_kind(documents: tuple[Document, ...], *kinds: str) -> list[Document]:
    return [document for document in documents if document["kind"] in kinds]


def named(documents: tuple[Document, ...], kind: str, name: str) -> Document:
    [found] = [document for document in of_kind(documents, kind) if document["metadata"]["name"] == name]
    return found


@dataclass(frozen=True)
class Pod:
    """One pod template."""

    owner: Document
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def component(self) -> str:
        return self.labels[COMPONENT]

    @property
    def container(self) -> Mapping[str, Any]:
        """The only one."""
        [container] = self.spec["containers"]
        return cast("Mapping[str, Any]", container)

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}

    @property
    def env(self) -> dict[str, Mapping[str, Any]]:
        return {entry["name"]: entry for entry in self.container.get("env", ())}

    @property
    def stop_pause_s(self) -> int:
        return int(self.container["lifecycle"]["preStop"]["sleep"]["seconds"])


def _templates(document: Document) -> Iterator[Mapping[str, Any]]:
    spec = document.get("spec", {})
    match document["kind"]:
        case "Deployment" | "Job":
            yield spec["template"]
        case "LeaderWorkerSet":
            yield spec["leaderWorkerTemplate"]["leaderTemplate"]
            yield spec["leaderWorkerTemplate"]["workerTemplate"]
        case "RayCluster":
            yield spec["headGroupSpec"]["template"]
            yield from (group["template"] for group in spec["workerGroupSpecs"])


def pods(documents: tuple[Document, ...]) -> list[Pod]:
    return [
        Pod(document, template["metadata"]["labels"], template["spec"])
        for document in documents
        for template in _templates(document)
    ]


def services(documents: tuple[Document, ...]) -> list[Pod]:
    """The pods that run one of the three services."""
    return [pod for pod in pods(documents) if pod.component in SERVICES]


def config_of(documents: tuple[Document, ...], pod: Pod) -> Config:
    """The settings that this pod's service would read: its file, then its environment."""
    [volume] = [volume for volume in pod.spec["volumes"] if "configMap" in volume]
    text = named(documents, "ConfigMap", volume["configMap"]["name"])["data"]["tandem.yaml"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tandem.yaml"
        path.write_text(text)
        before = {name: os.environ[name] for name in os.environ if name.startswith("TANDEM_")}
        try:
            for name in before:
                del os.environ[name]
            os.environ.update(environment(pod, pod_ip="10.0.0.1"))
            return load_config(path)
        finally:
            for name in environment(pod, pod_ip=""):
                os.environ.pop(name, None)
            os.environ.update(before)


def environment(pod: Pod, pod_ip: str) -> dict[str, str]:
    """Its variables as the kubelet would set them; those of Secrets are left out."""
    found: dict[str, str] = {}
    for entry in pod.container.get("env", ()):
        source = entry.get("valueFrom", {})
        if "value" in entry:
            found[entry["name"]] = entry["value"].replace("$(POD_IP)", found.get("POD_IP", ""))
        elif "resourceFieldRef" in source:
            section, resource = source["resourceFieldRef"]["resource"].split(".")
            found[entry["name"]] = str(pod.container["resources"][section][resource])
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "status.podIP"
            found[entry["name"]] = pod_ip
    return found
