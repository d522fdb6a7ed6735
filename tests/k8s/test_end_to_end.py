"""The cpu overlay as processes: its own commands, settings, probes, policies, departures, in a network of namespaces.

Families: requests cut off by a rollout, by scaling down, by a pod that the network loses; routes that policies forget.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness.tiny import reference, save_near, save_tiny

from k8s.cluster import Cluster, client_pod
from k8s.container import Container
from k8s.kubelet import Kubelet
from k8s.manifests import ROOT, render
from k8s.netpol import Peer
from k8s.network import ZONE, Network

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(900)]

DELAY_MS = 5.0  # each way, between the draft pool and everything else
NUM_REQUESTS = 50
MAX_TOKENS = 48
NUM_DRAFT_TOKENS = 3  # stated: left to itself, a coordinator would see that drafts of a tiny model do not pay
ADDRESS = f"dns:///tandem-coordinator.tandem.{ZONE}:7070"
PROMPTS = [f"Request {number}: tell me about rivers." for number in range(10)]
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.5)"


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each claim: the models, and the client's."""
    folder = tmp_path_factory.mktemp("volumes")
    target = save_tiny(folder / "tandem-models" / "target", seed=0)
    save_near(folder / "tandem-models" / "draft", target, noise=0.004)
    (folder / "client").mkdir()
    (folder / "client").chmod(0o777)
    for path in (folder / "tandem-models").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(DELAY_MS) as network:
        yield network


@pytest.fixture
async def cluster(network: Network, volumes: Path) -> AsyncIterator[Cluster]:
    with Cluster(render("cpu"), network, volumes) as cluster:
        yield cluster


class Client:
    """A client pod that goes on asking, and what it was told."""

    def __init__(self, cluster: Cluster, volumes: Path) -> None:
        self._folder = volumes / "client"
        pod = client_pod(sys.executable, "-P", str(ROOT / "tests" / "k8s" / "asking.py"), ADDRESS)
        self.address = cluster.add_stranger("client", Peer("shop", pod.labels))
        space = cluster.space_of(self.address)
        self._container = Container("client", pod, space, self.address, cluster.documents, volumes)

    def start(self) -> None:
        settings = {"max_tokens": MAX_TOKENS, "temperature": 0, "num_draft_tokens": NUM_DRAFT_TOKENS}
        requests = [{"prompt": prompt, **settings} for prompt in PROMPTS]
        (self._folder / "requests.json").write_text(json.dumps(requests))
        self._container.start()

    def answers(self) -> list[dict[str, Any]]:
        path = self._folder / "answers"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    async def has_more(self, count: int) -> None:
        """Waits for `count` answers more than there are now."""
        wanted = len(self.answers()) + count
        async with asyncio.timeout(180):
            while len(self.answers()) < wanted:
                assert self._container.exit_code is None, "the client is gone"
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        assert await self._container.stop(130), "a request did not end"

    def close(self) -> None:
        self._container.remove()


@pytest.fixture
def client(cluster: Cluster, volumes: Path) -> Iterator[Client]:
    client = Client(cluster, volumes)
    yield client
    client.close()


def connects(space: str, address: str, port: int) -> bool:
    command = ("ip", "netns", "exec", space, sys.executable, "-c", CONNECT, address, str(port))
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def check_routes(cluster: Cluster, client: Client) -> None:
    """By packets what test_network_policy.py says of the text."""
    ports = {pod.template.component: (pod.address, *pod.template.ports.values()) for pod in cluster.pods}
    intruder = cluster.add_stranger("intruder", Peer("tandem", {"app": "intruder"}))
    shop = cluster.add_stranger("shop", Peer("shop", {}))
    prometheus = cluster.add_stranger("prometheus", Peer("monitoring", {}))
    allowed = {
        (client.address, "coordinator", 7070),
        (ports["coordinator"][0], "target", 7072),
        (ports["coordinator"][0], "draft", 7071),
        *((prometheus, component, metrics) for component, (_, _, metrics) in ports.items()),
    }
    sources = [intruder, shop, prometheus, client.address, *(address for address, *_ in ports.values())]
    ways = [
        (source, component, port)
        for source in sources
        for component, (address, *numbers) in ports.items()
        for port in numbers
        if source != address
    ]
    with ThreadPoolExecutor(len(ways)) as threads:
        answers = threads.map(lambda way: connects(cluster.space_of(way[0]), ports[way[1]][0], way[2]), ways)
        assert {way for way, answer in zip(ways, answers, strict=True) if answer} == allowed


async def all_work(pods: Sequence[Kubelet]) -> None:
    """Waits until each of these workers has run a step: what joins gets its share."""
    async with asyncio.timeout(120):
        while not all([await asyncio.to_thread(num_steps, pod) for pod in pods]):
            await asyncio.sleep(0.2)


def num_steps(worker: Kubelet) -> float:
    role, port = worker.template.component, worker.template.ports["metrics"]
    with urllib.request.urlopen(f"http://{worker.address}:{port}/metrics", timeout=10) as answer:
        [count] = re.findall(rf"^tandem_{role}_steps_total (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(count)


async def cut_off(cluster: Cluster, pod: Kubelet, client: Client) -> None:
    """Until it is out of DNS and requests go on, and then no longer."""
    space = cluster.space_of(pod.address)
    cluster.network.cut_off(space)
    async with asyncio.timeout(120):
        while pod.ready:
            await asyncio.sleep(0.1)
    await client.has_more(5)
    cluster.network.join_again(space)
    await cluster.all_ready()


async def test_no_request_fails_and_no_text_is_wrong(cluster: Cluster, client: Client) -> None:
    await cluster.start()
    await asyncio.to_thread(check_routes, cluster, client)
    client.start()
    await client.has_more(len(PROMPTS))

    more = [cluster.add("draft") for _ in cluster.of("draft")]
    await cluster.all_ready()
    await all_work(more)
    await asyncio.gather(*(cluster.remove(pod) for pod in more))

    for component in cluster.templates:
        await cluster.roll_out(component)
    await client.has_more(5)

    lost = [cluster.of(component)[0] for component in ("draft", "target")]
    for pod in lost:
        await cut_off(cluster, pod, client)
    await client.has_more(5)
    await client.stop()

    answers = client.answers()
    assert not [answer for answer in answers if "error" in answer]
    wanted = [reference(list(prompt.encode()), MAX_TOKENS) for prompt in PROMPTS]
    assert not [answer for answer in answers if answer["token_ids"] != wanted[answer["request"]]]
    assert len(answers) >= NUM_REQUESTS and sum(answer["num_accepted"] for answer in answers) > len(answers)
    assert cluster.unclean == []
    assert not [pod.name for pod in cluster.pods + cluster.gone if pod.restarted and pod not in lost]
