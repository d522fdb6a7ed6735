"""A step is one forward pass over all ready rows of all sessions; its answers leave in one message per stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

import pytest
from harness import scripted
from harness.scripted import ScriptedModel, greedy, whole_history
from harness.virtual_time import run_virtual

from tandem.core.prefix import TokenList, state_prefix
from tandem.core.types import Block, Call, Drafted, Item, Propose, Reply, Rule, Sampling, Verdict, Verify
from tandem.model.engine import Engine
from tandem.rpc.codec import DraftCodec, TargetCodec
from tandem.rpc.worker_service import Streams

V = 6
TRUTH = whole_history(V, 1)
GREEDY = Sampling(temperature=0.0)
NUM_SESSIONS = 16


class Bench:
    """An engine, the model that counts its forwards, and what was answered."""

    def __init__(self, make: Any = scripted.target_engine, max_step_tokens: int = 512) -> None:
        self.model = ScriptedModel(TRUTH)
        self.engine: Engine = make(self.model, V, lambda: 0, max_step_tokens=max_step_tokens)
        self.texts: dict[int, list[int]] = {}
        self.numbers: Counter[int] = Counter()

    def receive(self, items: Sequence[Item], stream: Hashable = "s") -> None:
        self.engine.receive(stream, items)

    def verify(self, index: int, text: Sequence[int], block: Sequence[int] = ()) -> Verify:
        return Verify(self.call(index), state_prefix(TokenList(text), (), 1, 0), Block(tuple(block)))

    def propose(self, index: int, text: Sequence[int], num_tokens: int) -> Propose:
        return Propose(self.call(index), state_prefix(TokenList(text), (), 1, 0), num_tokens)

    def call(self, index: int) -> Call:
        self.numbers[index] += 1
        number = self.numbers[index]
        return Call(index.to_bytes(16, "big"), number, number, Rule.GREEDY, 500, sampling=GREEDY)

    def step(self) -> list[Reply]:
        return [reply for _, reply in self.engine.step()]

    @property
    def rows(self) -> list[list[int]]:
        """Rows of each sequence of each forward so far."""
        return [[len(sequence.tokens) for sequence in plan.sequences] for plan in self.model.plans]


def prompt(index: int, length: int) -> list[int]:
    """No two of them share a block."""
    digits = [index % V, index // V % V, index // V**2 % V]
    return [*digits, *((index + position * 5) % V for position in range(length))][:length]


def own_token(reply: Reply) -> int:
    assert isinstance(reply.body, Verdict)
    return reply.body.next_token


def test_sixteen_ready_rows_make_one_forward() -> None:
    bench = Bench()
    texts = [prompt(index, 3 + index % 5) for index in range(NUM_SESSIONS)]
    for _ in range(6):
        bench.receive([bench.verify(index, text) for index, text in enumerate(texts)])
        for reply in bench.step():
            texts[int.from_bytes(reply.session_id, "big")].append(own_token(reply))
    assert bench.rows == [[3 + index % 5 for index in range(NUM_SESSIONS)], *[[1] * NUM_SESSIONS] * 5]
    for index, text in enumerate(texts):
        assert text == prompt(index, 3 + index % 5) + greedy(TRUTH, prompt(index, 3 + index % 5), 6)


def test_blocks_of_all_lengths_share_a_forward_and_no_row_is_fed_for_padding() -> None:
    """Every row is a token that was not cached: the sum is known beforehand."""
    bench = Bench()
    texts = [prompt(index, 4 + 3 * index) for index in range(NUM_SESSIONS)]
    bench.receive([bench.verify(index, text) for index, text in enumerate(texts)])
    replies = bench.step()
    texts = [[*text, own_token(reply)] for text, reply in zip(texts, replies, strict=True)]
    blocks = [greedy(TRUTH, text, index) for index, text in enumerate(texts)]
    bench.receive([bench.verify(index, text, blocks[index]) for index, text in enumerate(texts)])
    verdicts = [reply.body for reply in bench.step()]
    assert bench.rows == [[4 + 3 * index for index in range(NUM_SESSIONS)], [1 + n for n in range(NUM_SESSIONS)]]
    assert [verdict.num_accepted for verdict in verdicts if isinstance(verdict, Verdict)] == list(range(NUM_SESSIONS))
    logits = [[sequence.num_logits for sequence in plan.sequences] for plan in bench.model.plans]
    assert logits == [[1] * NUM_SESSIONS, [1 + n for n in range(NUM_SESSIONS)]]


def test_new_work_joins_at_the_next_step_and_nobody_waits_for_a_neighbour() -> None:
    """One session more in every step, and one less: each is answered in the step that it came for."""
    bench = Bench()
    texts: dict[int, list[int]] = {}
    for now in range(30):
        texts[now] = prompt(now, 2 + now % 9)
        texts.pop(now - 8, None)
        bench.receive([bench.verify(index, text) for index, text in texts.items()])
        replies = bench.step()
        assert [int.from_bytes(reply.session_id, "big") for reply in replies] == list(texts)
        for reply in replies:
            texts[int.from_bytes(reply.session_id, "big")].append(own_token(reply))
        assert len(bench.model.plans) == now + 1
        assert sorted(bench.rows[-1]) == sorted([1] * (len(texts) - 1) + [2 + now % 9])
    for index, text in texts.items():
        assert text[2 + index % 9 :] == greedy(TRUTH, prompt(index, 2 + index % 9), len(text) - 2 - index % 9)


@pytest.mark.parametrize("max_step_tokens", [8, 32])
def test_prompts_are_prefilled_in_chunks_beside_those_who_decode(max_step_tokens: int) -> None:
    """Decoding rows go first and are answered in every step, however long the prompts are that come meanwhile."""
    bench = Bench(max_step_tokens=max_step_tokens)
    decoding = {index: prompt(index, 2) for index in range(4)}
    bench.receive([bench.verify(index, text) for index, text in decoding.items()])
    answers = bench.step()
    long = [prompt(7, 100), prompt(8, 41)]
    bench.receive([bench.verify(100, long[0]), bench.verify(101, long[1])])
    finished, num_steps = dict[int, int](), 0
    while len(finished) < 2:
        for reply in answers:
            decoding[int.from_bytes(reply.session_id, "big")].append(own_token(reply))
        bench.receive([bench.verify(index, text) for index, text in decoding.items()])
        replies, num_steps = bench.step(), num_steps + 1
        answers = [reply for reply in replies if int.from_bytes(reply.session_id, "big") < 100]
        finished |= {int.from_bytes(r.session_id, "big"): own_token(r) for r in replies if r not in answers}
        assert len(answers) == len(decoding), "a decoding row waited for a prompt"
        assert bench.model.plans[-1].num_rows <= max_step_tokens
    assert num_steps == -(-141 // (max_step_tokens - len(decoding))), "a row was left unused"
    assert finished == {100: greedy(TRUTH, long[0], 1)[0], 101: greedy(TRUTH, long[1], 1)[0]}


@pytest.mark.parametrize("max_step_tokens", [1, 3, 5, 8, 13])
def test_a_block_is_judged_alike_wherever_a_step_ends(max_step_tokens: int) -> None:
    """The rows that give a verdict's logits are fed in one step; a step that has no room for them leaves them all."""
    for length in range(1, 30):
        bench, text = Bench(max_step_tokens=max_step_tokens), prompt(length, length)
        right = greedy(TRUTH, text, 5)
        blocks = [right[:4], [*right[:2], (right[2] + 1) % V, 0], [], [(right[0] + 1) % V]]
        for index, block in enumerate(blocks):
            bench.receive([bench.verify(index, text, block)])
        verdicts: dict[int, Verdict] = {}
        for _ in range(400):
            for reply in bench.step():
                assert isinstance(reply.body, Verdict), reply
                verdicts[int.from_bytes(reply.session_id, "big")] = reply.body
            if not bench.engine.busy:
                break
        assert [(verdicts[i].num_accepted, verdicts[i].next_token) for i in range(4)] == [
            (4, right[4]),
            (2, right[2]),
            (0, right[0]),
            (0, right[0]),
        ]
        tails = 5 + 5  # of the first decoding call and the first prompt
        assert all(plan.num_rows <= max(max_step_tokens, tails) for plan in bench.model.plans)
        sequences = [sequence for plan in bench.model.plans for sequence in plan.sequences]
        assert all(sequence.num_logits <= len(sequence.tokens) for sequence in sequences)


def test_sixteen_proposals_take_as_many_forwards_as_one() -> None:
    """And each step's tokens are there after that step, the last marked as the last."""
    bench = Bench(scripted.draft_engine)
    texts = [prompt(index, 3 + index) for index in range(NUM_SESSIONS)]
    bench.receive([bench.propose(index, text, 1 + index % 4) for index, text in enumerate(texts)])
    drafted: dict[int, list[int]] = {index: [] for index in range(NUM_SESSIONS)}
    for step in range(4):
        replies = bench.step()
        assert len(replies) == sum(index % 4 >= step for index in range(NUM_SESSIONS))
        for reply in replies:
            index = int.from_bytes(reply.session_id, "big")
            assert isinstance(reply.body, Drafted) and reply.body.done == (step == index % 4)
            drafted[index] += reply.body.tokens
    assert not bench.engine.busy and len(bench.model.plans) == 4
    assert drafted == {index: greedy(TRUTH, text, 1 + index % 4) for index, text in enumerate(texts)}


class Device:
    """Keeps what it is handed, and answers when told to."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.streams: list[Hashable] = []

    def submit(self, stream: Hashable, items: Sequence[Item]) -> None:
        if stream not in self.streams:
            self.streams.append(stream)
        self.engine.receive(stream, items)

    def close_stream(self, stream: Hashable) -> None:
        self.engine.close_stream(stream)


async def messages(*batches: Any) -> AsyncIterator[Any]:
    for batch in batches:
        yield batch
    await asyncio.Event().wait()


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_answers_of_a_step_leave_in_one_message_per_stream(role: str) -> None:
    """Messages follow steps, not requests: 16 sessions on two streams are answered by two messages a step."""

    async def scenario() -> None:
        bench = Bench(scripted.target_engine if role == "target" else scripted.draft_engine)
        codec: Any = TargetCodec if role == "target" else DraftCodec
        texts = [prompt(index, 3 + index) for index in range(NUM_SESSIONS)]
        calls = [
            bench.verify(i, text) if role == "target" else bench.propose(i, text, 3) for i, text in enumerate(texts)
        ]
        streams, device = Streams(), Device(bench.engine)
        streams.open(device)
        halves = [messages(codec.request(calls[:8])), messages(codec.request(calls[8:]))]
        served = [streams.serve(half, codec) for half in halves]
        for _ in range(1 if role == "target" else 3):
            answers = [asyncio.ensure_future(anext(stream)) for stream in served]
            await asyncio.sleep(0.01)  # virtual: all that has been sent has arrived
            streams.deliver(bench.engine.step())
            replies = [codec.replies(message) for message in await asyncio.gather(*answers)]
            sent = [[int.from_bytes(reply.session_id, "big") for reply in batch] for batch in replies]
            assert sent == [list(range(8)), list(range(8, 16))]
        for stream in served:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.01)
            assert not waiting.done(), "a message more than there were steps"
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    run_virtual(scenario())
