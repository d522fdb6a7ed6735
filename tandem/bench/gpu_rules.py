"""The three acceptance rules on a device: from the same seeds the tokens that the CPU gives, in float64.

Twice: whole texts of a tiny pair of models, eagerly and in fixed shapes; and verdicts on rows of a large vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from tandem.bench.random_models import NUM_BYTES, TINY, save_pair
from tandem.core.distributions import UnusableLogits
from tandem.core.plan import SequencePlan, StepPlan
from tandem.core.rules import Drawn, draw, judge
from tandem.core.types import Block, Call, Prefix, Rule, Sampling, Verdict, Verify
from tandem.model.fixed_shapes import Record
from tandem.model.load import load_model
from tandem.model.runner import Runner

SAMPLED = (Sampling(), Sampling(0.8, top_p=0.9), Sampling(0.7, top_k=20, min_p=0.02, repetition_penalty=1.1))
GREEDY = (Sampling(0.0), Sampling(0.0, repetition_penalty=1.1))
PROMPT = tuple(b"The same seeds, the same words.")
NUM_TOKENS = 40
BLOCK_LEN = 4
LARGE_VOCABULARY = 128_256
SEEDS = (1, 2)
_BLOCK_SIZE = 16
_BLOCKS = tuple(range(8))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many results of the device are those of the CPU."""

    rule: str
    what: str
    num_cases: int
    num_equal: int


@dataclass(slots=True)
class _Sequence:
    """One sequence, and what of it a model has cached."""

    runner: Runner
    num_cached: int = 0

    def logits(self, tokens: Sequence[int], num_logits: int) -> Tensor:
        """Of the last rows of `tokens`; what is not cached is fed."""
        start = min(self.num_cached, len(tokens) - num_logits)
        self.num_cached = len(tokens)
        return self.runner.forward(StepPlan((SequencePlan(tuple(tokens[start:]), start, _BLOCKS, num_logits),)))

    def roll_back(self, length: int) -> None:
        self.num_cached = min(self.num_cached, length)


@dataclass(frozen=True, slots=True)
class _Pair:
    target: Runner
    draft: Runner

    @classmethod
    def load(cls, folders: Sequence[Path], device: str, record: Record | None = None) -> _Pair:
        loaded = (load_model(folder, torch.float64, device) for folder in folders)
        return cls(*(Runner(model, len(_BLOCKS), _BLOCK_SIZE, record) for model in loaded))

    def decode(self, call: Call, block_len: int) -> list[int]:
        """A text by the rounds of the coordinator, in turn."""
        tokens = list(PROMPT)
        verifying, proposing = _Sequence(self.target), _Sequence(self.draft)
        while (room := call.max_length - len(tokens)) > 0:
            call, ahead = replace(call, round=call.round + 1), list(tokens)
            drawn = [_draw(call, ahead, proposing) for _ in range(min(block_len, room - 1))]
            verdict = judge(
                _verify(call, len(tokens), drawn), ahead, verifying.logits(ahead, len(drawn) + 1), NUM_BYTES
            )
            tokens = [*ahead[: len(tokens) + verdict.num_accepted], verdict.next_token]
            verifying.roll_back(len(tokens) - 1)
            proposing.roll_back(len(tokens) - 1)
        return tokens


def _draw(call: Call, ahead: list[int], proposing: _Sequence) -> Drawn:
    """The draft's next token, which is put behind `ahead`."""
    drawn = draw(call, ahead, len(PROMPT), proposing.logits(ahead, 1), NUM_BYTES)
    ahead.append(drawn.token)
    return drawn


def _verify(call: Call, length: int, drawn: Sequence[Drawn]) -> Verify:
    block = Block(tuple(each.token for each in drawn), tuple(q for each in drawn for q in each.q), call.round)
    return Verify(call, Prefix(length, length, len(PROMPT), 0, 0, ()), block)


def check_rules(device: str, record: Record, vocabulary: int = LARGE_VOCABULARY) -> Iterator[Agreement]:
    """`record` records steps of fixed shapes on `device`."""
    with TemporaryDirectory(prefix="tandem-random-") as folder:
        folders = save_pair(Path(folder), TINY, torch.float64)
        expected, pairs = _Pair.load(folders, "cpu"), (_Pair.load(folders, device), _Pair.load(folders, device, record))
        for rule in Rule:
            yield _texts(rule, expected, pairs)
            yield _verdicts(rule, device, vocabulary)


def _calls(rule: Rule) -> list[Call]:
    call = Call(bytes(16), 1, 0, rule, len(PROMPT) + NUM_TOKENS)
    samplings = GREEDY if rule is Rule.GREEDY else SAMPLED
    return [replace(call, sampling=sampling, seed=seed) for sampling in samplings for seed in SEEDS]


def _texts(rule: Rule, expected: _Pair, pairs: Sequence[_Pair]) -> Agreement:
    """Speculated on the device; on the CPU plainly, but under rejection, where the draft has a part in the draws."""
    equal = []
    for call in _calls(rule):
        text = expected.decode(call, BLOCK_LEN if rule is Rule.REJECTION else 0)
        equal += [_says(pair, call, text) for pair in pairs]
    return Agreement(rule.name.lower(), "texts", len(equal), sum(equal))


def _says(pair: _Pair, call: Call, text: list[int]) -> bool:
    try:
        return pair.decode(call, BLOCK_LEN) == text
    except UnusableLogits:  # a device that computes nonsense is to be counted, not to end the bench
        return False


def _verdicts(rule: Rule, device: str, vocabulary: int) -> Agreement:
    """On blocks that a draft of nearly the target's logits draws."""
    equal = []
    for number, call in enumerate(_calls(rule)):
        generator = torch.Generator().manual_seed(number)
        p = 3 * torch.randn(BLOCK_LEN + 1, vocabulary, generator=generator)
        q = p + 0.5 * torch.randn(p.shape, generator=generator)
        results = (_drawn_and_judged(call, p.to(where), q.to(where)) for where in ("cpu", device))
        equal.append(next(results) == next(results))
    return Agreement(rule.name.lower(), "verdicts", len(equal), sum(equal))


def _drawn_and_judged(call: Call, p: Tensor, q: Tensor) -> tuple[list[int], Verdict]:
    """The block that is drawn from q, float32 [k + 1, V], and what p of the same shape says of it."""
    tokens, drawn = list(PROMPT), list[Drawn]()
    for row in range(len(q) - 1):
        drawn.append(draw(call, tokens, len(PROMPT), q[row : row + 1], q.shape[1]))
        tokens.append(drawn[-1].token)
    return tokens, judge(_verify(call, len(PROMPT), drawn), tokens, p, p.shape[1])
