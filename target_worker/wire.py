"""A step plan as plain integers, which is how it travels to the other ranks.

    [ number of sequences | tokens, start, blocks, logits, token ids..., block ids... | the next sequence... ]

No pickle: whoever reaches the ranks' port can at worst have them run a wrong step.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.plan import SequencePlan, StepPlan

IDLE: tuple[int, ...] = (0,)  # the empty plan: to be confirmed, not run
STOP: tuple[int, ...] = (-1,)


def encode(plan: StepPlan) -> list[int]:
    """The words of `plan`."""
    words = [len(plan.sequences)]
    for sequence in plan.sequences:
        words += (len(sequence.tokens), sequence.start, len(sequence.blocks), sequence.num_logits)
        words += sequence.tokens
        words += sequence.blocks
    return words


def decode(words: Sequence[int]) -> StepPlan | None:
    """The plan of `words`; None for STOP."""
    if words[0] < 0:
        return None
    sequences, place = [], 1
    for _ in range(words[0]):
        num_tokens, start, num_blocks, num_logits = words[place : place + 4]
        tokens_end = place + 4 + num_tokens
        tokens, blocks = words[place + 4 : tokens_end], words[tokens_end : tokens_end + num_blocks]
        sequences.append(SequencePlan(tuple(tokens), start, tuple(blocks), num_logits))
        place = tokens_end + num_blocks
    return StepPlan(tuple(sequences))
