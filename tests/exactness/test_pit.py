"""Layer 3 on a tiny transformers model, through the real engines."""

from __future__ import annotations

import pytest

from exactness import pit
from exactness.patches import rows
from exactness.tails import LawBroken

# 100 sequences of 64 tokens: enough for rules that are grossly wrong, also in real logits, real caches and V = 256.
# Subtle ones (a bonus from the wrong row, which is drawn once in a few blocks) need 600 sequences or more, which take
# minutes: they die by the kernel and by the loop, at a fraction of the cost.
NUM_SEQUENCES = 100


def test_texts_of_a_real_model_follow_its_law() -> None:
    pit.check(NUM_SEQUENCES)


@pytest.mark.parametrize("patch", [rows.accept_all, rows.resample_from_p])
def test_wrong_rules_show_in_fewer_texts_than_that(patch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)  # type: ignore[operator]
    with pytest.raises(LawBroken):
        pit.check(NUM_SEQUENCES // 2)
