"""What a group of ranks asks of a Ray cluster, and what the cluster lacks where it has no room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.errors import TandemError

Resources = Mapping[str, float]
GIB = 2**30
_NODE = "node:"


class InsufficientResources(TandemError):
    """Ray cannot place the ranks."""


def bundles(size: int, each: Resources, own_node: str) -> list[dict[str, float]]:
    """One for each rank; rank 0's is on the node of this process."""
    return [{**each, f"{_NODE}{own_node}": 0.001}, *(dict(each) for _ in range(size - 1))]


def shortage(wanted: Sequence[Resources], nodes: Sequence[Resources], free: Resources) -> str:
    """Says in one line what is missing."""
    lacks, needs = [], []
    for name in {name: None for bundle in wanted for name in bundle}:
        need, has = _sum(name, wanted), _sum(name, nodes)
        if not name.startswith(_NODE):
            there, left = _amount(name, has), _amount(name, free.get(name, 0.0))
            needs.append(f"{_amount(name, need)} {_unit(name)} ({there} there, {left} free)")
            lacks += [f"{_amount(name, need - has)} {_unit(name)}"] if need > has else []
        elif not has:
            lacks.append(f"a node on this machine, {name.removeprefix(_NODE)}")
    asked = f"{len(wanted)} ranks need {_listed(needs)} on {len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    if lacks:
        return f"{asked}; missing: {', '.join(lacks)}"
    return f"{asked}; others hold what is not free, or no node has a whole rank's share"


def _sum(name: str, parts: Sequence[Resources]) -> float:
    return sum(part.get(name, 0.0) for part in parts)


def _unit(name: str) -> str:
    return "GiB of memory" if name == "memory" else name


def _amount(name: str, amount: float) -> str:
    return f"{amount / GIB:.2f}" if name == "memory" else f"{amount:g}"


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
