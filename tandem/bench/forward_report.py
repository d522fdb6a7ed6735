"""A forward bench as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from tandem.bench.forward import Point, Report


def table(report: Report) -> Table:
    limits = report.limits
    title = (
        f"{report.model}, {report.dtype}, {report.kernels}, {report.threads} threads: "
        f"{limits.bytes_per_s / 1e9:.1f} GB/s, {limits.flops_per_s / 1e9:.0f} GFLOP/s; times in ms"
    )
    columns = ("context", "batch", "rows", "Tandem", "transformers", "ratio", "quartiles", "to 1", "limit")
    result = Table(*columns, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in result.columns:
        column.justify = "right"
    for _, group in groupby(report.points, key=lambda point: (point.context, point.batch)):
        for point in group:
            result.add_row(*_cells(report, point))
        result.add_section()
    return result


def write_json(report: Report, path: Path) -> None:
    """Every single time, in seconds, with machine and limits."""
    path.write_text(json.dumps(asdict(report), indent=1) + "\n")


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw(report: Report, path: Path) -> None:
    """A PNG: time over rows for each context, one pair of lines per batch. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    contexts = sorted({point.context for point in report.points})
    figure, axes = pyplot.subplots(1, len(contexts), figsize=(5 * len(contexts), 4), squeeze=False)
    for axis, context in zip(axes[0], contexts, strict=True):
        _draw_context(axis, [point for point in report.points if point.context == context])
        axis.set(title=f"{context} tokens of context", xlabel="rows per sequence", ylabel="ms", ylim=(0, None))
    axes[0][0].legend()
    figure.suptitle(f"{report.model}, {report.dtype}, {report.threads} threads", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_context(axis: Any, points: list[Point]) -> None:
    for index, (batch, group) in enumerate(groupby(points, key=lambda point: point.batch)):
        found, colour = list(group), f"C{index}"
        rows = [point.rows for point in found]
        own, theirs = ([1e3 * median(times) for times in pair] for pair in _times(found))
        axis.plot(rows, own, color=colour, marker="o", label=f"Tandem, batch {batch}")
        axis.plot(rows, theirs, color=colour, linestyle="--", label=f"transformers, batch {batch}")
        axis.plot(rows, [1e3 * point.limit_s for point in found], color=colour, linestyle=":", label="limit")


def _times(points: list[Point]) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    return [point.tandem_s for point in points], [point.transformers_s for point in points]


def _cells(report: Report, point: Point) -> list[str]:
    first, third = point.quartiles
    return [
        str(point.context),
        str(point.batch),
        str(point.rows),
        f"{1e3 * median(point.tandem_s):.1f}",
        f"{1e3 * median(point.transformers_s):.1f}",
        f"{point.ratio:.2f}",
        f"{first:.2f}..{third:.2f}",
        f"{report.growth(point):.2f}",
        f"{point.share_of_limit:.0%}",
    ]
