"""Row 30: logits that hold no distribution fail the one request they belong to, and nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from harness.scripted import LogitsOf
from torch import Tensor

from families.desk import Answer, Ask, Desk, at_desk
from families.models import DRAFTS, TARGET, VOCAB
from families.plain import plain
from tandem.core.types import Rule
from tandem.errors import GenerationFault

POISONED = (0, 0, 0)  # the prompt of the request that fails
POISONS = {"NaN": math.nan, "infinite": math.inf, "nothing finite": -math.inf}


def poisoned(model: LogitsOf, poison: float, place: int, whole_row: bool = True) -> LogitsOf:
    """Like `model`, but after POISONED and `place` more tokens it says `poison`."""

    def logits(tokens: Sequence[int]) -> Tensor:
        row = model(tokens)
        if tuple(tokens[:3]) != POISONED or len(tokens) != 3 + place:
            return row
        row = row.clone()
        row[:] = torch.where(torch.arange(VOCAB) > (-1 if whole_row else 4), poison, row)
        return row

    return logits


@pytest.mark.parametrize("name", POISONS)
@pytest.mark.parametrize("draft", [None, "near"])
def test_a_poisoned_row_fails_its_own_request(way: Ask, draft: str | None, name: str) -> None:
    """In every slot of a block: INTERNAL after tokens that are all right; the others of the batch are unchanged."""
    good = [replace(way, prompt=prompt) for prompt in ((1, 2, 3), (4, 5, 6))]

    async def scenario(desk: Desk) -> None:
        answer = Answer()
        bad = asyncio.create_task(desk.ask(replace(way, prompt=POISONED), answer))
        others = await desk.ask_all(good)
        with pytest.raises(GenerationFault):
            await bad
        if way.rule is not Rule.REJECTION:
            assert [other.ids for other in others] == [plain(TARGET, ask) for ask in good]
            assert answer.ids == plain(TARGET, replace(way, prompt=POISONED))[: len(answer.ids)]
        assert len(answer.ids) <= place

    for place in (0, 2, 5):
        at_desk(scenario, poisoned(TARGET, POISONS[name], place), DRAFTS[draft] if draft else None)


def test_one_bad_number_in_a_row_is_enough(way: Ask) -> None:
    """A row that is only partly NaN or infinite fails too; one that is partly -inf does not."""

    async def scenario(desk: Desk) -> None:
        await desk.ask(replace(way, prompt=POISONED))

    for name, poison in POISONS.items():
        model = poisoned(TARGET, poison, 2, whole_row=False)
        if name == "nothing finite":
            at_desk(scenario, model, TARGET)
        else:
            with pytest.raises(GenerationFault):
                at_desk(scenario, model, TARGET)


@pytest.mark.parametrize("name", POISONS)
def test_a_poisoned_draft_fails_nothing(way: Ask, name: str) -> None:
    """The draft's NaN costs a draft: the text is the target's, and the cause is counted."""

    async def scenario(desk: Desk) -> dict[str, int]:
        answer = await desk.ask(replace(way, prompt=POISONED))
        assert way.rule is Rule.REJECTION or answer.ids == plain(TARGET, replace(way, prompt=POISONED))
        return answer.fallbacks

    causes = [at_desk(scenario, TARGET, poisoned(TARGET, POISONS[name], place)) for place in range(7)]
    assert {"refused_fault"} <= set().union(*causes) <= {"refused_fault", "refused_missing"}


def test_a_row_behind_a_rejected_token_is_not_reached(same_text_way: Ask) -> None:
    """What the target would say after tokens that nobody accepts is no part of the text, NaN or not."""
    expected = plain(TARGET, same_text_way)

    def target(tokens: Sequence[int]) -> Tensor:
        output = list(tokens[3:])
        is_text = output == expected[: len(output)]
        return TARGET(tokens) if is_text else torch.full((VOCAB,), math.nan, dtype=torch.float64)

    async def scenario(desk: Desk) -> None:
        assert (await desk.ask(same_text_way)).ids == expected

    at_desk(scenario, target, DRAFTS["bad"])
