"""What a GPU bench found, as JSON and as tables."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
import transformers
from rich import box
from rich.console import Console
from rich.table import Table

from tandem.bench.gpu_rows import Curve
from tandem.bench.gpu_rules import Agreement
from tandem.bench.gpu_services import Answers
from tandem.bench.limits import Limits

_WIDTH = 110


@dataclass(slots=True)
class Report:
    """Grows part by part."""

    about: dict[str, str]
    agreements: list[Agreement] = field(default_factory=list)
    limits: Limits | None = None
    curves: list[Curve] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)

    def failures(self) -> list[str]:
        """What must not be: tokens that are not the CPU's, texts that a draft changes."""
        rules = [f"{each.rule}: {each.what} differ" for each in self.agreements if each.num_equal < each.num_cases]
        texts = [f"{each.rule}: a draft changes texts" for each in self.answers if each.num_same < each.num_prompts]
        return rules + texts


def about(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    versions = {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "device": f"{device}, {name}",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "command": " ".join(["tandem", *sys.argv[1:]]),
    }


def write(report: Report, folder: Path) -> None:
    """gpu.json with every single time, in seconds, and gpu.txt with the tables."""
    (folder / "gpu.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    with (folder / "gpu.txt").open("w", encoding="utf-8") as file:
        console = Console(file=file, width=_WIDTH)
        console.print("\n".join(f"{name}: {value}" for name, value in report.about.items()), soft_wrap=True)
        for table in tables(report):
            console.print(table)


def tables(report: Report) -> list[Table]:
    """Of the parts that are there."""
    return [*_rules(report.agreements), *_rows(report), *_services(report.answers)]


def _rules(agreements: Sequence[Agreement]) -> list[Table]:
    body = [(each.rule, each.what, str(each.num_cases), str(each.num_equal)) for each in agreements]
    return _table("Acceptance rules: results that are the CPU's", ("rule", "of", "cases", "equal"), body)


def _rows(report: Report) -> list[Table]:
    heads = ("context", "rows", "eager ms", "to 1", "of limit", "graph ms", "to 1", "of limit", "gain", "diff.")
    body = [
        (
            str(point.context),
            str(point.rows),
            f"{1e3 * median(point.eager_s):.3f}",
            f"{_ratio(point.eager_s, first.eager_s):.2f}",
            f"{point.limit_s / median(point.eager_s):.0%}",
            f"{1e3 * median(point.recorded_s):.3f}",
            f"{_ratio(point.recorded_s, first.recorded_s):.2f}",
            f"{point.limit_s / median(point.recorded_s):.0%}",
            f"{_ratio(point.eager_s, point.recorded_s):.2f}",
            f"{point.largest_difference:.1e}",
        )
        for curve in report.curves
        for first in curve.points[:1]
        for point in curve.points
    ]
    bandwidth = report.limits.bytes_per_s / 1e9 if report.limits else 0.0
    return _table(f"Rows of a verify, bfloat16; limit: reading at {bandwidth:.0f} GB/s", heads, body)


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    return median(times) / median(others)


def _services(answers: Sequence[Answers]) -> list[Table]:
    heads = ("rule", "prompts", "same text", "accepted", "fallbacks", "plain tokens/s", "drafted tokens/s")
    body = [
        (
            each.rule,
            str(each.num_prompts),
            str(each.num_same),
            f"{each.num_accepted / max(each.num_drafted, 1):.2f}",
            str(each.num_fallbacks),
            f"{each.plain_tokens_per_s:.1f}",
            f"{each.drafted_tokens_per_s:.1f}",
        )
        for each in answers
    ]
    return _table("Three services, float64", heads, body)


def _table(title: str, heads: Sequence[str], body: Sequence[Sequence[str]]) -> list[Table]:
    """None where there is nothing to show."""
    table = Table(*heads, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in body:
        table.add_row(*row)
    return [table] if body else []
