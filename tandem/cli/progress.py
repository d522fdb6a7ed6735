"""Shows what several parties are doing: a live line each on a terminal, a plain line per change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tandem.supervisor import READY, Report


@contextmanager
def phases(console: Console) -> Iterator[Report]:
    """Yields a function to call with a name and its present phase; "ready" is the last one."""
    if not console.is_terminal:
        yield _changes_only(lambda name, phase: console.print(f"{name}: {phase}", markup=False, soft_wrap=True))
        return
    columns = (
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[phase]}", style="dim", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield _changes_only(_Lines(progress).show)


class _Lines:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, name: str, phase: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=1, phase=phase)
        self._progress.update(self._tasks[name], phase=phase, completed=int(phase == READY))


def _changes_only(show: Report) -> Report:
    last: dict[str, str] = {}

    def report(name: str, phase: str) -> None:
        if last.get(name) != phase:
            last[name] = phase
            show(name, phase)

    return report


def to_one(report: Report, name: str) -> Callable[[str], None]:
    """`report` for a single party."""
    return lambda phase: report(name, phase)
