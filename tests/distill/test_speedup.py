"""Acceptance counted from a text is what decoding it would have counted, and the report holds the formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.distill.acceptance import MAX_BLOCK, Acceptance, greedy_acceptance, sampled_acceptance, survival
from tandem.distill.report import Report
from tandem.distill.speedup import Costs, shared_cores, tokens_per_verify, two_devices

COSTS = Costs(0.1, tuple(1 + 0.05 * k for k in range(1, MAX_BLOCK + 1)))


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_greedy_rounds_are_those_of_decoding(hits: list[bool]) -> None:
    """Law: reached and accepted by position equal those of a loop that drafts MAX_BLOCK tokens a round."""
    reached, accepted, start = [0] * MAX_BLOCK, [0] * MAX_BLOCK, 0
    while start < len(hits):
        taken = 0
        while taken < MAX_BLOCK and start + taken < len(hits):
            reached[taken] += 1
            if not hits[start + taken]:
                break
            accepted[taken] += 1
            taken += 1
        start += taken + 1
    expected = tuple(yes / all_ if all_ else 0.0 for yes, all_ in zip(accepted, reached, strict=True))
    found = greedy_acceptance(torch.tensor([hits]), torch.ones(1, len(hits), dtype=torch.bool))
    assert found == expected


def test_what_does_not_count_ends_a_round() -> None:
    hits = torch.tensor([[True, True, True, False]])
    wanted = torch.tensor([[True, False, True, True]])
    assert greedy_acceptance(hits, wanted)[:2] == (1.0, 0.0)


def test_overlap_that_is_the_same_everywhere_is_the_acceptance_at_every_position() -> None:
    overlap = torch.full((3, 50), 0.6, dtype=torch.float64)
    found = sampled_acceptance(overlap, torch.ones(3, 50, dtype=torch.bool))
    assert found == pytest.approx([0.6] * MAX_BLOCK)


def test_later_positions_are_weighted_by_the_chance_to_come_there() -> None:
    overlap = torch.tensor([[0.5, 0.8, 0.2]], dtype=torch.float64)
    found = sampled_acceptance(overlap, torch.ones(1, 3, dtype=torch.bool))
    assert found[0] == pytest.approx((0.5 + 0.8 + 0.2) / 3)
    assert found[1] == pytest.approx((0.5 * 0.8 + 0.8 * 0.2) / (0.5 + 0.8))


@given(st.floats(0.05, 0.95), st.integers(1, MAX_BLOCK))
def test_tokens_per_verify_of_one_rate_are_the_papers(alpha: float, k: int) -> None:
    """Leviathan et al. 2022, equation 1: (1 - alpha^(k+1)) / (1 - alpha)."""
    assert tokens_per_verify((alpha,) * MAX_BLOCK, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))


def test_speed_is_tokens_over_time() -> None:
    by_position = (0.5, 0.4, 0.3)
    assert survival(by_position) == pytest.approx([0.5, 0.2, 0.06])
    assert shared_cores(by_position, COSTS, 2) == pytest.approx(1.7 / (1.1 + 0.2))
    assert two_devices(by_position, COSTS, 2) == pytest.approx(1.7 / 1.1)
    slow = Costs(0.9, COSTS.verify)
    assert two_devices(by_position, slow, 2) == pytest.approx(1.7 / 2.7)


def test_the_report_says_what_was_measured(tmp_path: Path) -> None:
    acceptance = Acceptance((0.5,) * MAX_BLOCK, (0.25,) * MAX_BLOCK, 90, 80)
    report = Report("target", (0, 3), 16, 12.0, 1000, acceptance, COSTS)
    report.save(tmp_path / "report.json")
    tree = json.loads((tmp_path / "report.json").read_text())
    assert tree["acceptance"]["greedy"] == [0.5] * MAX_BLOCK
    assert tree["acceptance"]["temperature_1"] == [0.25] * MAX_BLOCK
    assert tree["speedup"]["shared_cores"][2] == shared_cores(acceptance.greedy, COSTS, 3)
    assert tree["speedup"]["two_devices"][0] == two_devices(acceptance.greedy, COSTS, 1)
    assert report.table().row_count == MAX_BLOCK
