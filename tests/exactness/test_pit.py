"""Layer 3 on a tiny transformers model, through the real engines."""

from __future__ import annotations

import pytest

from exactness import pit
from exactness.patches import rows
from exactness.tails import LawBroken

# 600 sequences of 64 tokens. A rule that is grossly wrong shows in a tenth of them; subtle ones (a bonus from the wrong
# row, which is drawn once in a few blocks) die by the kernel and by the loop, at a fraction of the cost.
NUM_SEQUENCES, FEW = 600, 50


@pytest.mark.timeout(1500)
def test_texts_of_a_real_model_follow_its_law() -> None:
    pit.check(NUM_SEQUENCES)


@pytest.mark.parametrize("patch", [rows.accept_all, rows.resample_from_p])
def test_wrong_rules_show_in_fewer_texts_than_that(patch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch)  # type: ignore[operator]
    with pytest.raises(LawBroken):
        pit.check(FEW)
