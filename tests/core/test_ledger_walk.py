"""Ledger verdicts against a list model. Families A7, A8, D53, H88, H89 (accounting) and D54 (no token twice)."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tandem.core.ledger import Commit, DraftOrder, Ledger
from tandem.core.statistics import Statistics
from tandem.core.stopping import Stopping, StopRules
from tandem.core.types import Block, Drafted, FinishReason, Origin, Verdict

NUM_CHUNKS, CHUNK = 10, 10_000
END = 0


def decode(tokens: object) -> str:
    return ""


class Walk:
    """One request: random orders taken or lost, random verdicts, each compared with plain lists."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.prompt = rng.choices(range(1, 9), k=rng.randrange(1, 5))
        self.max_tokens = rng.randrange(1, 60)
        self.k = rng.randrange(0, 9)
        self.draft_context = rng.choice([None, None, rng.randrange(1, 70)])
        ends = frozenset({END}) if rng.random() < 0.5 else frozenset[int]()
        self.ledger = Ledger(self.prompt, Stopping(StopRules(self.max_tokens, end_token_ids=ends), decode),
                             self.draft_context)  # fmt: skip
        self.ends = ends
        self.output: list[int] = []
        self.rounds: list[int] = []
        self.num_verifies = 0
        self.block, self.ahead = Block(), None

    def step(self) -> Commit:
        """One round; the commit."""
        self.ahead = self.order(self.ledger.ahead_order(self.block, self.k), len(self.block.tokens))
        order = self.ledger.verify_order(self.block, self.ahead)
        if not self.block.tokens:
            self.rounds.append(order.round)
        assert order.ahead_round == (self.ahead.round if self.ahead else None)
        verdict = self.verdict(self.block)
        commit = self.ledger.settle(self.block, verdict)
        self.num_verifies += 1
        self.compare(commit, verdict)
        if commit.ending is None:
            self.block = self.next_block(commit)
        return commit

    def order(self, order: DraftOrder | None, speculated: int) -> DraftOrder | None:
        if order is None:
            return None
        ahead = speculated or order.speculated
        guess = 1 if order.num_tokens > self.k or ahead else 0
        assert 1 <= order.num_tokens <= self.k + 1
        assert order.num_tokens - guess <= self.max_tokens - len(self.output)
        if self.draft_context is not None:
            fed = len(self.prompt) + len(self.output) + len(order.speculated) + order.num_tokens - 1
            assert fed <= self.draft_context
        self.rounds.append(order.round)
        return order

    def verdict(self, block: Block) -> Verdict:
        accepted = self.rng.choice([len(block.tokens), self.rng.randint(0, len(block.tokens))])
        return Verdict(accepted, self.rng.randrange(0, 9))

    def compare(self, commit: Commit, verdict: Verdict) -> None:
        offered = [*self.block.tokens[: verdict.num_accepted], verdict.next_token]
        room = offered[: self.max_tokens - len(self.output)]
        ends_at = next((index for index, token in enumerate(room) if token in self.ends), None)
        expected = room if ends_at is None else room[: ends_at + 1]
        assert commit.offset == len(self.output)
        assert list(commit.tokens) == expected
        assert len(commit.origins) == len(expected) >= 1
        self.output += expected
        assert self.ledger.tokens[:] == self.prompt + self.output
        full = len(self.output) == self.max_tokens
        assert (commit.ending is not None) == (ends_at is not None or full)
        if commit.ending is not None:
            right = FinishReason.END_TOKEN if ends_at is not None else FinishReason.MAX_TOKENS
            assert commit.ending.reason is right
        stands = verdict.num_accepted == len(self.block.tokens) and commit.ending is None
        assert commit.next_token == (verdict.next_token if stands else None)
        self.compare_origins(commit, verdict)

    def compare_origins(self, commit: Commit, verdict: Verdict) -> None:
        if not self.block.tokens:
            assert commit.origins == (Origin.PLAIN,)
            return
        full = verdict.num_accepted == len(self.block.tokens)
        last = Origin.BONUS if full else Origin.CORRECTION
        assert commit.origins == ((Origin.DRAFT,) * verdict.num_accepted + (last,))[: len(commit.tokens)]

    def next_block(self, commit: Commit) -> Block:
        if self.ahead is not None and self.rng.random() < 0.5:
            guess = commit.next_token if commit.next_token is not None else 1
            drafted = self.drafted(self.ahead, guess)
            if drafted.tokens and commit.next_token is not None:
                block = self.ledger.take_ahead(self.ahead, drafted)
                assert block.tokens == drafted.tokens[1 : self.ahead.num_tokens]
                assert block.round == self.ahead.round
                return block
            self.ledger.statistics.ahead_dropped(len(drafted.tokens), True)
        order = self.order(self.ledger.draft_order(self.k), 0)
        if order is None:
            return Block()
        drafted = self.drafted(order, None)
        if not drafted.tokens:
            self.ledger.fell_back("walk")
            return Block()
        return self.ledger.take_block(order, drafted)

    def drafted(self, order: DraftOrder, first: int | None) -> Drafted:
        """Nothing, a prefix, all, or more than was asked for."""
        num_tokens = self.rng.choice([0, self.rng.randint(0, order.num_tokens), order.num_tokens, order.num_tokens + 5])
        tokens = self.rng.choices(range(0, 9), k=num_tokens)
        if first is not None and tokens:
            tokens[0] = first
        return Drafted(tuple(tokens), done=True)


def assert_identities(statistics: Statistics, walk: Walk, commits: list[Commit]) -> None:
    assert statistics.num_verifies == walk.num_verifies == len(commits)
    assert sum(len(commit.tokens) for commit in commits) == len(walk.output) == walk.ledger.num_output_tokens
    assert statistics.num_accepted_tokens <= statistics.num_draft_tokens
    assert statistics.num_accepted_tokens == sum(statistics.num_accepted_per_position)
    assert all(earlier >= later for earlier, later in pairwise(statistics.num_accepted_per_position))
    assert statistics.num_accepted_tokens == sum(commit.origins.count(Origin.DRAFT) for commit in commits)
    cut = sum(1 for commit in commits if commit.origins[-1] is Origin.DRAFT)  # verdicts whose own token was cut off
    assert len(walk.output) == statistics.num_accepted_tokens + statistics.num_verifies - cut
    assert sum(statistics.fallbacks.values()) <= statistics.num_verifies


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_verdicts_commit_what_a_list_model_commits(chunk: int) -> None:
    rng, left = random.Random(chunk), CHUNK
    while left > 0:
        walk, commits = Walk(rng), list[Commit]()
        while not commits or commits[-1].ending is None:
            commits.append(walk.step())
            left -= 1
        assert_identities(walk.ledger.statistics, walk, commits)
        assert len(set(walk.rounds)) == len(walk.rounds), "two attempts share a round number"


def ledger(max_tokens: int = 20, ends: frozenset[int] = frozenset()) -> Ledger:
    return Ledger([1, 2, 3], Stopping(StopRules(max_tokens, end_token_ids=ends), decode))


def test_an_ahead_block_stands_only_behind_a_wholly_accepted_block() -> None:
    block = Block((4, 5), round=1)
    assert ledger().settle(block, Verdict(2, 6)).next_token == 6
    assert ledger().settle(block, Verdict(1, 6)).next_token is None
    assert ledger(max_tokens=3).settle(block, Verdict(2, 6)).next_token is None
    assert ledger().settle(Block(), Verdict(0, 6)).next_token == 6


def test_the_first_token_of_an_ahead_block_is_dropped() -> None:
    book = ledger()
    order = book.ahead_order(Block((4, 5), round=1), 4)
    assert order is not None and order.speculated == (4, 5) and order.num_tokens == 5
    block = book.take_ahead(order, Drafted((6, 7, 8), done=True))
    assert block.tokens == (7, 8) and book.statistics.num_ahead_hits == 1


def test_no_draft_is_ordered_that_could_not_become_final() -> None:
    assert ledger(max_tokens=1).draft_order(4) is None
    assert ledger(max_tokens=3).draft_order(4).num_tokens == 2  # type: ignore[union-attr]
    assert ledger(max_tokens=4).ahead_order(Block((4, 5), round=1), 4) is None
    assert ledger().draft_order(0) is None and ledger().ahead_order(Block(), 0) is None


def test_a_resumed_output_counts_and_may_end_it() -> None:
    book = ledger(max_tokens=5, ends=frozenset({9}))
    assert book.resume([4, 5]).ending is None
    assert book.num_output_tokens == 2 and book.settle(Block(), Verdict(0, 6)).offset == 2
    ended = ledger(max_tokens=5, ends=frozenset({9})).resume([4, 9, 5])
    assert ended.ending is not None and ended.ending.reason is FinishReason.END_TOKEN and ended.offset == 2
    full = ledger(max_tokens=2).resume([4, 5, 6])
    assert full.ending is not None and full.ending.reason is FinishReason.MAX_TOKENS


def test_the_verify_of_the_prompt_is_no_fallback() -> None:
    book = ledger()
    book.fell_back("no_draft")
    assert not book.statistics.fallbacks
    book.settle(Block(), Verdict(0, 6))
    book.fell_back("no_draft")
    assert book.statistics.fallbacks == {"no_draft": 1}
