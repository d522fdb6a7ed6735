"""Layer 2: the joint law of five tokens through the real decode loop; indexes; and that speculation is of use."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

import pytest

from exactness import efficiency, loop
from tandem.core.types import Rule

NUM_SEQUENCES = 10_000
RULES = [Rule.REJECTION, Rule.COUPLED]


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    """Sequences do not depend on one another: two processes share them."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context, initializer=_one_thread) as executor:
        yield executor


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", loop.WAYS)
def test_five_tokens_follow_the_joint_law(name: str, pool: Executor) -> None:
    """In turn and pipelined, with calls lost and blocks partly late by coin."""
    way = loop.WAYS[name]
    loop.require_joint_law(loop.spread_outputs(pool, way, NUM_SEQUENCES))


def test_every_token_index_comes_once() -> None:
    loop.check_offsets()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_drafts_are_accepted_as_often_as_they_must(rule: Rule) -> None:
    efficiency.check(rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_draft_that_is_the_target_is_accepted_whole(rule: Rule) -> None:
    efficiency.check_same_model(rule)
