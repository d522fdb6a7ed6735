"""Wrong rules, each as a patch of a shipped function, with the check that must not let it pass.

Unlawful ones must fail a check of the law; lawful ones, which only waste work, must pass the law and fail the check of
efficiency. A registry, so that whoever invents a new way to be wrong adds it here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from exactness import algebra, efficiency, kernel, laws, loop, processing
from exactness.patches import decoding, drafting, noise, rows, storage
from tandem.core.types import Rule

Patch = Callable[[pytest.MonkeyPatch], None]

_STEPS = (300, 1_000, 3_000)
CHECKS: dict[str, Callable[[], None]] = {
    "algebra": algebra.check,
    "kernel": kernel.check,
    "kernel, n = 20,000": partial(kernel.check, 20_000),
    "kernel, n = 100,000": partial(kernel.check, 100_000),
    "processing": processing.check,
    "offsets": loop.check_offsets,
    "loop, in turn": partial(loop.check_in_steps, loop.IN_TURN, _STEPS),
    "loop, pipelined": partial(loop.check_in_steps, loop.PIPELINED, _STEPS),
    "loop, in turn, far draft": partial(loop.check_in_steps, loop.IN_TURN, _STEPS, laws.FAR),
    "loop, coupled": partial(loop.check_in_steps, loop.COUPLED, _STEPS),
    "loop, obeyed": partial(loop.check_in_steps, loop.PIPELINED, (500,)),
    "loop, coupled, obeyed": partial(loop.check_in_steps, loop.COUPLED, (500,)),
    "efficiency, rejection": partial(efficiency.check, Rule.REJECTION),
    "efficiency, coupled": partial(efficiency.check, Rule.COUPLED),
}


@dataclass(frozen=True)
class Mutant:
    name: str
    patch: Patch
    dies_by: str  # of CHECKS
    lawful: bool = False
    obeys: str = "loop, obeyed"  # the check of the law that a lawful one must pass


MUTANTS = [
    # the test
    Mutant("accept all", rows.accept_all, "kernel, n = 20,000"),
    Mutant("inverted ratio", rows.inverted_ratio, "kernel, n = 20,000"),
    Mutant("ratio 1.10 times too generous", partial(rows.generous, 1.10), "kernel, n = 100,000"),
    Mutant("ratio 1.05 times too generous", partial(rows.generous, 1.05), "kernel, n = 100,000"),
    Mutant("ratio 1.02 times too generous", partial(rows.generous, 1.02), "kernel"),
    Mutant("typical acceptance", rows.typical, "kernel, n = 20,000"),
    Mutant("ratio 1 + 1e-9 times too generous", partial(rows.generous, 1 + 1e-9), "algebra"),
    # the residual
    Mutant("resample from q", rows.resample_from_q, "kernel, n = 20,000"),
    Mutant("resample from p", rows.resample_from_p, "kernel, n = 20,000"),
    Mutant("residual |p - q|", rows.absolute_residual, "kernel, n = 20,000"),
    Mutant("argmax of the residual", rows.argmax_residual, "kernel, n = 20,000"),
    Mutant("p without the rejected token", rows.without_rejected, "kernel, n = 20,000"),
    # q
    Mutant("stale q", rows.stale_q, "kernel, n = 20,000"),
    Mutant("q of another temperature", rows.other_temperature, "kernel"),
    Mutant("drawn from top-k, q whole", rows.drawn_from_top_k, "kernel, n = 20,000"),
    Mutant("q in bfloat16, drawn from float32", rows.bfloat16_q, "algebra"),
    Mutant("q in float16, drawn from float32", rows.float16_q, "algebra"),
    # which tokens are sent
    Mutant("unlikely draft tokens dropped", drafting.drops_unlikely, "loop, in turn"),
    Mutant("best of two draft tokens by q", drafting.best_of_two, "loop, in turn"),
    Mutant("late whole blocks dropped, adaptive stop", drafting.late_blocks_dropped, "loop, in turn"),
    Mutant("block length from flags behind the rejection", drafting.length_from_flags, "loop, in turn, far draft"),
    # which rows and tokens are used
    Mutant("bonus from the wrong row", decoding.bonus_from_wrong_row, "loop, in turn"),
    Mutant("stale target row after roll-back", storage.stale_target_row, "loop, in turn"),
    Mutant("guess kept in place of the bonus", decoding.guess_for_bonus, "loop, pipelined"),
    Mutant("rejected tokens stay", decoding.rejected_stay, "loop, in turn"),
    Mutant("2 % of tokens twice", decoding.duplicates, "offsets"),
    Mutant("2 % of tokens lost", decoding.losses, "offsets"),
    Mutant("penalties blind to the block", rows.blind_penalties, "processing"),
    Mutant("min_tokens blind to the row", rows.blind_min_tokens, "processing"),
    Mutant("top-p without the token that crosses", rows.short_nucleus, "processing"),
    # noise
    Mutant("noise shared by positions", noise.shared_by_positions, "loop, in turn"),
    Mutant("noise shared by accept and residual", noise.shared_by_accept_and_residual, "kernel, n = 100,000"),
    Mutant("noise shared by draft and accept", noise.shared_by_draft_and_accept, "loop, in turn"),
    Mutant("noise shared by draft and residual", noise.shared_by_draft_and_residual, "kernel, n = 100,000"),
    Mutant("coupled noise shared by positions", noise.shared_by_positions, "loop, coupled"),
    # lawful, but slow
    Mutant("bonus with noise of its own", noise.bonus_alone, "efficiency, rejection", lawful=True),
    Mutant(
        "coupled draft with noise of its own", noise.draft_alone, "efficiency, coupled", True, "loop, coupled, obeyed"
    ),
    Mutant("token matching under rejection", rows.token_matching, "efficiency, rejection", lawful=True),
    Mutant("ahead blocks not used", decoding.ahead_unused, "efficiency, rejection", lawful=True),
    Mutant("ahead block kept behind another bonus", decoding.ahead_always_kept, "efficiency, rejection", lawful=True),
    Mutant("stale draft cache after roll-back", storage.stale_draft_row, "efficiency, rejection", lawful=True),
]
