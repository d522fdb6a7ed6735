"""`tandem up`: coordinator, draft workers and target workers on this machine, until Ctrl-C."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import typer

from tandem.cli.console import complain, err, out
from tandem.cli.launch import launched
from tandem.cli.local import available_cores, local_config
from tandem.cli.services import ConfigFile
from tandem.config import PROMPT_LOOKUP, Config
from tandem.supervisor import StopSignal

Target = Annotated[str | None, typer.Option(metavar="NAME", help="Model folder, hub name, GGUF file or package:NAME.")]
Draft = Annotated[str | None, typer.Option(metavar="NAME", help=f"The same, a folder of layers, or {PROMPT_LOOKUP}.")]
NoDraft = Annotated[bool, typer.Option("--no-draft", help="Decode without a draft worker.")]
Threads = Annotated[int | None, typer.Option(min=0, metavar="N", help="0: its share of the cores.")]
Ranks = Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks that share the target; above 1 on Ray.")]
Workers = Annotated[
    int, typer.Option(min=1, metavar="N", help="Workers of this kind; the further ones on any free port.")
]
Port = Annotated[int | None, typer.Option(min=0, max=65535, metavar="PORT", help="0: any free one.")]


def up(
    target: Target = None,
    draft: Draft = None,
    no_draft: NoDraft = False,
    config: ConfigFile = None,
    target_threads: Threads = None,
    draft_threads: Threads = None,
    tensor_parallel: Ranks = None,
    port: Port = None,
    target_port: Port = None,
    draft_port: Port = None,
    num_targets: Workers = 1,
    num_drafts: Workers = 1,
) -> None:
    """Start all three services here, and stop them together."""
    flags = {
        "model": _given(target=target, draft=draft),
        "coordinator": _given(port=port),
        "target": _given(port=target_port, threads=target_threads, tensor_parallel_size=tensor_parallel),
        "draft": _given(port=draft_port, threads=draft_threads),
    }
    settings = local_config(config, flags, not no_draft, available_cores(), num_targets, num_drafts)
    with StopSignal() as stop, suppress(KeyboardInterrupt):
        _serve(settings, stop)
    err.print("stopped")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _serve(settings: Config, stop: StopSignal) -> None:
    with launched(settings) as supervisor:
        stop.only_note()
        for service in supervisor.services:
            out.print(f"{service.name}: {service.address}", markup=False, soft_wrap=True)
        out.print("ready; Ctrl-C stops it")
        supervisor.watch(on_loss=complain, until=lambda: stop.seen)
