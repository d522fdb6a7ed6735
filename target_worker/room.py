"""What a group of ranks asks of a cluster, and what the cluster lacks where it has no room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.errors import TandemError

Resources = Mapping[str, float]
NAMED = ("CPU", "GPU")


class NoRoom(TandemError):
    """Ray cannot place the ranks."""


def bundles(size: int, cpus: float, with_gpu: bool, own_node: str) -> list[dict[str, float]]:
    """One for each rank; rank 0's is on the node of this process."""
    each = {"CPU": cpus, **({"GPU": 1.0} if with_gpu else {})}
    return [{**each, f"node:{own_node}": 0.001}, *(dict(each) for _ in range(size - 1))]


def shortage(wanted: Sequence[Resources], nodes: Sequence[Resources], free: Resources) -> str:
    """Says in one line what is missing."""
    lacks, lines = [], []
    for name in NAMED:
        need, has = _sum(name, wanted), _sum(name, nodes)
        if need:
            lines.append(f"{need:g} {name} ({has:g} there, {free.get(name, 0.0):g} free)")
            lacks += [f"{need - has:g} {name}"] if need > has else []
    asked = f"{len(wanted)} ranks need {' and '.join(lines)} on {len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    if lacks:
        return f"{asked}; missing: {', '.join(lacks)}"
    return f"{asked}; others hold what is not free, or no node has a whole rank's share"


def _sum(name: str, parts: Sequence[Resources]) -> float:
    return sum(part.get(name, 0.0) for part in parts)
