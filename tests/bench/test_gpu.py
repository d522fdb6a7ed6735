"""`tandem bench gpu` runs from end to end on a CPU, with tiny models, and notices what it is there to notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tandem.bench import gpu_rules, gpu_services, limits
from tandem.bench.gpu_report import Report
from tandem.bench.gpu_rows import ROWS, measure_rows
from tandem.bench.gpu_rules import Agreement, check_rules
from tandem.bench.gpu_services import Answers
from tandem.bench.random_models import TINY
from tandem.cli.app import app
from tandem.errors import ConfigError, TandemError

ARGS = ["bench", "gpu", "--device", "cpu", "--quick"]


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES", 1 << 12)
    monkeypatch.setattr(limits, "MATRIX_SIZE", 8)
    monkeypatch.setattr(gpu_rules, "SEEDS", (1,))
    monkeypatch.setattr(gpu_rules, "NUM_TOKENS", 12)
    monkeypatch.setattr(gpu_services, "PROMPTS", gpu_services.PROMPTS[:1])


def test_the_whole_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*ARGS, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {(each["rule"], each["what"]) for each in found["agreements"]} == {
        (rule, what) for rule in ("greedy", "rejection", "coupled") for what in ("texts", "verdicts")
    }
    assert all(0 < each["num_cases"] == each["num_equal"] for each in found["agreements"])
    assert [[point["rows"] for point in curve["points"]] for curve in found["curves"]] == [list(ROWS)] * 2
    assert [(each["rule"], each["num_same"]) for each in found["answers"]] == [("greedy", 1), ("coupled", 1)]
    assert all(each["num_accepted"] for each in found["answers"])
    text = (tmp_path / "gpu.txt").read_text()
    assert all(title in text for title in ("Acceptance rules", "Rows of a verify", "Three services"))


def test_chosen_parts_alone(tmp_path: Path) -> None:
    CliRunner().invoke(app, [*ARGS, "--parts", "rules", "--out", str(tmp_path)], catch_exceptions=False)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["agreements"]
    assert not (found["limits"] or found["curves"] or found["answers"])


def test_both_ways_to_run_rows_compute_the_same() -> None:
    def run_again(work: Callable[[], None]) -> Callable[[], None]:
        recorded.append(work)
        work()
        return work

    recorded: list[Callable[[], None]] = []
    bounds = limits.measure_limits(torch.float64, "cpu")
    [curve] = measure_rows(TINY, torch.float64, "cpu", run_again, bounds, contexts=(125,), repeats=2)
    assert len(recorded) == 6  # of 1, 2, 4, 6 and 8 rows; those of 3 and of 4 tokens end on two sides of a border
    assert max(point.largest_difference for point in curve.points) < 1e-9
    assert all(len(point.eager_s) == len(point.recorded_s) == 2 for point in curve.points)


def test_replays_that_do_nothing_are_noticed() -> None:
    """Family: a check of a device that would pass whatever the device did."""

    def record_once(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    texts = [each for each in check_rules("cpu", record_once, 512) if each.what == "texts"]
    assert all(each.num_equal <= each.num_cases // 2 for each in texts)  # those of the eager half


def test_what_must_not_be_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_rules, "check_rules", lambda *_: iter([Agreement("coupled", "texts", 4, 3)]))
    result = CliRunner().invoke(app, [*ARGS, "--parts", "rules", "--out", str(tmp_path)])
    assert isinstance(result.exception, TandemError)
    assert str(result.exception) == "coupled: texts differ"
    answers = Answers("greedy", 3, 2, 10, 5, 0, 1.0, 1.0)
    assert Report({}, answers=[answers]).failures() == ["greedy: a draft changes texts"]


def test_a_gpu_that_is_not_there_and_an_unknown_part_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "gpu", "--device", "cuda:99", "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, ConfigError)
    assert "device: cuda:99" in str(result.exception)
    assert CliRunner().invoke(app, [*ARGS, "--parts", "rules,rust", "--out", str(tmp_path / "out")]).exit_code == 2
    assert not (tmp_path / "out").exists()
