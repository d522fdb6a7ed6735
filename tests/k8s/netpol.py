"""What NetworkPolicies allow, by the text of the API: https://kubernetes.io/docs/concepts/services-networking/network-policies

Of peers, pod and namespace selectors are known; of ports, numbers. Everything else is refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Policy = Mapping[str, Any]
Ports = tuple[tuple[str, int], ...]  # protocol in lower case, number; empty: all


@dataclass(frozen=True)
class Peer:
    """A pod, as policies see it."""

    namespace: str
    labels: Mapping[str, str]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels", "matchExpressions"}, selector
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(_expression(entry, labels) for entry in selector.get("matchExpressions", ()))


def _expression(entry: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert entry["operator"] == "In", entry
    return labels.get(entry["key"]) in entry["values"]


def rules(policies: Iterable[Policy], pod: Peer, direction: str) -> list[Mapping[str, Any]] | None:
    """The rules of `direction` ("ingress", "egress") that hold for `pod`; None: no policy isolates it."""
    own = [policy for policy in policies if _holds(policy, pod, direction)]
    return [rule for policy in own for rule in policy["spec"].get(direction, ())] if own else None


def _holds(policy: Policy, pod: Peer, direction: str) -> bool:
    spec = policy["spec"]
    same = policy["metadata"]["namespace"] == pod.namespace
    return same and direction.capitalize() in spec["policyTypes"] and selects(spec["podSelector"], pod.labels)


def peers_of(rule: Mapping[str, Any], own: Peer, others: Mapping[str, Peer]) -> list[str] | None:
    """Names of the `others` at the far end of a rule; None: anybody."""
    ends = rule.get("from") or rule.get("to")
    if not ends:
        return None
    return [name for name, other in others.items() if any(_is_peer(end, own, other) for end in ends)]


def _is_peer(end: Mapping[str, Any], own: Peer, other: Peer) -> bool:
    assert end.keys() <= {"podSelector", "namespaceSelector"}, end
    if "namespaceSelector" in end:
        near = selects(end["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
    else:
        near = other.namespace == own.namespace
    return near and selects(end.get("podSelector", {}), other.labels)


def ports_of(rule: Mapping[str, Any]) -> Ports:
    return tuple((port["protocol"].lower(), port["port"]) for port in rule.get("ports", ()))


def allows(policies: Iterable[Policy], source: Peer, target: Peer, port: tuple[str, int]) -> bool:
    """Whether `source` may open a connection to `port` of `target`: both ends' policies must agree."""
    ends = (("egress", source, target), ("ingress", target, source))
    return all(_one_end(list(policies), direction, own, far, port) for direction, own, far in ends)


def _one_end(policies: list[Policy], direction: str, own: Peer, far: Peer, port: tuple[str, int]) -> bool:
    found = rules(policies, own, direction)
    return found is None or any(
        peers_of(rule, own, {"far": far}) != [] and port in (ports_of(rule) or (port,)) for rule in found
    )


def nft_table(policies: list[Policy], own: Peer, others: Mapping[str, Peer], node: str) -> str:
    """One pod's policies as an nftables script; `others` and `node` are addresses. The node is never kept out."""
    lines = ["table inet pods", "delete table inet pods", "table inet pods {"]
    for direction, hook, end, device in (("ingress", "input", "saddr", "iif"), ("egress", "output", "daddr", "oif")):
        found = rules(policies, own, direction)
        kept = "accept" if found is None else "drop"
        lines += [f"chain {hook} {{", f"type filter hook {hook} priority 0; policy {kept};"]
        lines += ["ct state established,related accept", f"{device} lo accept", f"ip {end} {node} accept"]
        for rule in found or ():
            lines += _nft_rule(rule, own, others, end)
        lines.append("}")
    return "\n".join([*lines, "}"]) + "\n"


def _nft_rule(rule: Mapping[str, Any], own: Peer, others: Mapping[str, Peer], end: str) -> Iterator[str]:
    addresses = peers_of(rule, own, others)
    if addresses == []:
        return
    far = "" if addresses is None else f"ip {end} {{ {', '.join(addresses)} }} "
    for protocol, number in ports_of(rule) or (("", 0),):
        yield far + (f"{protocol} dport {number} " if protocol else "") + "accept"
