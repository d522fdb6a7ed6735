"""What a control plane would do with our manifests: make pods, publish the ready ones, enforce policies, roll out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from k8s.container import Container
from k8s.kubelet import Kubelet
from k8s.manifests import Document, Pod, named, of_kind, services
from k8s.netpol import Peer, nft_table, selects
from k8s.network import FAR, NAMESERVER, NEAR, NODE, ClusterDns, Network, inside

NAMESPACE = "tandem"
DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
READY_WAIT_S = 240.0


class Cluster:
    """The pods of an overlay in a network of their own. The draft pool is on the far side."""

    def __init__(self, documents: tuple[Document, ...], network: Network, volumes: Path) -> None:
        self.documents = documents
        self.network = network
        self.templates = {pod.component: pod for pod in services(documents)}
        self.pods: list[Kubelet] = []
        self.gone: list[Kubelet] = []
        self.unclean: list[str] = []  # departures that did not end by themselves, in time
        self._volumes = volumes
        self._numbers = itertools.count(1)
        self._peers: dict[str, Peer] = {}
        self._spaces: dict[str, str] = {}
        self.add_stranger("dns", DNS, NAMESERVER)
        self._dns = ClusterDns(self._spaces[NAMESERVER])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pod in self.pods:
            pod.close()
        self._dns.close()

    def add_stranger(self, name: str, peer: Peer, address: str = "") -> str:
        """A namespace for what our manifests do not describe; its address."""
        address = address or self._next_address()
        self._spaces[address] = self.network.add_pod(name, address, NEAR)
        self._peers[address] = peer
        self._enforce()
        return address

    def space_of(self, address: str) -> str:
        return self._spaces[address]

    def of(self, component: str) -> list[Kubelet]:
        return [pod for pod in self.pods if pod.template.component == component]

    async def start(self) -> None:
        """As many pods of each kind as the autoscaler keeps at least."""
        for component in self.templates:
            scaler = named(self.documents, "HorizontalPodAutoscaler", f"tandem-{component}")
            for _ in range(scaler["spec"]["minReplicas"]):
                self.add(component)
        await self.all_ready()

    def add(self, component: str) -> Kubelet:
        template, address = self.templates[component], self._next_address()
        name = f"{component}-{next(self._numbers)}"
        self._spaces[address] = self.network.add_pod(name, address, FAR if component == "draft" else NEAR)
        self._peers[address] = Peer(NAMESPACE, template.labels)
        container = Container(name, template, self._spaces[address], address, self.documents, self._volumes)
        self.pods.append(Kubelet(name, template, address, container, self.publish))
        self._enforce()
        return self.pods[-1]

    async def remove(self, pod: Kubelet) -> None:
        if not await pod.depart():
            self.unclean.append(pod.name)
        pod.close()
        self.pods.remove(pod)
        self.gone.append(pod)
        self.network.remove_pod(self._spaces.pop(pod.address))
        del self._peers[pod.address]
        self._enforce()

    async def roll_out(self, component: str) -> None:
        """Each pod in turn, its successor ready first."""
        for pod in self.of(component):
            self.add(component)
            await self.all_ready()
            await self.remove(pod)

    async def all_ready(self) -> None:
        async with asyncio.timeout(READY_WAIT_S):
            while not all(pod.ready for pod in self.pods):
                await asyncio.sleep(0.1)

    def publish(self) -> None:
        """The addresses of ready pods, under the names of the Services that select them."""
        ready: Mapping[str, list[str]] = {
            f"{service['metadata']['name']}.{NAMESPACE}": [
                pod.address
                for pod in self.pods
                if pod.ready and selects({"matchLabels": service["spec"]["selector"]}, pod.template.labels)
            ]
            for service in of_kind(self.documents, "Service")
        }
        self._dns.say(ready)

    def _enforce(self) -> None:
        policies = of_kind(self.documents, "NetworkPolicy")
        for address, own in self._peers.items():
            table = nft_table([dict(policy) for policy in policies], own, self._peers, NODE)
            inside(self._spaces[address], "nft", "-f", "-", given=table)

    def _next_address(self) -> str:
        return f"10.213.1.{next(self._numbers)}"


def client_pod(*command: str) -> Pod:
    """A pod as somebody else would write it, with a claim `client` to read from and write to."""
    volumes = [{"name": "out", "persistentVolumeClaim": {"claimName": "client"}}, {"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "out", "mountPath": "/out"}, {"name": "tmp", "mountPath": "/tmp"}]
    spec = {
        "securityContext": {"runAsUser": 10001},
        "containers": [{"command": list(command), "volumeMounts": mounts}],
        "volumes": volumes,
    }
    return Pod({}, {"tandem-client": "true"}, spec)
