"""Noise that is used for more than one decision, or for fewer than it could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest import MonkeyPatch
from torch import Tensor

from draft_worker import drafter
from tandem.core import rules
from tandem.core.noise import Purpose
from tandem.core.rules import Drawn
from tandem.core.types import Call, Verify


def shared_by_positions(patch: MonkeyPatch) -> None:
    """One number decides at all positions of a block, or of a text where it is coupled."""
    real = rules.noise_key
    patch.setattr(rules, "noise_key", lambda seed, number, position, purpose: real(seed, number, 0, purpose))


def shared_by_accept_and_residual(patch: MonkeyPatch) -> None:
    _share(patch, Purpose.RESIDUAL, Purpose.ACCEPT)


def shared_by_draft_and_accept(patch: MonkeyPatch) -> None:
    _share(patch, Purpose.ACCEPT, Purpose.DRAFT)


def shared_by_draft_and_residual(patch: MonkeyPatch) -> None:
    """The correction is drawn with the noise that made the refused token win."""
    _share(patch, Purpose.RESIDUAL, Purpose.DRAFT)


def bonus_alone(patch: MonkeyPatch) -> None:
    """The bonus does not know the guess's noise: it follows p all the same, and agrees by chance."""

    def plain(item: Verify, position: int) -> int:
        return rules.noise_key(item.call.seed, item.call.round, position, Purpose.PLAIN)

    patch.setattr(rules, "next_key", plain)


def draft_alone(patch: MonkeyPatch) -> None:
    """The draft draws with a seed of its own; the target's text stays the same."""
    real = drafter.draw

    def draw(call: Call, tokens: Sequence[int], num_prompt_tokens: int, logits: Tensor, num_pieces: int) -> Drawn:
        return real(replace(call, seed=call.seed ^ 1), tokens, num_prompt_tokens, logits, num_pieces)

    patch.setattr(drafter, "draw", draw)


def _share(patch: MonkeyPatch, purpose: Purpose, with_: Purpose) -> None:
    real = rules.noise_key

    def shared(seed: int, number: int, position: int, wanted: Purpose) -> int:
        return real(seed, number, position, with_ if wanted is purpose else wanted)

    patch.setattr(rules, "noise_key", shared)
