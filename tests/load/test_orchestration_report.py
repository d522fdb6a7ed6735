"""An orchestration bench as it is written down: the goals that figures are held against, and every form of a table."""

from __future__ import annotations

import json
from pathlib import Path

from tandem.bench.orchestration import MANY, Cell, Costs
from tandem.bench.orchestration_load import Load
from tandem.bench.orchestration_report import Report, draw, markdown, tables, write_json

SERVICES = ("coordinator", "draft", "target")


def cell(way: str, k: int, tokens_per_s: float, predicted: float, round_trip_s: float = 0.0, clients: int = 1) -> Cell:
    return Cell(way, k, round_trip_s, clients, tokens_per_s, predicted, 0.8, 0)


def load(num_clients: int, tokens_per_s: float) -> Load:
    return Load(num_clients, 10, 5, tokens_per_s, dict.fromkeys(SERVICES, 1e8), dict.fromkeys(SERVICES, 0.001))


REPORT = Report(
    "0.1",
    (Costs(0.0, 0.001, 0.002), Costs(0.005, 0.006, 0.007)),
    (
        cell("plain", 0, 40, 40),
        cell("in turn", 5, 90, 92),
        cell("in turn", 6, 88, 95),
        cell("pipelined", 5, 105, 108),
        cell("plain", 0, 30, 30, 0.005),
        cell("in turn", 7, 80, 82, 0.005),
        cell("pipelined", 6, 90, 92, 0.005),
        cell("plain", 0, 1500, 2000, clients=MANY),
        cell("in turn", 5, 2500, 2600, clients=MANY),
        cell("pipelined", 5, 2900, 3000, clients=MANY),
    ),
    loads=(load(64, 1000), load(640, 950)),
)


def test_goals_are_held_at_the_best_length_of_each_way_and_at_short_round_trips() -> None:
    values = {goal.name: (round(goal.value, 3), goal.is_met) for goal in REPORT.goals()}
    assert values == {
        "+ 0 ms: in turn, achieved / predicted": (0.978, True),
        "+ 0 ms: pipelined, achieved / predicted": (0.972, True),
        "+ 0 ms: pipelined / in turn": (1.167, True),
        "+ 0 ms: pipelined / plain": (2.625, True),
        "plain, 64 at once: achieved / predicted": (0.75, False),
        "in turn, 64 at once: achieved / predicted": (0.962, True),
        "pipelined, 64 at once: achieved / predicted": (0.967, True),
        "finished work under overload / at its peak": (0.95, True),
    }


def test_what_was_not_measured_has_no_table() -> None:
    assert [table.title for table in tables(REPORT)] == [
        "Achieved and predicted, best block length of each way",
        "Cost of one call beside the device",
        "Overload",
        "Goals",
    ]
    assert markdown(Report("0.1")).strip() == ""


def test_every_row_of_markdown_has_as_many_cells_as_its_head() -> None:
    for section in markdown(REPORT).split("**")[2::2]:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1


def test_files(tmp_path: Path) -> None:
    write_json(REPORT, tmp_path / "report.json")
    draw(REPORT, tmp_path / "report.png")
    written = json.loads((tmp_path / "report.json").read_text())
    assert len(written["cells"]) == len(REPORT.cells) and len(written["goals"]) == len(REPORT.goals())
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
