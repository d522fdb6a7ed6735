"""From logits to the distribution that tokens are drawn from; the same for p (target) and q (draft).

In this order, each row seeing the speculated tokens before it: repetition penalty (prompt and output), presence and
frequency penalty (output only), logit bias; bans to -inf; temperature; top-k; top-p; min-p. Ties go to the lower id.
Everything is float64 and vectorised over rows.

    tokens   [ prompt ...... output .... | x1  x2  x3 ]
    rows                                   0   1   2   3      row i is the law of the token at position first + i
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.core.types import Call, Logprobs, Sampling


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
    if changes_logits(call):
        scores = _penalise(scores, call.sampling, rows)
    scores = _ban(scores, call, rows, num_pieces)
    if not call.sampling.is_greedy:
        scores = scores / call.sampling.temperature
    if not bool(torch.isfinite(scores.amax(dim=-1)).all()):
        raise EmptySupport("every token is banned")
    return scores


def truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """The distribution: weights float64 [rows, V], not normalised, 0 outside top-k, top-p and min-p."""
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    if 0 < sampling.top_k < weights.shape[-1]:
        weights = _keep(weights, lambda row: top_ids(row, sampling.top_k))
    if sampling.top_p < 1:
        weights = _keep(weights, lambda row: nucleus_ids(row, sampling.top_p))
    if sampling.min_p > 0:
        weights = weights.where(weights >= sampling.min_p * weights.amax(dim=-1, keepdim=True), 0.0)
    return weights


def top_ids(row: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest of `row`, [V], in descending order, the lower id first at a tie: int64 [count].

    The vocabulary is long and `count` small. The row in parts, as many parts have a maximum of at least `floor` as are
    wanted, and so no number below it is among the largest: few are left to be sorted.
    """
    width = max(1, len(row) // (4 * count))
    parts = row[: len(row) // width * width].view(-1, width).amax(dim=-1)
    return _descending(row, parts.topk(count).values[-1])[:count]


def nucleus_ids(row: Tensor, top_p: float) -> Tensor:
    """Ids of the largest weights that make up `top_p` of the mass of `row`, [V], the one that crosses it included.

    Those below `floor` weigh, all together, half of what is left out at least: few are left to be sorted.
    """
    mass = row.sum()
    floor = (1 - top_p) * mass / (2 * len(row))
    ids = _descending(row, floor)
    return ids[: 1 + int((row[ids].cumsum(0)[:-1] < top_p * mass).sum())]


def _descending(row: Tensor, floor: Tensor) -> Tensor:
    """Ids of what is at least `floor`."""
    ids = (row >= floor).nonzero()[:, 0]
    return ids[row[ids].sort(descending=True, stable=True).indices]


def _keep(weights: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """Zeroes all but the chosen ids of each row."""
    kept = torch.zeros_like(weights)
    for row, into in zip(weights, kept, strict=True):
        ids = choose(row)
        into[ids] = row[ids]
    return kept


def log_probabilities(scores: Tensor, emitted: Sequence[int], num_top: int) -> tuple[Logprobs, ...]:
    """Of the tokens emitted at the first rows, and of the `num_top` most likely ones beside each."""
    logs = torch.log_softmax(scores[: len(emitted)], dim=-1)
    top, ids = logs.topk(min(num_top, logs.shape[-1]), dim=-1)
    return tuple(
        Logprobs(float(row[token]), tuple(zip(best.tolist(), values.tolist(), strict=True)))
        for row, token, best, values in zip(logs, emitted, ids, top, strict=True)
    )


def _penalise(scores: Tensor, sampling: Sampling, rows: Rows) -> Tensor:
    scores = scores.clone()
    if sampling.repetition_penalty != 1:
        ids, counts = _occurrences(rows, 0, scores)
        found, penalty = scores[:, ids], sampling.repetition_penalty
        scores[:, ids] = found.where(counts == 0, torch.where(found > 0, found / penalty, found * penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        ids, counts = _occurrences(rows, rows.num_prompt_tokens, scores)
        scores[:, ids] -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    for token, bias in sampling.logit_bias.items():
        if token < scores.shape[-1]:
            scores[:, token] += bias
    return scores


def _occurrences(rows: Rows, start: int, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Ids in tokens[start:], int64 [n], and how often each occurs there before each row's position, float64 [rows, n].

    Ids that `scores`, [rows, V], has no column for are left out.
    """
    ids, index = torch.tensor(rows.tokens[start:], dtype=torch.int64).unique(return_inverse=True)
    counts = torch.bincount(index[: rows.first - start], minlength=len(ids)).double().repeat(rows.num_rows, 1)
    for row, place in enumerate(index[rows.first - start :].tolist(), start=1):
        counts[row:, place] += 1
    known = ids < scores.shape[-1]
    return ids[known].to(scores.device), counts[:, known].to(scores.device)


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
