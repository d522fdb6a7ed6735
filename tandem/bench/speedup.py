"""What speculation can gain at most, and what the two ways to run it should gain: pure functions of measured numbers.

Times are in steps: 1 is one forward pass of the target with one row.

    A_i    chance that the first i draft tokens are all accepted, A_0 = 1
    E(k)   1 + A_1 + ... + A_k, tokens per verify
    v(k)   a verify of k draft tokens, v(0) = 1
    c      a step of the draft
    r      what a call costs beyond the model's own work
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tandem.core import speedup
from tandem.core.speedup import tokens_per_verify

LONGEST = 8  # draft tokens up to which a bound looks
Survival = Sequence[float]  # A_1, A_2, ...


@dataclass(frozen=True, slots=True)
class Probe:
    """Rounds in turn with `num_tokens` draft tokens, 0: plain. Mean seconds, as the coordinator sees them."""

    num_tokens: int
    verify_s: float
    draft_wait_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """In steps."""

    verify: tuple[float, ...]  # v(0) to v(LONGEST)
    draft: float  # c
    call: float  # r
    step_s: float  # of one step, in seconds


def costs(probes: Sequence[Probe]) -> Costs:
    """Waits for the draft lie on the line r + k c; a verify call is taken to cost r as well.

    `probes`: one without draft tokens, and at least two others with different numbers of them.
    """
    drafted = sorted((probe for probe in probes if probe.num_tokens), key=lambda probe: probe.num_tokens)
    lengths = [probe.num_tokens for probe in drafted]
    slope, intercept = np.polyfit(lengths, [probe.draft_wait_s for probe in drafted], 1)
    plain_s = next(probe.verify_s for probe in probes if not probe.num_tokens)
    call_s = float(np.clip(intercept, 0.0, plain_s / 2))
    step_s = plain_s - call_s
    verify = np.interp(range(LONGEST + 1), [0, *lengths], [plain_s, *(probe.verify_s for probe in drafted)])
    return Costs(
        verify=tuple(float(seconds - call_s) / step_s for seconds in verify),
        draft=max(float(slope), 0.0) / step_s,
        call=call_s / step_s,
        step_s=step_s,
    )


def survival(num_accepted_per_position: Sequence[int], num_drafted: int, num_tokens: int) -> list[float]:
    """A_1 to A_LONGEST + 1 from blocks of `num_tokens`; behind the last tested position its rate is taken to go on."""
    num_blocks = num_drafted / num_tokens
    measured = [min(number / num_blocks, 1.0) for number in num_accepted_per_position] if num_blocks else []
    measured += [0.0] * (num_tokens - len(measured))
    rate = measured[-1] / (measured[-2] if num_tokens > 1 else 1.0) if measured[-1] else 0.0
    while len(measured) <= LONGEST:
        measured.append(measured[-1] * min(rate, 1.0))
    return measured


def bound(survived: Survival, cost: Costs, shared: bool) -> float:
    """The best speed-up over plain decoding without any cost of calls, over all lengths up to LONGEST, 0 included.

    On two devices the draft is hidden behind the verify, or the verify behind the draft; on `shared` cores both add up.
    """

    def gain(k: int) -> float:
        tokens, verify = tokens_per_verify(survived, k), cost.verify[k]
        return (
            speedup.in_turn(tokens, verify, k, cost.draft) if shared else tokens / speedup.hidden(verify, k, cost.draft)
        )

    return max(1.0, *(gain(k) for k in range(1, LONGEST + 1)))


def in_turn(survived: Survival, cost: Costs, num_tokens: int) -> float:
    """Predicted speed-up over plain decoding: E(k) / (v + k c + 2 r) against 1 / (1 + r)."""
    tokens = tokens_per_verify(survived, num_tokens)
    return (1 + cost.call) * speedup.in_turn(tokens, cost.verify[num_tokens], num_tokens, cost.draft, cost.call)


def pipelined(survived: Survival, cost: Costs, num_tokens: int, shared: bool) -> float:
    """Predicted speed-up over plain decoding with the next block drafted during a verify.

    A cold round drafts first; it is followed by rho warm ones on average, as long as the whole block and the guess of
    the bonus are right: h = A_(k+1), rho = h / (1 - h). On `shared` cores a verify takes as much longer as the block
    drafted beside it costs, whether that stands or not.
    """
    whole = min(survived[num_tokens], 0.999)
    verify, tokens = cost.verify[num_tokens], tokens_per_verify(survived, num_tokens)
    slowed = verify + (num_tokens + 1) * cost.draft
    warm = (slowed if shared else speedup.hidden(verify, num_tokens, cost.draft)) + cost.call
    cold = (slowed if shared else verify) + num_tokens * cost.draft + 2 * cost.call
    return (1 + cost.call) * speedup.renewed((tokens, cold), (tokens, warm), whole / (1 - whole))
