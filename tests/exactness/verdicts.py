"""Two tokens through the shipped draw() and judge(), end to end, under parameters of every kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from exactness import reference
from exactness.drive import new_call
from exactness.tails import require, require_law
from tandem.core import rules
from tandem.core.prefix import TokenList, state_prefix
from tandem.core.types import Block, Call, Rule, Sampling, Verify

WIDTH = 100  # more than the 64 ids of q that a draft keeps
NUM_PIECES = 97
PROMPT = [1, 2, 40, 2]
_NUM_ALONE = 7  # ids with a cell of their own; the others share one
_GENERATOR = torch.Generator().manual_seed(17)
TARGET = 2.2 * torch.randn(3, WIDTH, generator=_GENERATOR, dtype=torch.float64)
DRAFT = TARGET[:2] + 1.2 * torch.randn(2, WIDTH, generator=_GENERATOR, dtype=torch.float64)

SAMPLINGS = {
    "no parameters": Sampling(),
    "hot": Sampling(temperature=1.6),
    "truncated": Sampling(temperature=1.3, top_k=30, top_p=0.9, min_p=0.03),
    "penalised": Sampling(
        repetition_penalty=1.4, presence_penalty=0.7, frequency_penalty=1.1, logit_bias={3: 2.0, 98: 50.0, 5: -100.0}
    ),
    "all at once": Sampling(
        temperature=0.9,
        top_k=40,
        top_p=0.97,
        min_p=0.01,
        repetition_penalty=1.2,
        frequency_penalty=1.5,
        logit_bias={int(TARGET[0].argmax()): -1.0},
    ),
}


def check(sampling: Sampling, rule: Rule, n: int = 2_000) -> None:
    """The joint law of the first two tokens; most cells belong to the likeliest ids of row 0."""
    call = new_call(rule, sampling, 1, 100)
    call = replace(call, end_token_ids=frozenset({int(TARGET[1].argmax())}), min_tokens=1)
    pairs = Counter(_two_tokens(replace(call, seed=seed)) for seed in range(n))
    law = _joint_law(call)
    likeliest = (law.sum(dim=0) + law.sum(dim=1)).topk(_NUM_ALONE).indices.tolist()
    cell = [likeliest.index(token) if token in likeliest else _NUM_ALONE for token in range(WIDTH)]
    expected = torch.zeros(_NUM_ALONE + 1, _NUM_ALONE + 1, dtype=torch.float64)
    index = torch.tensor(cell)
    expected.index_put_((index[:, None].expand_as(law), index.expand_as(law)), law, accumulate=True)
    counts = torch.zeros_like(expected)
    for (first, second), number in pairs.items():
        require(law[first, second] > 0, f"{rule.name}: {first}, {second} came and cannot")
        counts[cell[first], cell[second]] += number
    require_law(counts, expected, f"{rule.name}, {sampling}")


def _two_tokens(call: Call) -> tuple[int, int]:
    """The first two tokens of an output: a block of two is drafted and judged, what then lacks is sampled plainly."""
    tokens, drawn = list(PROMPT), []
    for row in range(2):
        drawn.append(rules.draw(replace(call, round=1), tokens, len(PROMPT), DRAFT[row : row + 1], NUM_PIECES))
        tokens.append(drawn[-1].token)
    block = Block(tuple(token.token for token in drawn), tuple(q for token in drawn for q in token.q), 1)
    output = _judge(replace(call, round=1), [], block)
    if len(output) < 2:
        output += _judge(replace(call, round=2), output, Block())
    return output[0], output[1]


def _judge(call: Call, output: list[int], block: Block) -> list[int]:
    prefix = state_prefix(TokenList(PROMPT + output), (), len(PROMPT), 0)
    rows = TARGET[len(output) : len(output) + len(block.tokens) + 1]
    verdict = rules.judge(Verify(call, prefix, block), [*PROMPT, *output, *block.tokens], rows, NUM_PIECES)
    return [*block.tokens[: verdict.num_accepted], verdict.next_token]


def _joint_law(call: Call) -> torch.Tensor:
    """[V, V] by the slow reference: the second row is another one for each first token."""
    first = _law(call, [])
    rows = [_law(call, [token]) if p > 0 else [0.0] * WIDTH for token, p in enumerate(first)]
    return torch.tensor(first, dtype=torch.float64)[:, None] * torch.tensor(rows, dtype=torch.float64)


def _law(call: Call, output: list[int]) -> list[float]:
    scores = reference.scored(
        TARGET[len(output)].tolist(), call.sampling, PROMPT, output, NUM_PIECES, call.end_token_ids, call.min_tokens
    )
    return reference.truncated(scores, call.sampling)
