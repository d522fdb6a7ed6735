"""A thousand streams on one coordinator, over processes and gRPC, with simulated devices behind."""

from __future__ import annotations

import asyncio

import pytest

from tandem.bench.orchestration import PIPELINED
from tandem.bench.orchestration_load import measure_streams
from tandem.bench.orchestration_system import System, simulated_system
from tandem.client import AsyncClient
from tandem.model.simulated import Simulation

NUM_STREAMS = 1000
FAST = Simulation(step_s=0.002)
DRAFT = Simulation(step_s=0.0005, agreement=0.8)


async def all_read(system: System) -> tuple[int, int]:
    """Raises WrongText. Returns requests and worker sessions that are left."""
    async with AsyncClient(system.address) as client:
        await measure_streams(system, client, PIPELINED, NUM_STREAMS)
        status = await client.status()
        return status.num_running + status.num_waiting, sum(worker.num_sessions for worker in status.workers)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_get_their_texts_and_nothing_is_left() -> None:
    with simulated_system(FAST, DRAFT, {"max_running": NUM_STREAMS}) as system:
        assert asyncio.run(all_read(system)) == (0, 0)
