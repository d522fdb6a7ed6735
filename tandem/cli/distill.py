"""`tandem distill`: a draft for a target, without a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tandem.cli.console import err, out
from tandem.config import cache_folder
from tandem.errors import TandemError

Target = Annotated[str, typer.Option(metavar="NAME", help="Model folder, hub name, GGUF file or package:NAME.")]
Out = Annotated[
    Path, typer.Option("--out", file_okay=False, help="Where the draft, the report and unfinished work go.")
]
Minutes = Annotated[float, typer.Option(min=0, help="Time in all, over all runs; 0: nothing is learned.")]
Layers = Annotated[str | None, typer.Option(metavar="all|N|I,J", help="Layers of the target to start from.")]
Head = Annotated[int | None, typer.Option(min=1, metavar="ROWS", help="Tokens that the draft can say.")]
Start = Annotated[Path | None, typer.Option("--from", help="A draft to start from, in place of layers of the target.")]
Search = Annotated[bool | None, typer.Option("--search", help="Try depths and widths; go on with the most promising.")]
Rate = Annotated[float | None, typer.Option(min=0, help="Of learning, at its peak; less for a draft that has learned.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="Of all that is drawn by lot.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the work in --out.")]
Rows = Annotated[int | None, typer.Option(min=1, help="Texts written side by side; unset: 96, on a GPU 512.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Texts of one step of learning; unset: 12, on a GPU 64.")]
Threads = Annotated[int, typer.Option(min=0, help="torch threads; 0: all cores.")]
Device = Annotated[str, typer.Option(help="torch device.")]


def distill(
    target: Target,
    folder: Out,
    minutes: Minutes = 60.0,
    layers: Layers = None,
    head: Head = None,
    start: Start = None,
    search: Search = None,
    rate: Rate = None,
    seed: Seed = None,
    rows: Rows = None,
    batch: Batch = None,
    resume: Resume = False,
    threads: Threads = 0,
    device: Device = "cpu",
) -> None:
    """Make a draft from the target alone: it writes, and a few of its layers learn from that."""
    # torch is loaded here alone: other commands do without
    import torch

    from tandem.cli.local import available_cores
    from tandem.distill.run import distill as run
    from tandem.distill.settings import ON_GPU, claim
    from tandem.model.loading import check_device
    from tandem.model.resolve import resolve

    torch.set_num_threads(threads or available_cores())
    check_device(device)
    at_once = ON_GPU if device.startswith("cuda") and not resume else {}
    wishes = {
        "rows": rows or at_once.get("rows"),
        "batch": batch or at_once.get("batch"),
        "layers": layers,
        "head": head,
        "start": start and str(start),
        "search": search,
        "rate": rate,
        "seed": seed,
    }
    resolve(target, cache_folder())  # before anything is written: a mistyped name leaves no work behind
    settings = claim(folder, resume, target=target, **wishes)
    try:
        with Progress(*_COLUMNS, console=err) as progress:
            report = run(settings, folder, minutes, device=device, show=_Stages(progress).show)
    except KeyboardInterrupt:
        raise TandemError(f"stopped; the same command with --resume goes on in {folder}") from None
    out.print(report.table())


_COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TextColumn("{task.percentage:>3.0f}%"),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


class _Stages:
    """A bar for each stage, named by the first word of what is being done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, doing: str, share: float) -> None:
        stage = doing.partition(",")[0]
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(doing, total=1.0)
        self._progress.update(self._tasks[stage], description=doing, completed=share)
