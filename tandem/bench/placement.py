"""Which cores and how many threads the parties of a latency bench get."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.bench.rows import Setup
from tandem.cli.launch import DRAFT, TARGET
from tandem.cli.local import split_threads
from tandem.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Placement:
    setup: Setup
    target_cores: tuple[int, ...]
    draft_cores: tuple[int, ...]
    draft_threads: int

    @property
    def target_threads(self) -> int:
        return len(self.target_cores)

    @property
    def num_cores(self) -> int:
        return len({*self.target_cores, *self.draft_cores})


def take_cores(num_cores: int) -> tuple[int, ...]:
    """Keeps this process, and those that it starts from now on, to `num_cores` cores; 0: all it has already.

    Raises ConfigError where there are fewer, or where cores cannot be chosen.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("cores can be chosen on Linux only")
    cores = sorted(os.sched_getaffinity(0))
    if num_cores > len(cores):
        raise ConfigError(f"cores: {num_cores} asked for, {len(cores)} there")
    chosen = cores[: num_cores or len(cores)]
    os.sched_setaffinity(0, chosen)
    return tuple(chosen)


def place(setup: Setup, cores: tuple[int, ...], draft_threads: int) -> Placement:
    """`draft_threads` 0: as many as the draft has cores. Raises ConfigError where two devices lack a core each."""
    if setup is Setup.SHARED:
        return Placement(setup, cores, cores, draft_threads or len(cores))
    if len(cores) < 2:
        raise ConfigError("two devices need two cores")
    num_target_cores, _ = split_threads(len(cores), with_draft_model=True)
    target, draft = cores[:num_target_cores], cores[num_target_cores:]
    return Placement(setup, target, draft, draft_threads or len(draft))


def pin(placement: Placement, pids: Mapping[str, int]) -> None:
    """Keeps the workers' threads to their cores; the coordinator stays on all of them."""
    for service, cores in ((TARGET, placement.target_cores), (DRAFT, placement.draft_cores)):
        if service in pids:
            for thread in Path(f"/proc/{pids[service]}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)
