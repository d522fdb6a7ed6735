"""Which worker of a pool a session goes to, and when it goes elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker of the pool, as it stands now."""

    num_sessions: int = 0  # of ours
    is_connected: bool = True
    is_draining: bool = False  # finishes what it has
    is_avoided: bool = False  # failed or refused lately: taken only where nothing better is open

    @property
    def is_open(self) -> bool:
        """Whether it takes new sessions."""
        return self.is_connected and not self.is_draining


def place(candidates: Sequence[Candidate], current: int | None, tie: int) -> int | None:
    """The index of the worker that a session's next call goes to; None: there is none.

    It stays on the worker `current` while that is open, since its cache is there. Else it goes to the one with the
    fewest sessions, of equals by the number `tie`, which sessions draw at random: several coordinators, none of which
    knows the others' sessions, then do not all begin with the same worker. A draining worker keeps what cannot go
    elsewhere.
    """
    here = None if current is None else candidates[current]
    ranks = {
        index: (candidate.is_avoided, candidate.num_sessions)
        for index, candidate in enumerate(candidates)
        if candidate.is_open
    }
    if not ranks:
        return current if here is not None and here.is_connected else None
    best = min(ranks.values())
    if here is not None and here.is_open and here.is_avoided <= best[0]:
        return current
    equals = [index for index, rank in ranks.items() if rank == best]
    return equals[tie % len(equals)]
