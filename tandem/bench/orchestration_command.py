"""`tandem bench orchestration`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tandem.cli.console import err, out
from tandem.supervisor import StopSignal

if TYPE_CHECKING:
    from tandem.bench.orchestration import Effort
    from tandem.bench.orchestration_report import Report

PARTS = ("rounds", "streams", "overload")
_ALL_PARTS = ",".join(PARTS)
_MORE_STREAMS = 8  # slots beside those that the streams need
_OVERLOAD_S = {False: 30.0, True: 6.0}  # of each of two loads; quick or not


def orchestration(
    parts: Annotated[str, typer.Option(metavar="PART,PART", help=f"Of {_ALL_PARTS}.")] = _ALL_PARTS,
    quick: Annotated[
        bool, typer.Option(help="A first impression: few tokens, one block length, two round trips.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--out", file_okay=False, help="Where orchestration.json, .md and .png go.")
    ] = Path("."),
) -> None:
    """What the services cost beside the devices: real services, simulated devices, ways made longer."""
    asked = parts.split(",")
    if unknown := set(asked) - set(PARTS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is none of {_ALL_PARTS}")
    # torch is loaded with the simulated models: other commands do without
    from tandem.bench import orchestration_report

    with StopSignal():
        report = _measure(asked, quick)
    for table in orchestration_report.tables(report):
        out.print(table)
    _write(report, folder)


def _measure(parts: Sequence[str], quick: bool) -> Report:
    from tandem.bench import orchestration_report
    from tandem.bench.orchestration import Effort

    report = orchestration_report.Report(version("tandem-serving"))
    effort = Effort(num_requests=1, num_tokens=128, num_tokens_many=64, num_lengths=1) if quick else Effort()
    if "rounds" in parts:
        report = _rounds(report, effort, quick)
    if "streams" in parts:
        report = _streams(report)
    if "overload" in parts:
        report = _overload(report, _OVERLOAD_S[quick])
    return report


def _rounds(report: Report, effort: Effort, quick: bool) -> Report:
    from dataclasses import replace

    from tandem.bench.orchestration import ROUND_TRIPS_S, Cell, Costs, measure_many, measure_round_trip
    from tandem.bench.orchestration_system import System, simulated_system
    from tandem.client import AsyncClient

    async def measure(system: System, show: Callable[[str], None]) -> Report:
        costs: list[Costs] = []
        cells: list[Cell] = []
        async with AsyncClient(system.address) as client:
            for round_trip_s in ROUND_TRIPS_S[: 2 if quick else None]:
                cost, measured = await measure_round_trip(system, client, round_trip_s, effort, show)
                costs.append(cost)
                cells += measured
            cells += await measure_many(system, client, costs[0], effort, show)
        return replace(report, costs=tuple(costs), cells=tuple(cells))

    with simulated_system() as system, err.status("measuring") as status:
        return asyncio.run(measure(system, status.update))


def _streams(report: Report) -> Report:
    from dataclasses import replace

    from tandem.bench.orchestration_load import NUM_STREAMS, STREAM_WAYS, Streams, measure_streams
    from tandem.bench.orchestration_system import System, simulated_system
    from tandem.client import AsyncClient

    async def measure(system: System) -> list[Streams]:
        async with AsyncClient(system.address) as client:
            return [await measure_streams(system, client, way) for way in STREAM_WAYS]

    room = {"max_running": NUM_STREAMS + _MORE_STREAMS}
    with simulated_system(coordinator=room) as system, err.status(f"{NUM_STREAMS} streams"):
        return replace(report, streams=tuple(asyncio.run(measure(system))))


def _overload(report: Report, seconds: float) -> Report:
    from dataclasses import replace

    from tandem.bench.orchestration_load import measure_overload
    from tandem.bench.orchestration_system import simulated_system

    with simulated_system() as system, err.status("overload"):
        return replace(report, loads=asyncio.run(measure_overload(system, seconds)))


def _write(report: Report, folder: Path) -> None:
    from tandem.bench import orchestration_report

    folder.mkdir(parents=True, exist_ok=True)
    orchestration_report.write_json(report, folder / "orchestration.json")
    (folder / "orchestration.md").write_text(orchestration_report.markdown(report), encoding="utf-8")
    if report.cells and orchestration_report.can_draw():
        orchestration_report.draw(report, folder / "orchestration.png")
    elif report.cells:
        err.print("no picture: matplotlib is missing (pip install tandem-serving\\[bench])")
