"""The test, the residual, q, the processed distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pytest import MonkeyPatch
from torch import Tensor

from tandem.core import distributions, noise, rules
from tandem.core.distributions import Rows
from tandem.core.noise import Purpose
from tandem.core.types import Call, SparseDistribution, Verify


def accept_all(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "is_accepted", lambda u, p_x, q_x: torch.ones_like(u, dtype=torch.bool))


def inverted_ratio(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "is_accepted", lambda u, p_x, q_x: u * p_x < q_x)


def generous(factor: float, patch: MonkeyPatch) -> None:
    patch.setattr(rules, "is_accepted", lambda u, p_x, q_x: u * q_x < factor * p_x)


def typical(patch: MonkeyPatch) -> None:
    """Accepts whatever the target finds likely enough."""
    patch.setattr(rules, "is_accepted", lambda u, p_x, q_x: (u * q_x < p_x) | (p_x > 0.12))


def resample_from_q(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "residual", lambda p, q: q)


def resample_from_p(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "residual", lambda p, q: p)


def absolute_residual(patch: MonkeyPatch) -> None:
    patch.setattr(rules, "residual", lambda p, q: (p - q).abs())


def argmax_residual(patch: MonkeyPatch) -> None:
    real = rules.residual

    def one_hot(p: Tensor, q: Tensor) -> Tensor:
        left = real(p, q)
        return left.where(left == left.amax(dim=-1, keepdim=True), 0.0)

    patch.setattr(rules, "residual", one_hot)


def without_rejected(patch: MonkeyPatch) -> None:
    """Corrects from p, less the token that was refused."""
    real, tested = rules.accept_rows, list[Tensor]()

    def remembering(p: Tensor, q: Tensor, tokens: Tensor, keys: Sequence[int]) -> Tensor:
        tested[:] = [tokens]
        return real(p, q, tokens, keys)

    patch.setattr(rules, "accept_rows", remembering)
    patch.setattr(rules, "residual", lambda p, q: p.scatter(-1, tested[0][:, None], 0.0))


def stale_q(patch: MonkeyPatch) -> None:
    _read_q(patch, lambda q: q.roll(1, dims=-1))


def other_temperature(patch: MonkeyPatch) -> None:
    """Draws at temperature 1, reports q at 1.1."""
    patch.setattr(rules, "race_among", lambda w, ids, keys: noise.race_among(w**1.1, ids, keys))


def drawn_from_top_k(patch: MonkeyPatch) -> None:
    """Draws from the three likeliest, reports all."""

    def among_three(weights: Tensor, ids: Tensor, keys: Sequence[int]) -> Tensor:
        third = weights.topk(3, dim=-1).values[:, -1:]
        return noise.race_among(weights.where(weights >= third, 0.0), ids, keys)

    patch.setattr(rules, "race_among", among_three)


def bfloat16_q(patch: MonkeyPatch) -> None:
    _round_q(patch, torch.bfloat16)


def float16_q(patch: MonkeyPatch) -> None:
    _round_q(patch, torch.float16)


def blind_penalties(patch: MonkeyPatch) -> None:
    """All rows are penalised for the committed tokens alone."""
    real = distributions._occurrences

    def first_row_only(rows: Rows, start: int, scores: Tensor) -> tuple[Tensor, Tensor]:
        ids, counts = real(rows, start, scores)
        return ids, counts[:1].expand(len(scores), -1)

    patch.setattr(distributions, "_occurrences", first_row_only)


def blind_min_tokens(patch: MonkeyPatch) -> None:
    """All rows are as far from min_tokens as the first one."""
    real = distributions._ban

    def as_the_first(scores: Tensor, call: Call, rows: Rows, num_pieces: int) -> Tensor:
        alone = Rows(rows.tokens[: rows.first], rows.first, rows.num_prompt_tokens)
        return torch.cat([real(row[None], call, alone, num_pieces) for row in scores])

    patch.setattr(distributions, "_ban", as_the_first)


def short_nucleus(patch: MonkeyPatch) -> None:
    real = distributions.nucleus_ids
    patch.setattr(
        distributions, "nucleus_ids", lambda row, top_p: real(row, top_p)[: max(1, len(real(row, top_p)) - 1)]
    )


def token_matching(patch: MonkeyPatch) -> None:
    """Samples each row from p and accepts the draft's token iff it is the same: lawful, and seldom."""

    def match(item: Verify, p: Tensor, rows: Rows) -> tuple[int, int]:
        call = item.call
        positions = range(rows.first, rows.first + len(p))
        keys = [rules.noise_key(call.seed, call.round, position, Purpose.PLAIN) for position in positions]
        own = noise.race(p, keys).tolist()
        num_accepted = rules.num_agreeing(item.block.tokens, own)
        return num_accepted, own[num_accepted]

    patch.setattr(rules, "_judge_by_rejection", match)


def _read_q(patch: MonkeyPatch, change: object) -> None:
    real = rules.dense_q
    patch.setattr(rules, "dense_q", lambda q, like: change(real(q, like)))  # type: ignore[operator]


def _round_q(patch: MonkeyPatch, dtype: torch.dtype) -> None:
    real = rules.dense_q

    def rounded(q: Sequence[SparseDistribution], like: Tensor) -> Tensor:
        coarse = [
            SparseDistribution(sparse.ids, tuple(torch.tensor(sparse.weights).to(dtype).double().tolist()))
            for sparse in q
        ]
        return real(coarse, like)

    patch.setattr(rules, "dense_q", rounded)
