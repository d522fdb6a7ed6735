"""The commands under one name, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import typer

from tandem.bench.cli import bench
from tandem.cli import chat, config, demo, distill, generate, services, status, up
from tandem.cli.console import complain
from tandem.errors import TandemError

app = typer.Typer(
    help="Disaggregated speculative decoding: a draft service proposes, a target service verifies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (up.up, demo.demo, generate.generate, chat.chat, status.status, config.config, distill.distill):
    app.command()(command)
app.add_typer(bench, name="bench")
for service in (services.coordinator, services.draft_worker, services.target_worker):
    app.command(rich_help_panel="One service in this process")(service)


def main(args: Sequence[str] | None = None) -> None:
    """Runs one command line. Raises SystemExit: 0, 1 after an error that it has shown, 2 for wrong usage."""
    try:
        app(args)
    except (TandemError, grpc.RpcError, OSError) as error:
        complain(error)
        raise SystemExit(1) from None
