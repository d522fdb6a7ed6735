"""Tandem as a contender: over real gRPC, with tiny models."""

from __future__ import annotations

import asyncio

from harness.services import HOST, System, running_system
from harness.tiny import reference

from tandem.bench.contenders import PROBED, Tandem
from tandem.bench.latency import Answer
from tandem.bench.rows import options
from tandem.bench.speedup import costs
from tandem.client import Client

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
