"""Layer 3 on a tiny transformers model, through the real engines."""

from __future__ import annotations

import pytest

from exactness import pit
from exactness.patches import decoding, rows
from exactness.tails import LawBroken

# The research behind this folder asks for 600 sequences of 64 tokens to see the subtle rules. Those die by the kernel
# and by the loop here; what is left to this test are real logits, real caches and V = 256, where a wrong row or a stale
# cache is gross: 120 sequences, 7,680 tokens.
NUM_SEQUENCES = 120


def test_texts_of_a_real_model_follow_its_law() -> None:
    pit.check(NUM_SEQUENCES)


@pytest.mark.parametrize("patch", [rows.accept_all, decoding.bonus_from_wrong_row])
def test_wrong_rules_show_in_fewer_texts_than_that(patch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)  # type: ignore[operator]
    with pytest.raises(LawBroken):
        pit.check(NUM_SEQUENCES // 4)
