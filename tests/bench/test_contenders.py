"""Tandem as a contender: over real gRPC, with tiny models."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from harness.services import HOST, System, running_system
from harness.tiny import reference, tiny_folder

from tandem.bench.contenders import PROBED, Pair, Tandem, contenders
from tandem.bench.latency import Answer
from tandem.bench.placement import place
from tandem.bench.rows import Setup, options
from tandem.bench.speedup import costs
from tandem.client import Client

FAKE_VLLM = """
__version__ = "0"
class SamplingParams:
    def __init__(self, max_tokens, **_):
        self.max_tokens = max_tokens
class LLM:
    def __init__(self, model, speculative_config, **_):
        self.llm_engine, self.drafts, self.steps = self, speculative_config, []
    def add_request(self, name, prompt, wishes):
        self.steps = list(range(wishes.max_tokens))
    def has_unfinished_requests(self):
        return bool(self.steps)
    def step(self):
        self.token_ids = [*getattr(self, "token_ids", []), self.steps.pop(0)]
        self.outputs = [self]
        return [self]
"""
PROMPT = tuple(b"hello world")
ROWS = ("plain", "in-turn:3", "pipelined:3", "adaptive")


def answers(system: System) -> dict[str, Answer]:
    with Client(f"{HOST}:{system.port}") as client:
        tandem = Tandem(client, 24)
        return {row: tandem.ask(PROMPT, options(row)) for row in ROWS}


async def test_every_row_says_the_same_and_knows_what_it_did() -> None:
    async with running_system("near") as system:
        found = await asyncio.to_thread(answers, system)
    assert all(answer.token_ids == tuple(reference(PROMPT, 24)) for answer in found.values())
    plain, in_turn, pipelined = (found[row] for row in ROWS[:3])
    assert (plain.num_verifies, plain.num_first, plain.num_drafted) == (24, 1, 0)
    assert in_turn.num_drafted > 0 and in_turn.num_accepted_per_position
    assert pipelined.num_first == 1  # the prompt is verified without a draft
    assert sum(in_turn.num_accepted_per_position) == 24 - in_turn.num_verifies


async def test_the_prompt_is_no_part_of_what_rounds_took() -> None:
    async with running_system("near") as system:
        found = await asyncio.to_thread(answers, system)
    for answer in found.values():
        assert 0 < answer.verify_s <= answer.decode_s < answer.total_s
        assert answer.first_s < answer.total_s
        assert answer.verify_s + answer.draft_wait_s <= answer.decode_s


async def test_probes_are_of_every_length_and_can_be_made_costs_of() -> None:
    def probe() -> list[int]:
        with Client(f"{HOST}:{system.port}") as client:
            probes = Tandem(client, 24).probe(PROMPT)
        assert costs(probes).step_s > 0
        assert all(probe.verify_s > 0 and probe.draft_wait_s > 0 for probe in probes)
        return [probe.num_tokens for probe in probes]

    async with running_system("near") as system:
        assert tuple(await asyncio.to_thread(probe)) == PROBED


def test_a_peer_is_started_with_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Family: an option of one row that the engine reads for all; the engine's own code runs, vLLM is a double."""
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    target, draft = (str(tiny_folder(name)) for name in ("target", "near"))
    pair = Pair(target, draft, "float32", 5, 64, tmp_path)
    names = ("vllm", "vllm-draft:3")
    peers = {"vllm": Path(sys.executable)}
    with contenders(names, pair, place(Setup.SHARED, (0, 1), 0), peers, tmp_path) as ready:
        for name in names:
            assert ready.asks[name](PROMPT).token_ids == (0, 1, 2, 3, 4)
            assert ready.versions[name] == "vllm 0"
