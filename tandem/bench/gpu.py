"""`tandem bench gpu`: all that wants a GPU, in one go of minutes, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.console import err, out
from tandem.errors import TandemError

if TYPE_CHECKING:
    from tandem.bench.gpu_report import Report
    from tandem.model.fixed_shapes import Record

PARTS = ("rules", "rows", "services")
_ALL_PARTS = ",".join(PARTS)


def gpu(
    device: Annotated[
        str, typer.Option(help="torch device; on a CPU a recorded step is replayed by running it.")
    ] = "cuda",
    parts: Annotated[str, typer.Option(metavar="PART,PART", help=f"Of {_ALL_PARTS}.")] = _ALL_PARTS,
    quick: Annotated[bool, typer.Option(help="Tiny models in place of one with 8 billion weights.")] = False,
    folder: Annotated[Path, typer.Option("--out", file_okay=False, help="Where gpu.json and gpu.txt go.")] = Path("."),
) -> None:
    """On a GPU: the acceptance rules, the cost of a verify's rows with and without CUDA graphs, the three services."""
    asked = parts.split(",")
    if unknown := set(asked) - set(PARTS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is none of {_ALL_PARTS}")
    # torch is loaded here alone: other commands do without
    from tandem.bench import gpu_report
    from tandem.model.loading import check_device

    check_device(device)
    folder.mkdir(parents=True, exist_ok=True)
    report = gpu_report.Report(gpu_report.about(device))
    for part, measure in zip(PARTS, (_rules, _rows, _services), strict=True):
        if part in asked:
            measure(report, device, quick)
            gpu_report.write(report, folder)  # what is there is kept, whatever becomes of the next part
    for table in gpu_report.tables(report):
        out.print(table)
    if failures := report.failures():
        raise TandemError("; ".join(failures))


def _rules(report: Report, device: str, quick: bool) -> None:
    from tandem.bench.gpu_rules import LARGE_VOCABULARY, check_rules

    with err.status("rules"):
        vocabulary = LARGE_VOCABULARY // 64 if quick else LARGE_VOCABULARY
        report.agreements.extend(check_rules(device, _recorder(device), vocabulary))


def _rows(report: Report, device: str, quick: bool) -> None:
    import torch

    from tandem.bench.gpu_rows import EIGHT_B, measure_rows
    from tandem.bench.limits import measure_limits
    from tandem.bench.random_models import TINY

    dtype = torch.bfloat16
    with err.status("limits") as status:
        report.limits = limits = measure_limits(dtype, device)
        status.update("rows")
        record = _recorder(device)
        if quick:
            report.curves.extend(measure_rows(TINY, dtype, device, record, limits, contexts=(20, 140), repeats=2))
        else:
            report.curves.extend(measure_rows(EIGHT_B, dtype, device, record, limits))
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # the services come next


def _services(report: Report, device: str, quick: bool) -> None:
    from tandem.bench.gpu_services import SMALL, ask_services
    from tandem.bench.random_models import TINY

    num_tokens = 24 if quick else 128
    report.answers.extend(ask_services(TINY if quick else SMALL, device, device.startswith("cuda"), num_tokens))


def _recorder(device: str) -> Record:
    from tandem.bench.gpu_rows import run_again
    from tandem.model.cuda_graphs import CudaGraphs

    return CudaGraphs(device) if device.startswith("cuda") else run_again
