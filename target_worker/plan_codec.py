"""A step plan as plain integers, which is how it travels to the other ranks.

    [ number of sequences | tokens, start, blocks, logits, token ids..., block ids... | the next sequence... ]

No pickle: whoever reaches the ranks' port can at worst have them run a wrong step.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.plan import SequencePlan, StepPlan

HEARTBEAT = StepPlan(())  # the empty plan: ranks meet in a barrier instead of running it


def encode(plan: StepPlan) -> list[int]:
    """The numbers of `plan`."""
    numbers = [len(plan.sequences)]
    for sequence in plan.sequences:
        numbers += (len(sequence.tokens), sequence.start, len(sequence.blocks), sequence.num_logits)
        numbers += sequence.tokens
        numbers += sequence.blocks
    return numbers


def decode(numbers: Sequence[int]) -> StepPlan:
    """The plan that was encoded as `numbers`."""
    sequences, begin = [], 1
    for _ in range(numbers[0]):
        num_tokens, start, num_blocks, num_logits = numbers[begin : begin + 4]
        tokens_end = begin + 4 + num_tokens
        tokens, blocks = numbers[begin + 4 : tokens_end], numbers[tokens_end : tokens_end + num_blocks]
        sequences.append(SequencePlan(tuple(tokens), start, tuple(blocks), num_logits))
        begin = tokens_end + num_blocks
    return StepPlan(tuple(sequences))
