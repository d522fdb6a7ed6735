"""The noise: fine enough, uniform, and independent between whatever two decisions there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from exactness.tails import require_law, require_uncorrelated, require_uniform
from tandem.core.noise import Purpose, noise_key, uniforms

N = 20_000
ONE_ID = torch.zeros(1, dtype=torch.int64)

# What a key is made of, and how a number's neighbour differs from it.
NEIGHBOURS: dict[str, Callable[[int], tuple[int, int]]] = {
    "positions": lambda i: (noise_key(7, 1, i, Purpose.DRAFT), noise_key(7, 1, i + 1, Purpose.DRAFT)),
    "rounds": lambda i: (noise_key(7, i, 9, Purpose.DRAFT), noise_key(7, i + 1, 9, Purpose.DRAFT)),
    "seeds": lambda i: (noise_key(i, 1, 9, Purpose.DRAFT), noise_key(i + 1, 1, 9, Purpose.DRAFT)),
    "high bits of seeds": lambda i: (
        noise_key(i << 44, 1, 9, Purpose.DRAFT),
        noise_key((i << 44) ^ (1 << 63), 1, 9, Purpose.DRAFT),
    ),
    "draft and accept": lambda i: (noise_key(7, 1, i, Purpose.DRAFT), noise_key(7, 1, i, Purpose.ACCEPT)),
    "accept and residual": lambda i: (noise_key(7, 1, i, Purpose.ACCEPT), noise_key(7, 1, i, Purpose.RESIDUAL)),
    "draft and residual": lambda i: (noise_key(7, 1, i, Purpose.DRAFT), noise_key(7, 1, i, Purpose.RESIDUAL)),
    "draft and plain": lambda i: (noise_key(7, 1, i, Purpose.DRAFT), noise_key(7, 1, i, Purpose.PLAIN)),
    "seed and round exchanged": lambda i: (noise_key(i, 5, 9, Purpose.DRAFT), noise_key(5, i, 9, Purpose.DRAFT)),
    "round and position exchanged": lambda i: (noise_key(1, i, 5, Purpose.DRAFT), noise_key(1, 5, i, Purpose.DRAFT)),
}


def first_numbers(keys: list[int]) -> Tensor:
    return uniforms(keys, ONE_ID)[:, 0]


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_are_uniform_and_independent(name: str) -> None:
    pairs = [NEIGHBOURS[name](index) for index in range(1_000, 1_000 + N)]
    left, right = first_numbers([a for a, _ in pairs]), first_numbers([b for _, b in pairs])
    _require_independent(left, right, name)


def test_token_ids_are_independent() -> None:
    numbers = uniforms(list(range(500)), torch.arange(200))
    _require_independent(numbers[:, :-1].reshape(-1), numbers[:, 1:].reshape(-1), "ids")
    _require_independent(numbers[:-1].reshape(-1), numbers[1:].reshape(-1), "keys that follow one another")


def test_numbers_are_odd_multiples_of_2_to_the_minus_53() -> None:
    """52 bits: u 2^53 is odd, so neither 0 nor 1 can come; and every one of the bits is a fair coin."""
    numbers = uniforms(list(range(200)), torch.arange(500)).reshape(-1)
    scaled = numbers * 2.0**53
    assert bool((scaled == scaled.floor()).all()) and bool((scaled % 2 == 1).all())
    assert float(numbers.min()) > 0.0 and float(numbers.max()) < 1.0
    bits = scaled.long() >> 1
    for bit in range(52):
        ones = int(((bits >> bit) & 1).sum())
        require_law(torch.tensor([len(bits) - ones, ones]), torch.tensor([0.5, 0.5]), f"bit {bit}", num_tests=52)


def test_no_two_decisions_share_a_key() -> None:
    parts = [(s, r, p, u) for s in (0, 1, 2**63, 2**64 - 1) for r in range(20) for p in range(50) for u in Purpose]
    assert len({noise_key(*part) for part in parts}) == len(parts)


def test_a_number_depends_on_its_key_and_id_alone() -> None:
    keys, ids = [3, 2**64 - 1, 12345678901234567], torch.tensor([5, 0, 49_151])
    together = uniforms(keys, ids)
    for row, key in enumerate(keys):
        for column, token in enumerate(ids):
            assert float(uniforms([key], token[None])[0, 0]) == float(together[row, column])


def _require_independent(left: Tensor, right: Tensor, what: str) -> None:
    """Both uniform; no correlation, neither straight nor of the tails; 8 x 8 cells equally full."""
    require_uniform(left, what)
    require_uniform(right, what)
    require_uncorrelated(left, right, what)
    require_uncorrelated((left - 0.5).abs(), (right - 0.5).abs(), what)
    cells = torch.bincount((left * 8).long() * 8 + (right * 8).long(), minlength=64)
    require_law(cells, torch.full((64,), 1 / 64), what)
