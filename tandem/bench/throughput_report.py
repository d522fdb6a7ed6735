"""A throughput bench as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.table import Table

from tandem.bench.throughput import Cell, Report

_COLUMNS = ("clients", "way", "tokens/s", "gain", "/verify", "first ms", "p99", "token ms", "p99")


def table(report: Report) -> Table:
    title = f"{report.model}, {report.max_tokens} tokens each"
    caption = (
        "gain: to one plain client; /verify: tokens; first: time to the first token; token: time of each other one"
    )
    result = Table(*_COLUMNS, title=title, caption=caption, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in result.columns:
        column.justify = "right"
    for cell in report.cells:
        result.add_row(*_row(report, cell))
    return result


def write_json(report: Report, path: Path) -> None:
    """All numbers, times in seconds."""
    path.write_text(json.dumps(asdict(report), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _row(report: Report, cell: Cell) -> tuple[str, ...]:
    gain = report.gain(cell)
    times = (cell.first_token_p50_s, cell.first_token_p99_s, cell.token_p50_s, cell.token_p99_s)
    return (
        str(cell.concurrency),
        cell.way,
        f"{cell.tokens_per_s:.1f}",
        f"{gain:.2f}" if gain else "",
        f"{cell.tokens_per_verify:.2f}",
        *(f"{1000 * seconds:.0f}" for seconds in times),
    )
