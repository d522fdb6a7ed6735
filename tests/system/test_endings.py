"""Where an output ends, with blocks: end tokens, stop strings, max_tokens, the context's edge.

Families A1-A16, E60, E63, E68.
"""

from __future__ import annotations

from typing import Any

import pytest
from harness.carriers import Script
from harness.generation import Generated, Workers, as_bytes, generate, tiny_workers
from harness.tiny import CONTEXT_LENGTH, reference, tiny_model
from harness.virtual_time import run_virtual

from tandem.core.types import FinishReason, Propose

TEXT = tuple(b"hello world")
K = 4
WAYS = {"in turn": False, "pipelined": True}


def run(draft: str | None, prompt: tuple[int, ...] = TEXT, **options: Any) -> tuple[Generated, Workers]:
    async def request() -> tuple[Generated, Workers]:
        async with tiny_workers(draft).running() as workers:
            result = await generate(workers, prompt, **{"k": K, **options})
            await workers.settle()
            workers.assert_nothing_left()
            return result, workers

    return run_virtual(request())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("draft", ["target", "near"])
def test_an_end_token_ends_it_on_every_slot_of_a_block(draft: str, way: str) -> None:
    """Families A1, A2, H88: the bonus slot included; what the block held behind it is counted nowhere."""
    ref = reference(TEXT, 16)
    for slot in range(2 * K + 3):
        end = ref[slot]
        result, _ = run(draft, max_tokens=30, ends=[end], pipelined=WAYS[way])
        assert result.tokens == reference(TEXT, 30, [end])
        ending = result.commits[-1].ending
        assert ending is not None and ending.reason is FinishReason.END_TOKEN and ending.stop_token_id == end
        assert result.statistics.num_accepted_tokens <= len(result.tokens)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_max_tokens_is_met_exactly(max_tokens: int, way: str) -> None:
    """Family A7."""
    result, workers = run("target", max_tokens=max_tokens, pipelined=WAYS[way])
    assert result.tokens == reference(TEXT, max_tokens)
    ending = result.commits[-1].ending
    assert ending is not None and ending.reason is FinishReason.MAX_TOKENS
    assert not result.statistics.fallbacks, "the last token wants no draft"
    assert workers.draft is not None
    asked = [item.num_tokens + item.prefix.length for item in workers.draft.items if isinstance(item, Propose)]
    assert all(end <= len(TEXT) + max_tokens for end in asked), "no draft token that could not become final"


@pytest.mark.parametrize("way", WAYS)
def test_a_stop_string_ends_it_wherever_its_tokens_lie_in_blocks(way: str) -> None:
    """Families A3, A6, A11."""
    ref = reference(TEXT, 14)
    for end in range(2, 13):
        stop = as_bytes(ref[end - 2 : end])
        if "\ufffd" in stop:
            continue
        result, _ = run("target", max_tokens=30, stops=(stop,), pipelined=WAYS[way])
        assert as_bytes(result.tokens).count(stop) == 1 and as_bytes(result.tokens).endswith(stop)
        assert result.tokens == ref[: len(result.tokens)] and len(result.tokens) <= end
        assert as_bytes(result.tokens) == result.text + stop
        ending = result.commits[-1].ending
        assert ending is not None and ending.reason is FinishReason.STOP_STRING and ending.stop == stop


def test_an_end_token_that_the_target_does_not_say_ends_nothing() -> None:
    """Families A10, A16: the draft's opinion of where the end is does not count."""
    ref = reference(TEXT, 30)
    wrong = next(token for token in range(256) if token not in ref and (token - 1) % 256 in ref)

    async def request() -> Generated:
        async with tiny_workers("target").running() as workers:
            assert workers.draft is not None
            workers.draft.tamper = Script(256, [1, 0, 2])  # its wrong ids are right ones plus one
            return await generate(workers, TEXT, max_tokens=30, k=K, ends=[wrong])

    assert run_virtual(request()).tokens == ref


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("room", [1, 2, 7])
def test_the_last_positions_of_the_context_are_used(room: int, way: str) -> None:
    """Families A13, E68: a long prompt, up to one token below the context."""
    prompt = tuple((7 * index + 13) % 256 for index in range(CONTEXT_LENGTH - room))
    result, workers = run("near", prompt, max_tokens=room, pipelined=WAYS[way])
    assert result.tokens == reference(prompt, room)
    assert not workers.target.refusals and not result.statistics.fallbacks


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompt_len", [20, 31, 32, 33, 40])
def test_a_draft_with_a_shorter_context_stops_drafting_and_the_text_goes_on(prompt_len: int, way: str) -> None:
    """Family E63."""
    prompt = tuple((5 * index + 3) % 256 for index in range(prompt_len))
    context = tiny_model("short-context draft").context_length
    assert context == 32
    result, workers = run("short-context draft", prompt, max_tokens=60, pipelined=WAYS[way])
    assert result.tokens == reference(prompt, 60)
    assert workers.draft is not None and not workers.draft.refusals, "it was asked for more than it can"
    longest = context - WAYS[way]  # ahead, the first token drawn is but a guess
    assert (result.statistics.num_draft_tokens > 0) == (prompt_len <= longest)
    assert not result.statistics.fallbacks


@pytest.mark.parametrize("draft", ["padded draft", "narrow draft"])
def test_a_head_of_another_width_is_no_other_vocabulary(draft: str) -> None:
    """Family E60: ids that the tokenizer does not have are neither proposed nor emitted."""
    result, workers = run(draft, max_tokens=40)
    assert result.tokens == reference(TEXT, 40)
    assert not workers.target.refusals
    assert max(result.tokens) < 256
