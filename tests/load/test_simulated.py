"""Simulated devices do what their script says, and relays keep what they hold in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from tandem.bench.delay import relays
from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ModelError
from tandem.model.load import load_model
from tandem.model.runner import Runner
from tandem.model.simulated import Simulation, read_simulation, save_simulated
from tandem.model.tokenizer import load_tokenizer

V = 64
RIGHT = Simulation(step_s=0.0, vocab_size=V)


def test_a_draft_is_right_as_often_as_it_is_told_to_be_and_at_each_position_by_itself() -> None:
    tokens, positions = (
        torch.randint(V, (20_000,), generator=torch.Generator().manual_seed(0)),
        torch.arange(20_000) % 999,
    )
    agrees = RIGHT.named(tokens, positions) == Simulation(step_s=0.0, agreement=0.8, vocab_size=V).named(
        tokens, positions
    )
    after = agrees[1:][agrees[:-1]]
    assert agrees.double().mean() == pytest.approx(0.8, abs=0.01)
    assert after.double().mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_a_served_model_says_its_script_however_it_is_fed(tmp_path: Path, chunk: int) -> None:
    folder = save_simulated(tmp_path / "model", RIGHT)
    runner = Runner(load_model(folder, torch.float32, "cpu"), 8, 4)
    text = [5, *RIGHT.continuation([5], 30)]
    for start in range(0, 18, chunk):
        fed = tuple(text[start : start + chunk])
        logits = runner.forward(StepPlan((SequencePlan(fed, start, tuple(range(8)), len(fed)),)))
        assert logits.argmax(-1).tolist() == text[start + 1 : start + 1 + len(fed)]


def test_it_is_a_model_folder_like_any_other(tmp_path: Path) -> None:
    folder = save_simulated(tmp_path / "model", RIGHT)
    tokenizer = load_tokenizer(folder)
    assert read_simulation(folder) == RIGHT
    assert tokenizer.encode(tokenizer.decode([3, 40, 7])) == [3, 40, 7]
    assert load_model(folder, torch.float32, "cpu").num_pieces == V


def test_a_bad_simulation_is_refused_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tandem_simulation": {"steps": 3}}')
    with pytest.raises(ModelError, match=str(tmp_path)):
        read_simulation(tmp_path)


class Echo:
    """Sends back what comes, until the other side has ended."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while received := await reader.read(1 << 16):
            writer.write(received)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.ended.set()


@pytest.mark.parametrize("round_trip_s", [0.0, 0.004])
async def test_a_relay_delays_and_keeps_order(round_trip_s: float) -> None:
    """At least by what it was told; every byte comes back where it was."""
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    sent = bytes(range(256)) * 400
    with relays(1) as ways:
        ways.lead_to([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"])
        ways.add_round_trip(round_trip_s)
        host, _, port = ways.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        began_s = asyncio.get_running_loop().time()
        writer.write(b"x")
        await reader.readexactly(1)
        assert asyncio.get_running_loop().time() - began_s >= round_trip_s
        for start in range(0, len(sent), 1000):
            writer.write(sent[start : start + 1000])
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
        await writer.wait_closed()
        await echo.ended.wait()
    server.close()
    await server.wait_closed()
