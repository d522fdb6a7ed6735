"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.client import Lookahead

Address = Annotated[str, typer.Option(metavar="HOST:PORT", help="The coordinator.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Most tokens to generate.")]
NumTokens = Annotated[int | None, typer.Option(min=0, max=16, help="Draft tokens per block; 0: no speculation.")]
LookaheadChoice = Annotated[Lookahead | None, typer.Option(help="Draft the next block during a verify, or after it.")]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="0: greedy.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Makes a sampled text repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="STR", help="End before this text; may be repeated.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Write result here.")]
