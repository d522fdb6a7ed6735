"""The law written a second time, slowly: one row, one token id at a time, plain Python, straight from the contract.

Also the sampler that every coupled text must equal: one forward pass of transformers a token, no draft, no cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import torch

from tandem.core.noise import Purpose, noise_key, uniforms
from tandem.core.types import Sampling

Row = list[float]


def scored(
    logits: Sequence[float],
    sampling: Sampling,
    prompt: Sequence[int],
    output: Sequence[int],
    num_pieces: int,
    ends: Collection[int] = (),
    min_tokens: int = 0,
) -> Row:
    """Logits after penalties, bias, bans and temperature. `output` holds the speculated tokens too."""
    row = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            penalty = sampling.repetition_penalty
            logit = logit / penalty if logit > 0 else logit * penalty
        count = list(output).count(token)
        logit -= sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count
        bias = sampling.logit_bias.get(token, 0.0)
        is_banned = token >= num_pieces or bias <= -100 or (token in ends and len(output) < min_tokens)
        logit = -math.inf if is_banned else logit + bias
        row.append(logit if sampling.temperature <= 1e-5 else logit / sampling.temperature)
    return row


def truncated(scores: Sequence[float], sampling: Sampling) -> Row:
    """Probabilities after top-k, top-p and min-p, in this order; ties go to the lower id."""
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    kept, mass, total = [], 0.0, sum(weights[token] for token in order)
    for token in order:
        if sampling.top_p < 1 and mass >= sampling.top_p * total:
            break
        kept.append(token)  # the one that crosses the border is kept
        mass += weights[token]
    kept = [token for token in kept if weights[token] >= sampling.min_p * weights[kept[0]]]
    total, survivors = sum(weights[token] for token in kept), set(kept)
    return [weights[token] / total if token in survivors else 0.0 for token in range(len(weights))]


def race_winner(probabilities: Sequence[float], key: int) -> int:
    """argmin(E / p), by trying each id."""
    numbers = uniforms([key], torch.arange(len(probabilities)))[0].tolist()
    return min(
        (token for token, p in enumerate(probabilities) if p > 0),
        key=lambda token: -math.log1p(-numbers[token]) / probabilities[token],
    )


LogitsBehind = Callable[[Sequence[int]], Sequence[float]]


def sample(
    logits_behind: LogitsBehind,
    prompt: Sequence[int],
    num_tokens: int,
    sampling: Sampling,
    seed: int,
    num_pieces: int,
    ends: Collection[int] = (),
    min_tokens: int = 0,
) -> tuple[list[int], list[Row]]:
    """The text of a seed, up to and including its first end token, and the scores that each token was drawn from."""
    output: list[int] = []
    rows: list[Row] = []
    while len(output) < num_tokens and not (output and output[-1] in ends):
        position = len(prompt) + len(output)
        rows.append(scored(logits_behind([*prompt, *output]), sampling, prompt, output, num_pieces, ends, min_tokens))
        key = noise_key(seed, 0, position, Purpose.COUPLED)
        output.append(race_winner(truncated(rows[-1], sampling), key))
    return output, rows
