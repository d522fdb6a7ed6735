"""Which worker a session goes to: laws over every small pool."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from tandem.core.placement import Candidate, place

KINDS = [
    Candidate(load, connected, draining, avoided)
    for load in (0, 1, 3)
    for connected in (False, True)
    for draining in (False, True)
    for avoided in (False, True)
]


def pools() -> Iterator[tuple[Candidate, ...]]:
    """Every pool of up to three workers."""
    for size in range(4):
        yield from itertools.product(KINDS, repeat=size)


def rank(candidate: Candidate) -> tuple[bool, int]:
    return candidate.is_avoided, candidate.num_sessions


def test_a_new_session_goes_to_the_least_loaded_of_the_best_that_are_open() -> None:
    for pool in pools():
        index, ranks = place(pool, None, tie=0), [rank(each) for each in pool if each.is_open]
        assert (index is None) == (not ranks), pool
        if index is not None:
            assert pool[index].is_open and rank(pool[index]) == min(ranks), pool


def test_a_session_leaves_its_worker_only_for_a_reason_and_only_for_one_that_is_open() -> None:
    for pool in pools():
        for current, here in enumerate(pool):
            index, elsewhere = place(pool, current, tie=0), place(pool, None, tie=0)
            better = elsewhere is not None and not (here.is_open and here.is_avoided <= pool[elsewhere].is_avoided)
            if better:
                assert index == elsewhere, pool
            else:
                assert index == (current if here.is_connected else None), pool


def test_equals_share_what_comes() -> None:
    """Whatever the number of equals, each is as likely as the others."""
    for size in range(1, 6):
        pool = [Candidate(1)] * size + [Candidate(2), Candidate(0, is_draining=True)]
        chosen = Counter(place(pool, None, tie) for tie in range(60))
        assert chosen == {index: 60 // size for index in range(size)}


def test_sessions_that_arrive_spread_evenly_from_any_loads() -> None:
    """Each arrival goes to a minimum, so that loads only grow level: the spread never grows, and goes down to 1."""
    for loads in itertools.product(range(4), repeat=3):
        filled, spread = list(loads), max(loads) - min(loads)
        for tie in range(12):
            index = place([Candidate(load) for load in filled], None, tie)
            assert index is not None
            filled[index] += 1
            spread, before = max(filled) - min(filled), spread
            assert spread <= max(before, 1)
        assert spread <= 1
