"""Prefix reconciliation against a model that keeps what was really fed at each position. Families D42, D43, D55."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tandem.core.prefix import EMPTY_DIGEST, Missing, TokenList, digest_of, reconcile, state_prefix
from tandem.core.types import Prefix

NUM_CHUNKS, CHUNK = 10, 10_000


@dataclass
class Worker:
    """The real token list beside the naive truth: which token each cached position was computed from."""

    tokens: TokenList = field(default_factory=TokenList)
    fed: list[int] = field(default_factory=list)

    def call(self, prefix: Prefix, stated: list[int], rng: random.Random) -> bool:
        """One call; says whether it was taken."""
        before, fed = self.tokens[:], list(self.fed)
        keep = reconcile(self.tokens, len(self.fed), prefix)
        if isinstance(keep, Missing):
            assert self.tokens[:] == before and self.fed == fed
            assert keep.have == (len(before) if prefix.start > len(before) else 0)
            return False
        common = common_length(before, stated)
        assert keep == min(common, len(fed), len(stated) - 1)
        assert self.fed[:keep] == stated[:keep], "a kept position was computed from another token"
        assert self.tokens[:] == stated
        assert self.tokens.digest(len(stated)) == prefix.digest
        self._feed(keep, stated, rng)
        return True

    def _feed(self, keep: int, stated: list[int], rng: random.Random) -> None:
        """Feeds all, or ends early as a cancelled call does; a finished one may append tokens of its own."""
        self.fed = stated[: keep + rng.choice([0, 1, len(stated) - keep, len(stated) - keep])]
        if len(self.fed) == len(stated):
            own = [rng.randrange(3) for _ in range(rng.randrange(4))]
            self.tokens.extend(own)
            self.fed += own[: max(len(own) - rng.randrange(2), 0)]


def common_length(left: list[int], right: list[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


class Caller:
    """Commits tokens, states prefixes, and loses some calls on the way."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.committed = TokenList(rng.choices(range(3), k=rng.randrange(1, 6)))
        self.num_prompt = len(self.committed)
        self.known = 0

    def call(self, worker: Worker) -> None:
        speculated = self.rng.choices(range(3), k=self.rng.randrange(4))
        start = min(self.known, len(self.committed))
        prefix = state_prefix(self.committed, speculated, self.num_prompt, start)
        self.known = len(self.committed)
        if self.rng.random() < 0.2:
            return  # lost on the way, though the caller believes that it was told
        if not worker.call(prefix, self.committed[:] + speculated, self.rng):
            again = state_prefix(self.committed, speculated, self.num_prompt, min(len(worker.tokens), start))
            whole = state_prefix(self.committed, speculated, self.num_prompt, 0)
            stated = self.committed[:] + speculated
            assert worker.call(again, stated, self.rng) or worker.call(whole, stated, self.rng)

    def commit(self) -> None:
        self.committed.extend(self.rng.choices(range(3), k=self.rng.randrange(1, 4)))


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_a_kept_position_was_computed_from_the_stated_token(chunk: int) -> None:
    rng = random.Random(chunk)
    caller, worker = Caller(rng), Worker()
    for _ in range(CHUNK):
        caller.call(worker)
        if rng.random() < 0.6:
            caller.commit()
        if len(caller.committed) > 60:
            caller, worker = Caller(rng), Worker()
        if rng.random() < 0.01:
            worker = Worker()  # evicted, or started anew


def test_two_rejections_with_the_first_redraft_lost_keep_no_wrong_token() -> None:
    """Family D55: the cached length is right, the tokens are not; only comparing ids tells."""
    truth = TokenList([1, 2, 3])
    tokens = TokenList([1, 2, 3, 7, 8, 9])  # the worker drafted 7 8 9
    truth.extend([4])  # first rejection: 4, not 7; the re-draft from 1 2 3 4 is lost
    state_prefix(truth, (), 3, 3)
    truth.extend([5])  # second verdict, decided without a draft
    second = state_prefix(truth, (), 3, 4)  # the caller believes that 1 2 3 4 were told
    assert isinstance(reconcile(tokens, 5, second), Missing), "position 3 holds a 7"
    assert tokens[:] == [1, 2, 3, 7, 8, 9]
    assert reconcile(tokens, 5, state_prefix(truth, (), 3, 0)) == 3
    assert tokens[:] == [1, 2, 3, 4, 5]


def test_the_last_stated_token_is_always_fed_again() -> None:
    """Family D42, D43: rejection, bonus and full acceptance alike."""
    tokens = TokenList([1, 2, 3, 4])
    assert reconcile(tokens, 4, state_prefix(TokenList([1, 2, 3, 4]), (), 1, 0)) == 3
    assert reconcile(tokens, 4, state_prefix(TokenList([1, 2]), (3,), 1, 0)) == 2


def test_a_refused_prefix_changes_nothing() -> None:
    tokens = TokenList([1, 2, 3])
    gap = state_prefix(TokenList([1, 2, 3, 4, 5]), (), 1, 4)
    wrong = Prefix(3, 3, 1, digest_of([9, 9, 9]), 2, (3,))
    assert reconcile(tokens, 3, gap) == Missing(3)
    assert reconcile(tokens, 3, wrong) == Missing(0)
    assert tokens[:] == [1, 2, 3]


def test_digests_depend_on_every_token_and_on_the_order() -> None:
    rng = random.Random(5)
    lists = {tuple(rng.choices(range(300), k=rng.randrange(6))) for _ in range(20_000)}
    assert len({digest_of(tokens) for tokens in lists}) == len(lists)
    assert digest_of([]) == EMPTY_DIGEST
    assert digest_of([0]) != digest_of([0, 0]) != digest_of([])


def test_running_digests_equal_those_from_scratch() -> None:
    rng, tokens, naive = random.Random(6), TokenList(), list[int]()
    for _ in range(500):
        if rng.random() < 0.3:
            cut = rng.randrange(len(naive) + 1)
            tokens.truncate(cut)
            del naive[cut:]
        more = rng.choices(range(1000), k=rng.randrange(4))
        tokens.extend(more)
        naive += more
        assert tokens[:] == naive and len(tokens) == len(naive)
        assert tokens.digest(len(naive)) == digest_of(naive)
