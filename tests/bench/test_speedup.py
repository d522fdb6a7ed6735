"""The formulas of speculation, against their own limits, a simulation of rounds, and costs that are known."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tandem.bench.speedup import (
    LONGEST,
    Costs,
    Probe,
    bound,
    costs,
    in_turn,
    pipelined,
    survival,
    tokens_per_verify,
)


def flat(draft: float, call: float = 0.0, growth: float = 0.0) -> Costs:
    return Costs(tuple(1 + growth * k for k in range(LONGEST + 1)), draft, call, 0.05)


def geometric(rate: float) -> list[float]:
    return [rate**i for i in range(1, LONGEST + 2)]


GRID = list(product((0.0, 0.3, 0.8, 1.0), (0.05, 0.3, 1.0), (0.0, 0.1), (0.0, 0.05)))


@pytest.mark.parametrize("shared", [False, True])
def test_no_way_to_run_gains_more_than_the_bound(shared: bool) -> None:
    for rate, draft, call, growth in GRID:
        survived, cost = geometric(rate), flat(draft, call, growth)
        highest = bound(survived, cost, shared)
        for k in range(1, LONGEST + 1):
            found = pipelined(survived, cost, k, shared)
            assert found <= highest * (1 + call) + 1e-9
            assert in_turn(survived, cost, k) <= bound(survived, cost, shared=False) * (1 + call) + 1e-9


def test_two_devices_never_bound_lower_than_shared_cores_unless_the_draft_is_as_slow_as_the_target() -> None:
    for rate, draft, call, growth in GRID:
        if (LONGEST + 1) * draft <= 1:
            survived, cost = geometric(rate), flat(draft, call, growth)
            assert bound(survived, cost, shared=False) >= bound(survived, cost, shared=True)


def test_a_useless_draft_is_bounded_by_plain_decoding_and_predicted_to_lose() -> None:
    survived, cost = geometric(0.0), flat(0.1)
    assert bound(survived, cost, shared=False) == bound(survived, cost, shared=True) == 1
    assert in_turn(survived, cost, 4) == pytest.approx(1 / 1.4)


def test_a_draft_that_is_right_and_hidden_gains_its_length() -> None:
    assert pipelined(geometric(1.0), flat(0.05), 4, shared=False) == pytest.approx(5, rel=1e-3)
    assert bound(geometric(1.0), flat(0.05), shared=False) == LONGEST + 1


def test_known_figures() -> None:
    """Known figures: alpha 0.8, c 0.1: in turn 2.47 (k 6) without calls, 2.32 (k 6) with r 0.1 paid once."""
    survived = geometric(0.8)
    assert in_turn(survived, flat(0.1), 6) == pytest.approx(2.47, abs=0.005)
    assert in_turn(survived, flat(0.1, call=0.05), 6) / 1.05 == pytest.approx(2.32, abs=0.005)


def test_pipelined_is_what_rounds_come_to_in_a_simulation() -> None:
    """Cold rounds draft first; warm ones follow a whole block whose guess of the bonus was right."""
    rate, cost, k, rng = 0.7, flat(0.2, call=0.05), 3, random.Random(0)
    tokens, time, warm = 0, 0.0, False
    for _ in range(200_000):
        time += max(cost.verify[k], (k + 1) * cost.draft) + cost.call if warm else cost.verify[k] + k * cost.draft + 0.1
        accepted = next((i for i in range(k) if rng.random() >= rate), k)
        tokens += accepted + 1
        warm = accepted == k and rng.random() < rate
    simulated = tokens / time * (1 + cost.call)
    assert pipelined(geometric(rate), cost, k, shared=False) == pytest.approx(simulated, rel=0.01)


def test_costs_are_found_again_in_probes_made_of_them() -> None:
    step_s, call_s, draft_s = 0.04, 0.002, 0.01
    verify_s = {0: 1.0, 1: 1.1, 2: 1.2, 4: 1.2, 8: 1.6}
    probes = [Probe(k, share * step_s + call_s, call_s + k * draft_s if k else 0.0) for k, share in verify_s.items()]
    found = costs(probes)
    assert (found.step_s, found.draft, found.call) == pytest.approx((step_s, 0.25, 0.05))
    assert found.verify == pytest.approx((1, 1.1, 1.2, 1.2, 1.2, 1.3, 1.4, 1.5, 1.6))


def test_costs_of_noisy_probes_stay_possible() -> None:
    """A line through noise may fall, or cross zero: neither a draft nor a call costs less than nothing."""
    falling = costs([Probe(0, 0.05, 0.0), Probe(1, 0.05, 0.03), Probe(8, 0.05, 0.01)])
    assert falling.draft == 0 and 0 < falling.call <= 1
    steep = costs([Probe(0, 0.05, 0.0), Probe(1, 0.05, 0.001), Probe(8, 0.05, 0.1)])
    assert steep.call == 0 and steep.draft > 0


def test_survival_counts_blocks_and_goes_on_at_the_last_rate() -> None:
    found = survival((60, 30, 15), num_drafted=300, num_tokens=3)
    assert found[:5] == pytest.approx([0.6, 0.3, 0.15, 0.075, 0.0375])
    assert len(found) == LONGEST + 1
    assert tokens_per_verify(found, 3) == pytest.approx(2.05)
    assert survival((), 0, 4) == survival((), 40, 4) == [0.0] * (LONGEST + 1)
    assert survival((7,), 20, 2)[:3] == [0.7, 0.0, 0.0]
    assert survival((5,), 10, 1)[:3] == [0.5, 0.25, 0.125]
