"""Who may talk to whom, by the policies alone: everything that is not listed here is refused."""

from __future__ import annotations

from itertools import product

import pytest

from k8s.manifests import Document, of_kind, pods
from k8s.netpol import Peer, allows

pytestmark = pytest.mark.k8s

DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
PROMETHEUS = Peer("monitoring", {"app": "prometheus"})
CLIENT = Peer("shop", {"tandem-client": "true"})
STRANGER = Peer("shop", {"app": "shop"})
INTRUDER = Peer("tandem", {"app": "intruder"})  # in our own namespace
NUMBERS = (53, 443, 6379, 7070, 7071, 7072, 9090, 9091, 9092, 31000)


OURS = {"coordinator", "draft", "target", "rank", "weights"}
INSIDE = {*OURS, "intruder"}  # nobody in our namespace goes out but for DNS, and weights


def expected(source: str, target: str, port: tuple[str, int], has_ranks: bool) -> bool:
    """Whether `source` may open a connection to this port of `target`."""
    protocol, number = port
    if target not in INSIDE:
        dns = target == "dns" and number == 53
        return dns or source not in INSIDE or (source == "weights" and port == ("tcp", 443))
    if has_ranks and {source, target} <= {"target", "rank"}:
        return True
    if source == "prometheus":
        return protocol == "tcp" and target in OURS and number in (9090, 9091, 9092)
    ways = {("client", "coordinator", 7070), ("coordinator", "draft", 7071), ("coordinator", "target", 7072)}
    return protocol == "tcp" and (source, target, number) in ways


def test_nothing_else_is_allowed(documents: tuple[Document, ...]) -> None:
    own = {pod.component: Peer("tandem", pod.labels) for pod in pods(documents)}
    others = {"dns": DNS, "prometheus": PROMETHEUS, "client": CLIENT, "stranger": STRANGER, "intruder": INTRUDER}
    everybody = {**own, **others}
    policies = of_kind(documents, "NetworkPolicy")
    wrong = [
        (source, target, port)
        for source, target, port in product(everybody, everybody, product(("tcp", "udp"), NUMBERS))
        if allows(policies, everybody[source], everybody[target], port)
        != expected(source, target, port, has_ranks="rank" in own)
    ]
    assert not wrong
