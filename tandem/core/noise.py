"""Randomness as an argument: every random number is a pure function of what it is for.

A key is hashed from (seed, round, position, purpose); the number for a token id is the SplitMix64 output function
(Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") of key and id, read as 52 bits in (0, 1).
Nothing is ever drawn twice: neither between positions, nor between purposes, nor between two attempts at a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_AT_ONCE = 65_536  # weights that are raced together: more would not stay in the processor's cache


class Purpose(Enum):
    """What a number decides. The bonus is drawn with the noise of the ahead block's first token: purpose DRAFT."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    PLAIN = 4
    COUPLED = 5  # no round: draft and target share it, and a retry, another block or no block at all give the same


def noise_key(seed: int, round_number: int, position: int, purpose: Purpose) -> int:
    """The 64-bit key of all numbers for one decision."""
    key = 0
    for part in (seed, round_number, position, purpose.value):
        key = _mix((key + _GAMMA) ^ _mix(part + _GAMMA))
    return key


def uniforms(keys: Sequence[int], ids: Tensor) -> Tensor:
    """float64 [len(keys), n] in (0, 1): one number for each key and each of `ids` (int64 [n] or [len(keys), n])."""
    signed = torch.tensor([_signed(key) for key in keys], dtype=torch.int64, device=ids.device)
    bits = ids * _signed(_GAMMA) + (signed + _signed(2 * _GAMMA & _MASK))[:, None]
    bits ^= _shifted(bits, 30)
    bits *= _signed(_MIX_1)
    bits ^= _shifted(bits, 27)
    bits *= _signed(_MIX_2)
    bits ^= _shifted(bits, 31)
    return _shifted(bits, 12).double().add_(0.5).mul_(2.0**-52)


def race(weights: Tensor, keys: Sequence[int]) -> Tensor:
    """A draw from each row of `weights`: argmin(E / w) with E = -log(1 - u) exponential, which is argmax(log w + g)
    with g Gumbel. weights: float64 [rows, V], not normalised, 0 outside the support; result: int64 [rows].

    E is at least u, so only ids whose u / w does not exceed the score of the best of them can win: the logarithm is
    taken for those alone.
    """
    num_rows = max(1, _AT_ONCE // weights.shape[-1])
    parts = [
        _race(weights[first : first + num_rows], keys[first : first + num_rows])
        for first in range(0, len(weights), num_rows)
    ]
    return torch.cat(parts)


def _race(weights: Tensor, keys: Sequence[int]) -> Tensor:
    if len(weights) == 1:
        support = weights[0].nonzero()[:, 0]
        if 4 * len(support) < weights.shape[-1]:
            return support[race_among(weights[:, support], support, keys)]
    return race_among(weights, torch.arange(weights.shape[-1], device=weights.device), keys)


def race_among(weights: Tensor, ids: Tensor, keys: Sequence[int]) -> Tensor:
    """Index of the winner in each row; column j of `weights` stands for `ids[..., j]`."""
    numbers = uniforms(keys, ids)
    bound = numbers / weights  # inf at weight 0: u is never 0
    best = bound.argmin(dim=-1, keepdim=True)
    limit = _exponential(numbers.gather(-1, best)) / weights.gather(-1, best)
    rows, columns = torch.nonzero(bound <= limit, as_tuple=True)
    scores = _exponential(numbers[rows, columns]) / weights[rows, columns]
    order = scores.argsort(stable=True)
    order = order[rows[order].argsort(stable=True)]  # by row, then by score, then by column
    return columns[order[torch.searchsorted(rows, torch.arange(len(weights), device=rows.device))]]


def _exponential(numbers: Tensor) -> Tensor:
    return -torch.log1p(-numbers)


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Logical shift right of int64."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)
