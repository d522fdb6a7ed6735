"""Which token comes out: the three acceptance rules.

p  the target's distribution at a position, q the draft's, u a uniform number, g Gumbel noise
accepted    the draft token becomes final
correction  the target's own token at the first rejected position
bonus       the target's own token after a fully accepted block; drawn with the noise of the ahead block's first
            token, so that the guess of a good draft equals it

greedy      the draft proposes argmax q; accepted iff it is argmax p
rejection   the draft draws x ~ q; accepted iff u q(x) < p(x), else a draw from norm(max(0, p - q))
            (Leviathan et al. 2022, algorithm 1; Chen et al. 2023, algorithm 2)
coupled     both draw argmax(log . + g) with the same g; accepted iff equal (Daliri, Musco, Suresh 2024, section 3)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.core.distributions import (
    Rows,
    UnusableLogits,
    are_usable,
    changes_logits,
    log_probabilities,
    score,
    top_ids,
    truncate,
)
from tandem.core.noise import Purpose, noise_key, race, race_among, uniforms
from tandem.core.types import Call, Rule, SparseDistribution, Verdict, Verify

DRAFT_SUPPORT = 64  # ids of q that a draft keeps under rejection, beside the request's own truncation


@dataclass(frozen=True, slots=True)
class Drawn:
    """One draft token and, under rejection, the distribution it was drawn from."""

    token: int
    q: tuple[SparseDistribution, ...] = ()


def judge(item: Verify, tokens: Sequence[int], logits: Tensor, num_pieces: int) -> Verdict:
    """The verdict on a block of k tokens, with which `tokens` ends. logits: [k + 1, V]; row i judges block token i.

    Raises UnusableLogits, EmptySupport, and ValueError for a block whose q cannot be one.
    """
    call, block = item.call, item.block
    if (own := largest(logits, call, num_pieces)) is not None:
        num_accepted = num_agreeing(block.tokens, own)
        return Verdict(num_accepted, own[num_accepted])
    rows = Rows(tokens, item.prefix.length, item.prefix.num_prompt_tokens)
    usable = are_usable(logits)
    scores = score(logits.where(usable[:, None], 0.0), call, rows, num_pieces)
    if call.rule is Rule.REJECTION:
        weights = truncate(scores, call.sampling)
        num_accepted, next_token = _judge_by_rejection(item, weights / weights.sum(dim=-1, keepdim=True), rows)
    else:
        own = _own_tokens(call, scores, rows)
        num_accepted = num_agreeing(block.tokens, own)
        next_token = own[num_accepted]
    if not bool(usable[: num_accepted + 1].all()):  # rows behind a rejected token are not reached, whatever they hold
        raise UnusableLogits
    emitted = (*block.tokens[:num_accepted], next_token)
    num_top = call.sampling.logprobs
    return Verdict(num_accepted, next_token, () if num_top is None else log_probabilities(scores, emitted, num_top))


def draw(call: Call, tokens: Sequence[int], num_prompt_tokens: int, logits: Tensor, num_pieces: int) -> Drawn:
    """The draft's token after `tokens`. logits: [1, V]. Raises UnusableLogits, EmptySupport."""
    if (own := largest(logits, call, num_pieces)) is not None:
        return Drawn(own[0])
    rows = Rows(tokens, len(tokens), num_prompt_tokens)
    scores = score(logits, call, rows, num_pieces)
    if call.rule is not Rule.REJECTION:
        return Drawn(_own_tokens(call, scores, rows)[0])
    q = sparse_q(truncate(scores, call.sampling)[0])
    key = noise_key(call.seed, call.round, rows.first, Purpose.DRAFT)
    return Drawn(_draw_from(q, key), (q,))


def largest(logits: Tensor, call: Call, num_pieces: int) -> list[int] | None:
    """The token of each row under greedy, in one pass; None where more must be looked at. logits: [rows, V].

    That is, where a parameter changes the logits, where log probabilities are wanted, or a row is not usable.
    """
    if call.rule is not Rule.GREEDY or call.sampling.logprobs is not None or changes_logits(call):
        return None
    pieces = logits if logits.shape[-1] == num_pieces else logits[:, :num_pieces]
    values, ids = pieces.max(dim=-1)  # of equals the first, as torch promises
    usable = all(map(math.isfinite, values.tolist())) and (pieces is logits or bool(are_usable(logits).all()))
    tokens: list[int] = ids.tolist()
    return tokens if usable else None


def sparse_q(weights: Tensor) -> SparseDistribution:
    """What a draft draws from and sends: the largest weights, rounded to float32 first, without those that became 0.

    weights: float64 [V].
    """
    ids = top_ids(weights, min(DRAFT_SUPPORT, len(weights)))
    rounded = weights[ids].float()
    kept = rounded > 0
    ids, order = ids[kept].sort()
    return SparseDistribution(tuple(ids.tolist()), tuple(rounded[kept][order].tolist()))


def dense_q(q: Sequence[SparseDistribution], like: Tensor) -> Tensor:
    """float64 [k, V], normalised: q_i = w_i / sum(w), 0 for ids that are not listed. like: [k, V]."""
    dense = torch.zeros_like(like)
    for row, sparse in zip(dense, q, strict=True):
        weights = torch.tensor(sparse.weights, dtype=torch.float64, device=like.device)
        row[torch.tensor(sparse.ids, dtype=torch.int64, device=like.device)] = weights / weights.sum()
    return dense


def accept_rows(p: Tensor, q: Tensor, tokens: Tensor, keys: Sequence[int]) -> Tensor:
    """Which draft tokens pass their test, each for itself: bool [k]. p, q: float64 [k, V]; tokens: int64 [k]."""
    u = uniforms(keys, torch.zeros(1, dtype=torch.int64, device=p.device))[:, 0]
    return is_accepted(u, p.gather(-1, tokens[:, None])[:, 0], q.gather(-1, tokens[:, None])[:, 0])


def is_accepted(u: Tensor, p_x: Tensor, q_x: Tensor) -> Tensor:
    """The test of rejection sampling, for draft tokens of probability p_x and q_x."""
    return u * q_x < p_x


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What a correction is drawn from, not normalised. p, q: float64 [rows, V], normalised."""
    return (p - q).clamp(min=0)


def num_agreeing(block: Sequence[int], own: Sequence[int]) -> int:
    """Draft tokens up to the first that differs from the target's own token at its position."""
    agreeing = (x == y for x, y in zip(block, own, strict=False))
    return next((index for index, equal in enumerate(agreeing) if not equal), len(block))


def _own_tokens(call: Call, scores: Tensor, rows: Rows) -> list[int]:
    """The target's (or the draft's) own token of each row under greedy and coupled."""
    if call.rule is Rule.GREEDY:
        return pick_greedy(scores)
    keys = [noise_key(call.seed, 0, rows.first + row, Purpose.COUPLED) for row in range(len(scores))]
    own: list[int] = race(truncate(scores, call.sampling), keys).tolist()
    return own


def pick_greedy(scores: Tensor) -> list[int]:
    """The highest score of each row, the lower id at a tie. scores: [rows, V]."""
    best = scores.amax(dim=-1, keepdim=True)
    ids: list[int] = (scores == best).int().argmax(dim=-1).tolist()
    return ids


def _judge_by_rejection(item: Verify, p: Tensor, rows: Rows) -> tuple[int, int]:
    """Draft tokens accepted, and the next token. p: float64 [k + 1, V], normalised."""
    call, block = item.call, item.block
    q = dense_q(block.q, p[:-1])
    tokens = torch.tensor(block.tokens, dtype=torch.int64, device=p.device)
    passed = accept_rows(p[:-1], q, tokens, _keys(call, rows.first, len(tokens), Purpose.ACCEPT))
    for row in torch.nonzero(~passed)[:, 0].tolist():
        left = residual(p[row : row + 1], q[row : row + 1])
        if bool(left.any()):  # no mass left: p = q, and what looks like a rejection is rounding
            return row, int(race(left, _keys(call, rows.first + row, 1, Purpose.RESIDUAL)))
    return len(tokens), int(race(p[-1:], [next_key(item, rows.first + len(tokens))]))


def _keys(call: Call, first: int, count: int, purpose: Purpose) -> list[int]:
    return [noise_key(call.seed, call.round, first + row, purpose) for row in range(count)]


def next_key(item: Verify, position: int) -> int:
    """The noise of a token that no draft token was tested for: the ahead block's first token's, if there is one."""
    if item.ahead_round is not None:
        return noise_key(item.call.seed, item.ahead_round, position, Purpose.DRAFT)
    return noise_key(item.call.seed, item.call.round, position, Purpose.PLAIN)


def _draw_from(q: SparseDistribution, key: int) -> int:
    weights = torch.tensor([q.weights], dtype=torch.float64)
    ids = torch.tensor(q.ids, dtype=torch.int64)
    return q.ids[int(race_among(weights / weights.sum(), ids, [key]))]
