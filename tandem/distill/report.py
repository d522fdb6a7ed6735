"""What came of it, as JSON and as a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from tandem.distill.acceptance import Acceptance
from tandem.distill.shards import replace_file
from tandem.distill.speedup import Costs, shared_cores, tokens_per_verify, two_devices


@dataclass(frozen=True, slots=True)
class Report:
    """A finished draft, measured on text of the target that it did not learn from."""

    target: str
    layers: tuple[int, ...]  # of the target's, as the draft began
    head_rows: int
    minutes: float  # spent so far, writing and learning
    num_tokens: int  # written by the target
    acceptance: Acceptance
    costs: Costs

    def as_json(self) -> dict[str, Any]:
        greedy, blocks = self.acceptance.greedy, range(1, len(self.costs.verify) + 1)
        return {
            "target": self.target,
            "layers": list(self.layers),
            "head_rows": self.head_rows,
            "minutes": round(self.minutes, 2),
            "num_tokens": self.num_tokens,
            "acceptance": {
                "greedy": list(greedy),
                "temperature_1": list(self.acceptance.sampled),
                "num_greedy": self.acceptance.num_greedy,
                "num_temperature_1": self.acceptance.num_sampled,
            },
            "draft_step": self.costs.draft_step,
            "verify": list(self.costs.verify),
            "tokens_per_verify": [tokens_per_verify(greedy, k) for k in blocks],
            "speedup": {
                "shared_cores": [shared_cores(greedy, self.costs, k) for k in blocks],
                "two_devices": [two_devices(greedy, self.costs, k) for k in blocks],
            },
        }

    def save(self, path: Path) -> None:
        replace_file(path, lambda beside: beside.write_text(json.dumps(self.as_json(), indent=2) + "\n"))

    def table(self) -> Table:
        tree = self.as_json()
        title = (
            f"draft of {self.target}: {len(self.layers)} layers, head of {self.head_rows} rows, "
            f"a step costs {self.costs.draft_step:.3f} of the target's"
        )
        table = Table(title=title)
        headings = (
            "draft tokens",
            "accepted there",
            "at temperature 1",
            "tokens per verify",
            "verify",
            "shared cores",
            "two devices",
        )
        for heading in headings:
            table.add_column(heading, justify="right")
        columns = (
            tree["acceptance"]["greedy"],
            tree["acceptance"]["temperature_1"],
            tree["tokens_per_verify"],
            tree["verify"],
            tree["speedup"]["shared_cores"],
            tree["speedup"]["two_devices"],
        )
        for k, cells in enumerate(zip(*columns, strict=True), 1):
            table.add_row(str(k), *(f"{cell:.3f}" for cell in cells))
        return table
