"""Processed distributions: equal to a slow reference, and each border of the contract by an example of its own."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from exactness import processing, reference
from exactness.drive import new_call
from tandem.core.distributions import EmptySupport, Rows, UnusableLogits, log_probabilities, score, truncate
from tandem.core.noise import race
from tandem.core.rules import DRAFT_SUPPORT, largest, pick_greedy, sparse_q
from tandem.core.types import Call, Rule, Sampling

NONE = Rows([0], 1, 1)


def call_with(**parameters: object) -> Call:
    return new_call(Rule.REJECTION, Sampling(**parameters), 1, 100)  # type: ignore[arg-type]


def kept(logits: list[float], **parameters: object) -> list[int]:
    """Ids that survive truncation."""
    sampling = Sampling(**parameters)  # type: ignore[arg-type]
    weights = truncate(torch.tensor([logits], dtype=torch.float64), sampling)[0]
    return weights.nonzero()[:, 0].tolist()


def test_every_row_equals_the_slow_reference() -> None:
    processing.check()


def test_top_k_and_top_p_give_ties_to_the_lower_id() -> None:
    assert kept([1.0, 2.0, 1.0, 2.0, 1.0], top_k=3) == [0, 1, 3]
    assert kept([0.0] * 8, top_k=5) == [0, 1, 2, 3, 4]
    assert kept([0.0] * 8, top_p=0.5) == [0, 1, 2, 3]


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = [math.log(weight) for weight in (0.5, 0.25, 0.125, 0.125)]
    assert kept(logits, top_p=0.5) == [0]
    assert kept(logits, top_p=0.500001) == [0, 1]
    assert kept(logits, top_p=0.76) == [0, 1, 2]
    assert kept(logits, top_p=1e-9) == [0]


def test_top_p_looks_at_what_top_k_left() -> None:
    logits = [math.log(weight) for weight in (0.3, 0.3, 0.2, 0.2)]
    assert kept(logits, top_p=0.5) == [0, 1]
    assert kept(logits, top_p=0.5, top_k=2) == [0]


def test_top_p_beyond_the_first_candidates() -> None:
    """A flat row of 5,000 ids needs more than the 1,024 that are looked at first."""
    assert kept([0.0] * 5_000, top_p=0.5) == list(range(2_500))


def test_min_p_is_relative_to_the_largest() -> None:
    logits = [math.log(weight) for weight in (0.5, 0.25, 0.1249, 0.1251)]
    assert kept(logits, min_p=0.25) == [0, 1, 3]
    assert kept([0.0] * 4, min_p=1.0) == [0, 1, 2, 3]


def test_min_tokens_bans_ends_row_by_row() -> None:
    """Output 1 token long, min_tokens 3: rows 0 and 1 may not end, row 2 may."""
    logits = torch.zeros(4, 5, dtype=torch.float64)
    call = processing.replace(call_with(), min_tokens=3, end_token_ids=frozenset({2, 4, 900}))
    scores = score(logits, call, Rows([1, 1, 0, 0, 0], 2, 1), 5)
    assert torch.isinf(scores).nonzero().tolist() == [[0, 2], [0, 4], [1, 2], [1, 4]]


def test_padding_never_comes_out_even_with_a_bias() -> None:
    logits = torch.tensor([[0.0, 0.0, 9.0, 9.0]], dtype=torch.float64)
    scores = score(logits, call_with(logit_bias={3: 90.0}), NONE, 2)
    assert torch.isinf(scores[0]).tolist() == [False, False, True, True]


@pytest.mark.parametrize(("bias", "is_banned"), [(-99.9, False), (-100.0, True), (-1e30, True)])
def test_a_bias_of_minus_100_bans(bias: float, is_banned: bool) -> None:
    logits = torch.tensor([[300.0, 0.0]], dtype=torch.float64)
    assert bool(torch.isinf(score(logits, call_with(logit_bias={0: bias}), NONE, 2)[0, 0])) is is_banned


def test_temperature_up_to_1e_5_is_greedy() -> None:
    assert Sampling(temperature=1e-5).is_greedy
    assert not Sampling(temperature=1.1e-5).is_greedy
    logits = torch.tensor([[3.0, 7.0]], dtype=torch.float64)
    assert score(logits, call_with(temperature=1e-5), NONE, 2).tolist() == [[3.0, 7.0]]
    assert truncate(score(logits, call_with(temperature=1.1e-5), NONE, 2), Sampling()).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_logits_that_give_no_distribution(bad: list[float], row: int) -> None:
    logits = torch.zeros(3, 2, dtype=torch.float64)
    logits[row] = torch.tensor(bad)
    with pytest.raises(UnusableLogits):
        score(logits, call_with(), Rows([0, 1, 1], 1, 1), 2)


def test_all_banned() -> None:
    with pytest.raises(EmptySupport):
        score(torch.zeros(1, 2), call_with(logit_bias={0: -100.0, 1: -100.0}), NONE, 2)


@pytest.mark.parametrize("width", [3, 40, 700])
@pytest.mark.parametrize("support", [1.0, 0.1])
def test_the_race_is_won_by_the_smallest_e_over_w(width: int, support: float) -> None:
    """The shipped race takes few logarithms; trying every id gives the same winner."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(50, width, generator=generator, dtype=torch.float64) ** 3
    weights *= torch.rand(50, width, generator=generator) < support
    weights[:, 1] += 1e-9
    keys = list(range(1_000, 1_050))
    rows = zip(weights.tolist(), keys, strict=True)
    assert race(weights, keys).tolist() == [reference.race_winner(row, key) for row, key in rows]


def test_greedy_gives_ties_to_the_lower_id() -> None:
    assert pick_greedy(torch.tensor([[1.0, 5.0, 5.0], [2.0, 2.0, 2.0], [0.0, 1.0, 3.0]])) == [1, 0, 2]


def test_q_is_the_largest_weights_in_float32() -> None:
    weights = torch.rand(200, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    weights[7] = 1e-60  # 0 in float32
    q = sparse_q(weights)
    assert len(q.ids) == DRAFT_SUPPORT and list(q.ids) == sorted(q.ids)
    assert set(q.ids) == set(weights.topk(DRAFT_SUPPORT).indices.tolist())
    assert list(q.weights) == weights.float()[list(q.ids)].tolist()
    assert sparse_q(torch.tensor([1.0, 1e-60, 0.0], dtype=torch.float64)).ids == (0,)


def test_logprobs_are_taken_before_truncation() -> None:
    generator = random.Random(8)
    row = [generator.gauss(0, 2) for _ in range(9)]
    call = call_with(temperature=0.5, top_k=2, logit_bias={4: 1.0})
    scores = score(torch.tensor([row, row], dtype=torch.float64), call, Rows([0, 4], 1, 1), 9)
    told = log_probabilities(scores, [4, 2], 3)
    slow = reference.scored(row, call.sampling, [0], [], 9)
    total = math.log(sum(math.exp(value) for value in slow))
    order = sorted(range(9), key=lambda token: -slow[token])
    assert told[0].logprob == pytest.approx(slow[4] - total, abs=1e-12)
    assert told[1].logprob == pytest.approx(slow[2] - total, abs=1e-12)
    assert [token for token, _ in told[0].top] == order[:3]
    assert [value for _, value in told[0].top] == pytest.approx([slow[token] - total for token in order[:3]], abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [0, 3])
def test_greedy_in_one_pass_is_greedy_the_long_way(dtype: torch.dtype, padding: int) -> None:
    """Ties, padding that is larger than any id, -inf, and rows that are not usable (left to the long way)."""
    generator = torch.Generator().manual_seed(1)
    call = Call(b"s", 1, 1, Rule.GREEDY, 99, sampling=Sampling(temperature=0.0))
    for case in range(300):
        logits = torch.randint(-3, 4, (4, 6 + padding), generator=generator).to(dtype)
        logits[:, 6:] = 50.0
        if case % 3 == 1:
            logits[case % 4, case % 6] = (torch.nan, torch.inf, -torch.inf)[case % 9 // 3]
        own = largest(logits, call, 6)
        if own is None:
            assert not bool(torch.isfinite(logits).all())
        else:
            assert own == pick_greedy(score(logits, call, Rows([1] * 8, 5, 3), 6))


CHANGES = {"repetition_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": -1.0, "logit_bias": {1: 5.0}}


@pytest.mark.parametrize("name", [*CHANGES, "min_tokens", "logprobs", "rule"])
def test_greedy_in_one_pass_is_for_logits_that_nothing_changes(name: str) -> None:
    call = Call(b"s", 1, 1, Rule.GREEDY, 99, sampling=Sampling(temperature=0.0))
    match name:
        case "min_tokens":
            call = replace(call, min_tokens=1)
        case "logprobs":
            call = replace(call, sampling=replace(call.sampling, logprobs=0))
        case "rule":
            call = replace(call, rule=Rule.COUPLED)
        case _:
            call = replace(call, sampling=replace(call.sampling, **{name: CHANGES[name]}))
    assert largest(torch.zeros(1, 4, dtype=torch.float64), call, 4) is None
