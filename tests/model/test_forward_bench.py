"""The forward bench measures two ways to the same logits, and what it writes can be read. No figure is tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from tandem.bench import forward_report, limits
from tandem.bench.forward import Point, Report, run
from tandem.cli.app import app

MakeFolder = Callable[..., Path]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAM_BYTES", 1 << 12)
    monkeypatch.setattr(limits, "MATRIX_SIZE", 8)


@pytest.fixture
def report(make_folder: MakeFolder) -> Report:
    threads = torch.get_num_threads()
    seen: list[Point] = []
    found = run(make_folder("llama"), threads=threads, quick=True, repeats=2, show=seen.append)
    assert tuple(seen) == found.points
    return found


def test_both_sides_compute_the_same(report: Report) -> None:
    assert [(point.context, point.batch, point.rows) for point in report.points] == [
        (64, batch, rows) for batch in (1, 4) for rows in (1, 2, 6)
    ]
    assert max(point.largest_difference for point in report.points) < 1e-5
    assert report.growth(report.points[0]) == 1
    assert report.kernels.startswith("lean-")


def test_a_table_and_every_single_time(report: Report, tmp_path: Path) -> None:
    console = Console(width=200, record=True, quiet=True)
    console.print(forward_report.table(report))
    forward_report.write_json(report, tmp_path / "forward.json")
    read = json.loads((tmp_path / "forward.json").read_text())
    assert [len(point["tandem_s"]) for point in read["points"]] == [2] * 6
    assert forward_report.table(report).row_count == 6


def test_a_picture_where_matplotlib_is_there(report: Report, tmp_path: Path) -> None:
    forward_report.draw(report, tmp_path / "forward.png")
    assert (tmp_path / "forward.png").read_bytes().startswith(b"\x89PNG")


def test_the_command(make_folder: MakeFolder, tmp_path: Path) -> None:
    threads = str(torch.get_num_threads())
    args = ["bench", "forward", str(make_folder("qwen2")), "--quick", "--repeats", "2", "--threads", threads]
    result = CliRunner().invoke(app, [*args, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "lean-" in result.stdout
    assert json.loads((tmp_path / "forward.json").read_text())["threads"] == int(threads)
