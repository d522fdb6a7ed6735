"""`tandem coordinator|draft-worker|target-worker`: become that service, in the same process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings in YAML.")]
StopWithParent = Annotated[bool, typer.Option("--stop-with-parent", help="Leave when standard input ends.")]


def service_command(module: str, config: Path | None, stop_with_parent: bool = False) -> tuple[str, ...]:
    """The command line of a service. -P: a folder of the same name in the current directory must not shadow it."""
    settings = ("--config", str(config)) if config else ()
    return (sys.executable, "-P", "-m", module, *settings, *(("--stop-with-parent",) if stop_with_parent else ()))


def coordinator(config: ConfigFile = None, stop_with_parent: StopWithParent = False) -> None:
    """Take requests, run the rounds, stream tokens."""
    _become(service_command("coordinator", config, stop_with_parent))


def draft_worker(config: ConfigFile = None, stop_with_parent: StopWithParent = False) -> None:
    """Propose blocks."""
    _become(service_command("draft_worker", config, stop_with_parent))


def target_worker(config: ConfigFile = None, stop_with_parent: StopWithParent = False) -> None:
    """Verify blocks."""
    _become(service_command("target_worker", config, stop_with_parent))


def _become(command: tuple[str, ...]) -> NoReturn:
    os.execv(command[0], command)
