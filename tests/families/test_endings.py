"""Section A: where an output ends, in every slot of the block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.carriers import Script

from families.desk import KS, Ask, Desk, at_desk
from families.models import DRAFTS, LETTERS, SYLLABLES, TARGET, VOCAB, near, never_twice, saying, soft, without
from families.oracle import CONTEXT_FULL, END_TOKEN, MAX_TOKENS, STOP_STRING, text_of
from tandem.errors import InvalidRequest

MODEL = never_twice(TARGET)


@pytest.mark.parametrize("draft", ["good", "near"])
def test_an_end_token_ends_in_every_slot(way: Ask, draft: str) -> None:
    """Rows 1, 2, 8, 14, 88: end-by-declaration, on draft tokens, corrections and the bonus; the seed replays."""

    async def scenario(desk: Desk) -> None:
        for k in KS:
            ask = replace(way, k=k, max_tokens=k + 4)
            whole = (await desk.ask(ask)).ids
            answers = [await desk.ask(replace(ask, ends=(token,))) for token in whole]
            assert [answer.ids for answer in answers] == [whole[: index + 1] for index in range(k + 4)]
            assert draft != "good" or {answer.last_slot for answer in answers} == set(range(k + 1))
            assert (await desk.ask(ask)).ids == whole

    at_desk(scenario, MODEL, never_twice(DRAFTS[draft]))


@pytest.mark.parametrize("draft", ["good", "near"])
def test_a_stop_string_ends_in_every_slot(way: Ask, draft: str) -> None:
    """Rows 3, 6, 11: of one to three letters, within a block and across blocks; ids, counts and text agree."""

    async def scenario(desk: Desk) -> None:
        for k in KS:
            ask = replace(way, k=k, max_tokens=k + 4)
            whole = (await desk.ask(ask)).ids
            for end in range(1, k + 5):
                start = max(0, end - 1 - end % 3)
                answer = await desk.ask(replace(ask, stops=("?", text_of(LETTERS, whole[start:end]))))
                assert answer.ids == whole[:end]
                assert answer.text == text_of(LETTERS, whole[:start])

    at_desk(scenario, MODEL, never_twice(DRAFTS[draft]))


def test_stop_strings_inside_pieces(way: Ask) -> None:
    """Row 6: a stop string that begins or ends inside a token; its tokens are listed whole, its text is not."""

    async def scenario(desk: Desk) -> None:
        for seed in range(2):
            ask = replace(way, seed=seed, prompt=(1, 2, seed), max_tokens=14)
            whole = await desk.ask(ask)
            for stops in ((" ha ha", "ab"), ("bab", "ba"), ("l",), ("oor", " w"), ("hahe", "lloo", "!")):
                answer = await desk.ask(replace(ask, stops=stops))
                assert answer.ids == whole.ids[: len(answer.ids)]
                assert not any(stop in answer.text for stop in stops)

    model = soft(5, len(SYLLABLES))
    at_desk(scenario, model, near(model, soft(6, len(SYLLABLES))), words=SYLLABLES)


@pytest.mark.parametrize("right", [(0,), (0, 2, 8), (8,)], ids=str)
def test_which_limit_comes_first(same_text_way: Ask, right: tuple[int, ...]) -> None:
    """Row 4: a stop string or end token before, with and behind the last token that max_tokens allows."""
    way = same_text_way

    async def scenario(desk: Desk) -> None:
        whole = (await desk.ask(replace(way, max_tokens=9))).ids
        for end in (3, 6):
            for max_tokens in (end - 1, end, end + 1):
                reached = max_tokens >= end
                ask = replace(way, max_tokens=max_tokens)
                stopped = await desk.ask(replace(ask, stops=(text_of(LETTERS, whole[end - 1 : end]),)))
                ended = await desk.ask(replace(ask, ends=(whole[end - 1],)))
                assert stopped.ids == ended.ids == whole[: min(end, max_tokens)]
                assert stopped.finish.reason == (STOP_STRING if reached else MAX_TOKENS)
                assert ended.finish.reason == (END_TOKEN if reached else MAX_TOKENS)

    model = saying([5, 9, 4, 11, 7, 13, 6, 15, 8, 10])
    at_desk(scenario, model, model, tamper=Script(VOCAB, right))


@pytest.mark.parametrize("draft", ["good", "bad"])
def test_max_tokens_is_exact(way: Ask, draft: str) -> None:
    """Row 7: any number of tokens, whatever the block; usage says the same."""

    async def scenario(desk: Desk) -> None:
        for k in KS:
            for max_tokens in {1, 2, 3, k, k + 1, k + 2, 9}:
                answer = await desk.ask(replace(way, k=k, max_tokens=max_tokens))
                assert len(answer.ids) == answer.finish.num_output_tokens == max_tokens

    at_desk(scenario, TARGET, DRAFTS[draft])


@pytest.mark.parametrize("draft_context", [64, 20], ids="draft context {}".format)
def test_the_edge_of_the_context(way: Ask, draft_context: int) -> None:
    """Row 13: prompts of context - 1, context and context + 1 tokens, and outputs that end at the edge."""
    context = 32

    async def scenario(desk: Desk) -> None:
        for k in (1, 4):
            for room in (1, 2, k + 1, k + 2, 12):
                ask = replace(way, k=k, prompt=(1,) * (context - room), max_tokens=None)
                answer = await desk.ask(ask)
                assert (len(answer.ids), answer.finish.reason) == (room, CONTEXT_FULL)
                assert (await desk.ask(replace(ask, max_tokens=room))).ids == answer.ids
                with pytest.raises(InvalidRequest, match="max_tokens"):
                    await desk.ask(replace(ask, max_tokens=room + 1))
            for length in (context, context + 1):
                with pytest.raises(InvalidRequest, match="input"):
                    await desk.ask(replace(way, k=k, prompt=(1,) * length, max_tokens=None))

    at_desk(scenario, TARGET, DRAFTS["good"], context=context, draft_context=draft_context)


def test_an_end_token_that_only_the_draft_says(way: Ask) -> None:
    """Row 10: proposed at every position, rejected at every position, the generation goes on."""
    end = 5

    async def scenario(desk: Desk) -> None:
        for k in KS:
            answer = await desk.ask(replace(way, k=k, ends=(end,), max_tokens=12))
            assert len(answer.ids) == 12 and end not in answer.ids
            assert answer.stats.num_draft_tokens > 0 == answer.stats.num_accepted_tokens

    at_desk(scenario, without(TARGET, end), saying([end]))


def test_the_draft_goes_on_behind_an_end_token(way: Ask) -> None:
    """Rows 10, 16: an end token in mid-block does not end the block: what follows it is drafted by the law too."""
    end, k = 5, 4

    async def scenario(desk: Desk) -> None:
        answer = await desk.ask(replace(way, k=k, max_tokens=k + 4, min_tokens=k + 4, ends=(end,)))
        assert len(answer.ids) == k + 4
        assert answer.stats.num_draft_tokens >= k

    at_desk(scenario, TARGET, saying([end]))


@pytest.mark.parametrize("draft", ["good", "bad"])
def test_the_draft_has_other_end_tokens(way: Ask, draft: str) -> None:
    """Row 16: only the target's end tokens end; those that the draft's own model declares mean nothing."""

    async def scenario(desk: Desk) -> list[list[int]]:
        return [(await desk.ask(replace(way, k=k, seed=k, max_tokens=12))).ids for k in KS]

    texts = [at_desk(scenario, TARGET, DRAFTS[draft], ends=(4,), draft_ends=theirs) for theirs in ((), (3, 9))]
    assert texts[0] == texts[1]


def test_ignore_eos_and_prompt_of_end_tokens(way: Ask) -> None:
    """Row 14: end tokens in the prompt end nothing, and none does where they are ignored."""

    async def scenario(desk: Desk) -> None:
        desk.model_ends = frozenset()  # for the oracle: the request ignores them
        message = replace(way, prompt=(4, 4, 4)).message()
        message.stopping.ignore_eos = True
        chunks = [chunk async for chunk in desk.service.generate(message.SerializeToString())]
        assert chunks[-1].finish.reason == MAX_TOKENS
        assert sum(len(chunk.token_ids) for chunk in chunks) == 16

    at_desk(scenario, saying([4]), saying([4]), ends=(4,))
