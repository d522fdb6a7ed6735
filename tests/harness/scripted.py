"""Models without weights: logits are a function of the token ids, which are read back from the model's own KV slots.

So a stale, lost or misplaced cache entry changes the logits, as it would in a transformer, at a thousandth of the cost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draft_worker.drafter import CausalDrafter, Drafter, Drafters, Head
from draft_worker.lookup import LookupDrafter
from tandem.core.blocks import BlockPool
from tandem.core.plan import SequencePlan, StepPlan
from tandem.core.sessions import SessionTable
from tandem.model.engine import Engine, Forward
from target_worker.group import Group
from target_worker.verifier import Verifier

BLOCK_SIZE = 4
NUM_BLOCKS = 512
CONTEXT_LENGTH = 512

LogitsOf = Callable[[Sequence[int]], Tensor]  # the tokens up to and including a position -> logits [V] behind it


def bigram(table: Tensor) -> LogitsOf:
    """Logits [V] = table[last token]; table: float64 [V, V]."""
    return lambda tokens: table[tokens[-1]]


def random_table(vocab_size: int, seed: int, scale: float = 2.0) -> Tensor:
    """Logits of a bigram model, float64 [V, V]."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(vocab_size, vocab_size, generator=generator, dtype=torch.float64)


def whole_history(vocab_size: int, seed: int, mistakes: float = 0.0) -> LogitsOf:
    """One-hot logits that depend on every token so far.

    Two models of one `seed` agree on all but a share `mistakes` of the prefixes, at which this one is wrong.
    """

    def logits(tokens: Sequence[int]) -> Tensor:
        draw = random.Random(f"{seed} {tuple(tokens)}")
        right, is_wrong = draw.randrange(vocab_size), draw.random() < mistakes
        row = torch.zeros(vocab_size, dtype=torch.float64)
        row[(right + is_wrong) % vocab_size] = 5.0
        return row

    return logits


def greedy(logits_of: LogitsOf, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The reference: one token at a time, no cache."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(logits_of(tokens).argmax()))
    return tokens[len(prompt) :]


class ScriptedModel:
    """An engine's model: keeps the id of every token fed in its KV slot, and reads the history from there."""

    def __init__(self, logits_of: LogitsOf, num_blocks: int = NUM_BLOCKS, block_size: int = BLOCK_SIZE) -> None:
        self._logits_of = logits_of
        self._block_size = block_size
        self._slots: list[int] = [-1] * (num_blocks * block_size)
        self.plans: list[StepPlan] = []

    def forward(self, plan: StepPlan) -> Tensor:
        """float64 [sum of num_logits, V]."""
        self.plans.append(plan)
        rows = [row for sequence in plan.sequences for row in self._rows(sequence)]
        return torch.stack(rows) if rows else torch.empty(0, 1, dtype=torch.float64)

    def _rows(self, sequence: SequencePlan) -> list[Tensor]:
        end = sequence.start + len(sequence.tokens)
        slots = [sequence.blocks[i // self._block_size] * self._block_size + i % self._block_size for i in range(end)]
        for slot, token in zip(slots[sequence.start :], sequence.tokens, strict=True):
            self._slots[slot] = token
        history = [self._slots[slot] for slot in slots]
        return [self._logits_of(history[:length]) for length in range(end - sequence.num_logits + 1, end + 1)]


def target_engine(
    model: Forward,
    vocab_size: int,
    clock_ns: Callable[[], int],
    *,
    num_blocks: int = NUM_BLOCKS,
    block_size: int = BLOCK_SIZE,
    context: int = CONTEXT_LENGTH,
    num_embeddings: int | None = None,
    max_step_tokens: int = 512,
) -> Engine:
    """A target worker's engine around any model."""
    verifier = Verifier(num_embeddings or vocab_size, vocab_size, vocab_size, context)
    table = SessionTable(BlockPool(num_blocks, block_size))
    return Engine(Group(model), table, verifier.open_job, max_step_tokens, clock_ns)


def draft_engine(
    model: Forward,
    vocab_size: int,
    clock_ns: Callable[[], int],
    *,
    num_blocks: int = NUM_BLOCKS,
    block_size: int = BLOCK_SIZE,
    context: int = CONTEXT_LENGTH,
    num_embeddings: int | None = None,
    max_step_tokens: int = 512,
) -> Engine:
    """A draft worker's engine around any model; it can look up prompts too."""
    causal = CausalDrafter(num_embeddings or vocab_size, context, Head(vocab_size))
    drafters: list[Drafter] = [causal, LookupDrafter()]
    table = SessionTable(BlockPool(num_blocks, block_size))
    return Engine(model, table, Drafters(drafters).open_job, max_step_tokens, clock_ns)
