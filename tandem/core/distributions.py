"""From logits to the distribution that tokens are drawn from; the same for p (target) and q (draft).

In this order, each row seeing the speculated tokens before it: repetition penalty (prompt and output), presence and
frequency penalty (output only), logit bias; bans to -inf; temperature; top-k; top-p; min-p. Ties go to the lower id.
Everything is float64 and vectorised over rows.

    tokens   [ prompt ...... output .... | x1  x2  x3 ]
    rows                                   0   1   2   3      row i is the law of the token at position first + i
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.core.types import Call, Logprobs, Sampling

_CANDIDATES = 1024  # sorted first when looking for the edge of top-p


class UnusableLogits(ValueError):
    """Logits that give no distribution: NaN, +inf, or nothing finite."""

    def __init__(self) -> None:
        super().__init__("the model's logits hold NaN, +inf, or nothing finite")


class EmptySupport(ValueError):
    """Every token is banned."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Where rows of logits stand."""

    tokens: Sequence[int]  # the sequence up to the last row's position
    first: int  # position that row 0 is the law of
    num_prompt_tokens: int

    @property
    def num_rows(self) -> int:
        return len(self.tokens) - self.first + 1


def are_usable(logits: Tensor) -> Tensor:
    """Which rows give a distribution: bool [rows]. logits: [rows, V]."""
    return torch.isfinite(logits.amax(dim=-1))  # amax passes NaN on


def changes_logits(call: Call) -> bool:
    """Whether penalties, bias, or a minimum length may change logits before temperature."""
    sampling = call.sampling
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return penalties != (1.0, 0.0, 0.0) or bool(sampling.logit_bias) or call.min_tokens > 0


def score(logits: Tensor, call: Call, rows: Rows, num_pieces: int) -> Tensor:
    """Logits after penalties, bias, bans and temperature (greedy: 1). [rows, V] of any dtype -> float64 [rows, V].

    Ids from `num_pieces` on are padding and banned. Raises UnusableLogits, EmptySupport.
    """
    scores = logits.double()
    if not bool(are_usable(scores).all()):
        raise UnusableLogits
    scores = _ban(_penalise(scores, call.sampling, rows), call, rows, num_pieces)
    if not call.sampling.is_greedy:
        scores = scores / call.sampling.temperature
    if not bool(torch.isfinite(scores.amax(dim=-1)).all()):
        raise EmptySupport("every token is banned")
    return scores


def truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """The distribution: weights float64 [rows, V], not normalised, 0 outside top-k, top-p and min-p."""
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    if 0 < sampling.top_k < weights.shape[-1]:
        weights = keep_largest(weights, torch.full((len(weights),), sampling.top_k, device=weights.device))
    if sampling.top_p < 1:
        weights = keep_largest(weights, _nucleus_sizes(weights, sampling.top_p))
    if sampling.min_p > 0:
        weights = weights.where(weights >= sampling.min_p * weights.amax(dim=-1, keepdim=True), 0.0)
    return weights


def keep_largest(weights: Tensor, counts: Tensor) -> Tensor:
    """Zeroes all but the `counts[row]` largest weights of each row, lower ids first at a tie."""
    largest = weights.topk(int(counts.max()), dim=-1).values
    edge = largest.gather(-1, counts[:, None] - 1)
    above = weights > edge
    at_edge = weights == edge
    room = counts[:, None] - above.sum(dim=-1, keepdim=True)
    return weights.where(above | (at_edge & (at_edge.cumsum(dim=-1) <= room)), 0.0)


def log_probabilities(scores: Tensor, emitted: Sequence[int], num_top: int) -> tuple[Logprobs, ...]:
    """Of the tokens emitted at the first rows, and of the `num_top` most likely ones beside each."""
    logs = torch.log_softmax(scores[: len(emitted)], dim=-1)
    top, ids = logs.topk(min(num_top, logs.shape[-1]), dim=-1)
    return tuple(
        Logprobs(float(row[token]), tuple(zip(best.tolist(), values.tolist(), strict=True)))
        for row, token, best, values in zip(logs, emitted, ids, top, strict=True)
    )


def _nucleus_sizes(weights: Tensor, top_p: float) -> Tensor:
    """How many of the largest weights make up `top_p` of each row's mass; the one that crosses it included."""
    goal = top_p * weights.sum(dim=-1, keepdim=True)
    num_candidates = min(_CANDIDATES, weights.shape[-1])
    mass = weights.topk(num_candidates, dim=-1).values.cumsum(dim=-1)
    if bool((mass[:, -1:] < goal).any()):
        mass = weights.sort(dim=-1, descending=True).values.cumsum(dim=-1)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    return (before < goal).sum(dim=-1).clamp(max=weights.shape[-1])


def _penalise(scores: Tensor, sampling: Sampling, rows: Rows) -> Tensor:
    if sampling.repetition_penalty != 1:
        seen = _counts(scores, rows, 0) > 0
        penalty = sampling.repetition_penalty
        scores = scores.where(~seen, torch.where(scores > 0, scores / penalty, scores * penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = _counts(scores, rows, rows.num_prompt_tokens)
        scores = scores - sampling.presence_penalty * (counts > 0) - sampling.frequency_penalty * counts
    for token, bias in sampling.logit_bias.items():
        if token < scores.shape[-1]:
            scores = _with_column(scores, token, scores[:, token] + bias)
    return scores


def _counts(scores: Tensor, rows: Rows, start: int) -> Tensor:
    """float64 [rows, V]: how often each id occurs in tokens[start:] before the row's position."""
    width = scores.shape[-1]
    before = torch.tensor([token for token in rows.tokens[start : rows.first] if token < width], dtype=torch.int64)
    counts = torch.bincount(before, minlength=width).double().to(scores.device).repeat(rows.num_rows, 1)
    for offset, token in enumerate(rows.tokens[rows.first :], start=1):
        if token < width:
            counts[offset:, token] += 1
    return counts


def _ban(scores: Tensor, call: Call, rows: Rows, num_pieces: int) -> Tensor:
    banned = call.sampling.banned_ids
    ends = [token for token in call.end_token_ids if token < scores.shape[-1]]
    num_early = call.min_tokens - (rows.first - rows.num_prompt_tokens)  # rows in which no end may be drawn
    if not banned and not (ends and num_early > 0) and num_pieces >= scores.shape[-1]:
        return scores
    scores = scores.clone()
    scores[:, num_pieces:] = -torch.inf
    scores[:, [token for token in banned if token < scores.shape[-1]]] = -torch.inf
    if num_early > 0:
        scores[:num_early, ends] = -torch.inf
    return scores


def _with_column(scores: Tensor, column: int, values: Tensor) -> Tensor:
    scores = scores.clone()
    scores[:, column] = values
    return scores
