"""The plan of one forward pass: what every rank of a model runs in a step.

The rows of all sessions lie one after another, without padding:

    token_ids   [ a a a | b | c c c c ]      one row per token fed
    positions   [ 7 8 9 | 3 | 0 1 2 3 ]      index of the token in its sequence

A sequence's `blocks` name its KV blocks in order; token i of the sequence lives in slot
`blocks[i // block_size] * block_size + i % block_size` of every layer's pool. Plain integers throughout, so that a plan
can be sent to other ranks as it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequencePlan:
    tokens: tuple[int, ...]  # fed in this step
    start: int  # position of the first of them; [0, start) is cached
    blocks: tuple[int, ...]  # KV blocks that hold [0, start + len(tokens))
    num_logits: int  # rows wanted, counted from the end of `tokens`


@dataclass(frozen=True, slots=True)
class StepPlan:
    sequences: tuple[SequencePlan, ...]

    @property
    def num_rows(self) -> int:
        return sum(len(sequence.tokens) for sequence in self.sequences)
