"""Many random schedules, and a table of what they came to.

python -m tests.faults.campaign --schedules 3000 --seed 0 [--processes 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faults.history import Asked, Came, Ended, Event, Struck
from faults.invariants import violations
from faults.schedule import make_schedule, run


@dataclass(frozen=True)
class Outcome:
    """What one schedule came to."""

    seed: int
    violations: list[str]
    faults: list[tuple[str, float | None]]  # each with the seconds to recover; None: no request was running


@dataclass
class Row:
    """What one fault came to, over all schedules."""

    runs: int = 0
    failed: int = 0  # runs in schedules that broke an invariant
    recoveries: list[tuple[float, int]] = field(default_factory=list)  # seconds, and the schedule's seed

    @property
    def median_s(self) -> float:
        return statistics.median(seconds for seconds, _ in self.recoveries) if self.recoveries else 0.0

    @property
    def longest(self) -> tuple[float, int]:
        return max(self.recoveries, default=(0.0, 0))


def outcome_of(seed: int) -> Outcome:
    """Runs one schedule, in an event loop of its own."""
    events = asyncio.run(run(make_schedule(seed))).events
    struck = [event for event in events if isinstance(event, Struck)]
    return Outcome(seed, violations(events), [(each.fault, recovery_s(each, events)) for each in struck])


def recovery_s(struck: Struck, events: Sequence[Event]) -> float | None:
    """The longest that a request which ran when the fault began then waited for its next token, or for its end."""
    before, after = events[: events.index(struck)], events[events.index(struck) :]
    running = {event.request for event in before if isinstance(event, Asked)}
    running -= {event.request for event in before if isinstance(event, Ended)}
    nexts: dict[str, float] = {}
    for event in after:
        if isinstance(event, Came | Ended) and event.request in running:
            nexts.setdefault(event.request, event.at_s - struck.at_s)
    return max(nexts.values(), default=None)


def rows_of(outcomes: Iterable[Outcome]) -> dict[str, Row]:
    """The table, fault by fault."""
    rows: dict[str, Row] = defaultdict(Row)
    for outcome in outcomes:
        for fault, seconds in outcome.faults:
            row = rows[fault]
            row.runs += 1
            row.failed += bool(outcome.violations)
            row.recoveries += [] if seconds is None else [(seconds, outcome.seed)]
    return dict(sorted(rows.items()))


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    rows, num_failed = rows_of(outcomes), sum(bool(outcome.violations) for outcome in outcomes)
    lines = [
        "| fault | runs | failed | seconds to recover, median | longest | in schedule |",
        "|---|---|---|---|---|---|",
    ]
    for fault, row in rows.items():
        longest_s, seed = row.longest
        lines.append(f"| {fault} | {row.runs} | {row.failed} | {row.median_s:.2f} | {longest_s:.2f} | {seed} |")
    num_runs = sum(row.runs for row in rows.values())
    lines.append(f"| all, in {len(outcomes)} schedules | {num_runs} | {num_failed} schedules | | | |")
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome]) -> str:
    faults = {
        fault: {"runs": row.runs, "failed": row.failed, "median_s": row.median_s, "longest_s": row.longest[0]}
        for fault, row in rows_of(outcomes).items()
    }
    failures = [asdict(outcome) for outcome in outcomes if outcome.violations]
    return json.dumps({"schedules": len(outcomes), "faults": faults, "failures": failures}, indent=1)


def run_all(seeds: Sequence[int], num_processes: int) -> list[Outcome]:
    """Says at once which schedules break something."""
    outcomes = []
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn"), _begin) as processes:
        for outcome in processes.map(outcome_of, seeds, chunksize=4):
            outcomes.append(outcome)
            if outcome.violations:
                print(f"schedule {outcome.seed}: {outcome.violations}", flush=True)  # noqa: T201
    return outcomes


def _begin() -> None:
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.ERROR)  # lost workers are no news here


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow it")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the table here")
    arguments, began = parser.parse_args(), time.monotonic()
    outcomes = run_all(range(arguments.seed, arguments.seed + arguments.schedules), arguments.processes)
    print(as_markdown(outcomes))  # noqa: T201
    print(f"\n{time.monotonic() - began:.0f} s")  # noqa: T201
    if arguments.json:
        arguments.json.write_text(as_json(outcomes))
    raise SystemExit(any(outcome.violations for outcome in outcomes))


if __name__ == "__main__":
    main()
