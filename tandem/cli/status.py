"""`tandem status`: what is served, by whom, and how well."""

from __future__ import annotations

from rich.table import Table

from tandem.cli.client import connect
from tandem.cli.console import out
from tandem.cli.options import Address
from tandem.v1 import coordinator_pb2 as pb


def status(address: Address = "127.0.0.1:7070") -> None:
    """Show the workers of a coordinator."""
    with connect(address) as client:
        found = client.status()
    out.print(status_table(found))
    for worker in found.workers:
        if worker.reason:
            out.print(f"{worker.role} {worker.address}: {worker.reason}", markup=False, soft_wrap=True)


def status_table(status: pb.StatusResponse) -> Table:
    title = f"{status.model}, tandem {status.version}: {status.num_running} running, {status.num_waiting} waiting"
    table = Table(title=title)
    for heading in ("role", "address", "ready", "model", "ranks", "sessions", "KV used"):
        table.add_column(heading, overflow="fold")
    for worker in status.workers:
        table.add_row(*_cells(worker))
    return table


def _cells(worker: pb.WorkerStatus) -> tuple[str, ...]:
    return (
        worker.role,
        worker.address,
        "yes" if worker.ready else "no",
        worker.model,
        str(worker.tensor_parallel_size),
        str(worker.num_sessions),
        f"{worker.kv_used:.0%}",
    )
