"""An orchestration bench as tables, JSON, Markdown and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.table import Table

from tandem.bench.orchestration import IN_TURN, MANY, PIPELINED, PLAIN, Cell, Costs, best
from tandem.bench.orchestration_load import Load, Streams

_WAYS = (PLAIN, IN_TURN, PIPELINED)
_TITLES = {
    "cells": "Achieved and predicted, best block length of each way",
    "streams": "Streams at once on one coordinator",
    "loads": "Overload",
}
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and the least that it should be."""

    name: str
    value: float
    at_least: float

    @property
    def is_met(self) -> bool:
        return self.value >= self.at_least


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured."""

    version: str
    costs: tuple[Costs, ...] = ()
    cells: tuple[Cell, ...] = ()
    streams: tuple[Streams, ...] = ()
    loads: tuple[Load, ...] = ()

    def goals(self) -> list[Goal]:
        """What the figures should come to, as far as they were measured."""
        found = [goal for costs in self.costs if costs.round_trip_s <= 0.0005 for goal in self._goals_at(costs)]
        found += [
            Goal(f"{cell.way}, {MANY} at once: achieved / predicted", cell.achieved, 0.85)
            for cell in self.cells
            if cell.num_clients == MANY
        ]
        if len(self.loads) == 2:
            peak, overload = (load.finished_tokens_per_s for load in self.loads)
            found.append(Goal("finished work under overload / at its peak", overload / peak, 0.9))
        return found

    def _goals_at(self, costs: Costs) -> list[Goal]:
        plain, in_turn, pipelined = (best(self.cells, way, costs.round_trip_s) for way in _WAYS)
        where = f"+ {costs.round_trip_s * 1000:g} ms"
        return [
            Goal(f"{where}: in turn, achieved / predicted", in_turn.achieved, 0.95),
            Goal(f"{where}: pipelined, achieved / predicted", pipelined.achieved, 0.95),
            Goal(f"{where}: pipelined / in turn", pipelined.tokens_per_s / in_turn.tokens_per_s, 1.08),
            Goal(f"{where}: pipelined / plain", pipelined.tokens_per_s / plain.tokens_per_s, 2.5),
        ]

    def shown(self) -> list[Cell]:
        """Of each way, number of clients and round trip the fastest block length."""
        keys = dict.fromkeys((cell.round_trip_s, cell.num_clients) for cell in self.cells)
        return [best(self.cells, way, *key) for key in keys for way in _WAYS]


def sections(report: Report) -> list[tuple[str, tuple[str, ...], Rows]]:
    """Title, heads and rows of each table that has rows."""
    found: list[tuple[str, tuple[str, ...], Rows]] = [
        (
            _TITLES["cells"],
            ("+ ms", "clients", "way", "k", "tokens/s", "predicted", "achieved", "alpha", "fallb."),
            [_cell_row(cell) for cell in report.shown()],
        ),
        (
            "Cost of one call beside the device",
            ("+ ms", "verify ms", "propose ms"),
            [(_ms(costs.round_trip_s), _ms(costs.verify_s), _ms(costs.propose_s)) for costs in report.costs],
        ),
        (
            _TITLES["streams"],
            ("way", "streams", "tokens/s", "CPU ms/token", "draft", "target", "gap ms", "p99", "added", "MiB"),
            [_streams_row(streams) for streams in report.streams],
        ),
        (
            _TITLES["loads"],
            ("clients", "finished", "refused", "tokens/s", "coordinator MiB", "growth", "draft", "target"),
            [_load_row(load) for load in report.loads],
        ),
        (
            "Goals",
            ("figure", "value", "goal", "met"),
            [(g.name, f"{g.value:.3f}", f"{g.at_least:g}", "yes" if g.is_met else "no") for g in report.goals()],
        ),
    ]
    return [section for section in found if section[2]]


def tables(report: Report) -> list[Table]:
    return [_table(*section) for section in sections(report)]


def markdown(report: Report) -> str:
    """The same tables, to be pasted."""
    return "\n\n".join(_markdown(*section) for section in sections(report)) + "\n"


def write_json(report: Report, path: Path) -> None:
    """All numbers, times in seconds, beside what follows from them."""
    goals = [asdict(goal) for goal in report.goals()]
    path.write_text(json.dumps({**asdict(report), "goals": goals}, indent=2) + "\n", encoding="utf-8")


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw(report: Report, path: Path) -> None:
    """Tokens per second of one client by added round trip: achieved as points, predicted as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for way in _WAYS:
        cells = [cell for cell in report.shown() if cell.way == way.name and cell.num_clients == 1]
        trips = [1000 * cell.round_trip_s for cell in cells]
        (line,) = axes.plot(trips, [cell.predicted_per_s for cell in cells], label=f"{way.name}, predicted")
        axes.plot(
            trips, [cell.tokens_per_s for cell in cells], "o", color=line.get_color(), label=f"{way.name}, achieved"
        )
    axes.set(xlabel="round trip added between coordinator and workers, ms", ylabel="tokens/s", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)


def _cell_row(cell: Cell) -> tuple[str, ...]:
    return (
        _ms(cell.round_trip_s),
        str(cell.num_clients),
        cell.way,
        str(cell.num_draft_tokens),
        f"{cell.tokens_per_s:.1f}",
        f"{cell.predicted_per_s:.1f}",
        f"{cell.achieved:.3f}",
        f"{cell.acceptance:.3f}" if cell.num_draft_tokens else "",
        str(cell.num_fallbacks),
    )


def _streams_row(streams: Streams) -> tuple[str, ...]:
    times = (streams.gap_p50_s, streams.gap_p99_s, streams.added_p99_s)
    return (
        streams.way,
        str(streams.num_streams),
        f"{streams.tokens_per_s:.0f}",
        *(_ms(seconds) for seconds in streams.cpu_per_token_s.values()),
        *(f"{1000 * seconds:.0f}" for seconds in times),
        _mib(streams.memory_bytes),
    )


def _load_row(load: Load) -> tuple[str, ...]:
    return (
        str(load.num_clients),
        str(load.num_finished),
        str(load.num_refused),
        f"{load.finished_tokens_per_s:.0f}",
        _mib(load.memory_bytes["coordinator"]),
        *(f"{100 * growth:+.1f} %" for growth in load.growth.values()),
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f}"


def _table(title: str, heads: Sequence[str], rows: Rows) -> Table:
    result = Table(*heads, title=title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        result.add_row(*row)
    return result


def _markdown(title: str, heads: Sequence[str], rows: Rows) -> str:
    lines = [f"**{title}**", "", _line(heads), _line(["---"] * len(heads)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
