"""`tandem bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.bench import forward_report
from tandem.bench.forward import Point, run
from tandem.cli.console import err, out
from tandem.config import cache_folder
from tandem.model.loading import DTYPES
from tandem.model.resolve import resolve

bench = typer.Typer(help="Measure Tandem against what it is built on.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Keeps `forward` a command of its own while it is the only one."""


@bench.command()
def forward(
    model: Annotated[str, typer.Argument(help="A folder, a hub name, a GGUF file or package:NAME.")],
    quick: Annotated[bool, typer.Option(help="A few shapes instead of all.")] = False,
    threads: Annotated[int, typer.Option(min=0, help="torch threads; 0: all cores.")] = 0,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "float32",
    device: Annotated[str, typer.Option(help="torch device.")] = "cpu",
    repeats: Annotated[int, typer.Option(min=2, help="Turns per shape.")] = 9,
    folder: Annotated[Path, typer.Option("--out", file_okay=False, help="Where forward.json and .png go.")] = Path("."),
) -> None:
    """Forward passes of few rows, in turn with transformers' own, and against the machine's limits."""
    if dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype} is none of {', '.join(DTYPES)}")
    with err.status("loading") as status:

        def show(point: Point) -> None:
            status.update(f"context {point.context}, batch {point.batch}, rows {point.rows}: {point.ratio:.2f}")

        report = run(
            resolve(model, cache_folder()),
            dtype=DTYPES[dtype],
            device=device,
            threads=threads,
            quick=quick,
            repeats=repeats,
            show=show,
        )
    out.print(forward_report.table(report))
    folder.mkdir(parents=True, exist_ok=True)
    forward_report.write_json(report, folder / "forward.json")
    if forward_report.can_draw():
        forward_report.draw(report, folder / "forward.png")
    else:
        err.print("no picture: matplotlib is missing (pip install tandem-serving\\[bench])")
