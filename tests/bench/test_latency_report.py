"""What the records of a fixed run come to, and how it is shown."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tandem.bench import latency_report
from tandem.bench.latency_summary import RowSummary, bound, ratios_by_category, summarise
from tandem.bench.speedup import costs, in_turn, pipelined, survival

from .runs import PROBES, ROWS, run


@pytest.fixture
def rows() -> dict[str, RowSummary]:
    return {row.row: row for row in summarise(run())}


def test_speeds_are_of_whole_answers_in_pairs(rows: dict[str, RowSummary]) -> None:
    assert list(rows) == list(ROWS)
    assert rows["plain"].tokens_per_s == pytest.approx(8.0)
    assert rows["transformers"].ratio.median == 1.0
    assert rows["assisted"].ratio.median == 0.5
    assert rows["in-turn:2"].ratio.median == pytest.approx(2 / 0.75)
    to_plain = rows["adaptive"].to_plain
    assert to_plain is not None and to_plain.median == pytest.approx(1 / 0.75)
    assert all(rows[row].to_plain is None for row in ("transformers", "assisted", "plain", "vllm"))


def test_the_gain_is_the_product_of_its_factors(rows: dict[str, RowSummary]) -> None:
    """tokens per verify x (busy / plain's busy) / inflation: an identity, whatever was measured."""
    plain = rows["plain"]
    for name in ("plain", "in-turn:2", "pipelined:2", "adaptive"):
        row = rows[name]
        assert row.tokens_per_verify and row.busy and plain.busy and row.inflation
        assert row.gain == pytest.approx(row.tokens_per_verify * row.busy / plain.busy / row.inflation)
    drafted = rows["in-turn:2"]
    assert (drafted.acceptance, drafted.tokens_per_verify) == pytest.approx((4 / 6, 7 / 3))
    assert (drafted.busy, drafted.inflation, drafted.gain) == pytest.approx((6 / 7, 1.2, 7 / 0.42 * 0.1))
    assert drafted.num_fallbacks == 3


def test_predictions_and_bound_come_from_what_was_measured(rows: dict[str, RowSummary]) -> None:
    survived, cost, highest = survival((9, 3), 18, 2), costs(PROBES), bound(run())
    assert rows["in-turn:2"].predicted == pytest.approx(in_turn(survived, cost, 2))
    assert rows["pipelined:2"].predicted == pytest.approx(pipelined(survived, cost, 2, shared=False))
    assert rows["adaptive"].predicted is None and rows["plain"].predicted is None
    gain, share = rows["adaptive"].gain, rows["adaptive"].of_bound
    assert highest and gain and share == pytest.approx(gain / highest)


def test_forks_are_counted_and_near_ties_told_from_them(rows: dict[str, RowSummary]) -> None:
    found = {name: (row.num_forks, row.num_near_ties) for name, row in rows.items() if row.num_forks}
    assert found == {"vllm": (3, 3), "llamacpp-stored": (3, 0)}


def test_without_plain_or_probes_what_needs_them_is_left_out() -> None:
    found = run()
    found.rows = [row for row in ROWS if row != "plain"]
    assert all(row.gain is row.inflation is row.of_bound is row.to_plain is None for row in summarise(found))
    found = run()
    found.probes = []
    assert all(row.predicted is row.of_bound is None for row in summarise(found)) and bound(found) is None
    assert latency_report.markdown(found)


def test_categories_and_all_of_them() -> None:
    found = ratios_by_category(run(("qa", "rag", "qa")), "plain")
    assert list(found) == ["qa", "rag", "all"]
    assert found["rag"]["adaptive"].median == pytest.approx(1 / 0.75)


def test_tables_and_markdown_say_the_same() -> None:
    console = Console(width=160, record=True, file=StringIO())
    for table in latency_report.tables(run()):
        console.print(table)
    text, marked = console.export_text(), latency_report.markdown(run())
    for cell in ("2.67 [2.67, 2.67]", "3 (3)", "1.33 [1.33, 1.33]", "pipelined:2", "0.67"):
        assert cell in text and cell in marked
    body = [line for line in marked.splitlines() if line.startswith("|")]
    assert len(body) == 2 * (2 + len(ROWS)) + 2 * (2 + 3)
    assert "* machine: none" in marked and "Step 100.0 ms; in steps: draft step c 0.10" in marked


def test_a_picture(tmp_path: Path) -> None:
    latency_report.draw(run(), tmp_path / "latency.png")
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")
