"""A step plan laid out as tensors: made once per step, read by every layer.

    rows     [ a a a | b | c c c c ]     of the flattened batch
    slots    where each row's key and value go
    spans    per sequence: its rows, and the slots of the positions they may look at

Positions that a sliding window hides from all rows of a sequence are left out of its span, not masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from tandem.core.plan import SequencePlan, StepPlan

MAX_FOLDED_ROWS = 32  # of one sequence: a verify is folded, a prompt is not


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one sequence, and the slots they attend to."""

    rows: slice
    num_rows: int
    slots: slice | Tensor  # a slice where the slots follow one another: then the pool is viewed, not copied
    mask: Tensor | None  # added to the scores, [num_rows, num_slots]; None: the one row sees every slot
    causal: bool  # rows and slots are the same positions, in order: the mask is the causal triangle
    is_folded: bool  # rows are so few that query heads of one KV head are best taken as further rows
    folded_mask: Tensor | None  # then: `mask` once per such head, [group * num_rows, num_slots]


@dataclass(frozen=True)
class RaggedPlan:
    """What one forward pass needs to know, on the model's device."""

    plan: StepPlan
    block_size: int
    dtype: torch.dtype
    token_ids: Tensor  # int64 [1, rows]
    positions: Tensor  # int64 [1, rows]
    slots: Tensor  # int64 [rows]
    logit_rows: Tensor  # int64 [sum of num_logits]
    _spans: dict[tuple[int | None, int], tuple[Span, ...]] = field(default_factory=dict)

    def spans(self, window: int | None, group: int) -> tuple[Span, ...]:
        """One span per sequence, for layers that look back over `window` positions, their own included (None: all),
        and that have `group` query heads per KV head.
        """
        spans = self._spans.get((window, group))
        if spans is None:
            spans = self._spans[window, group] = tuple(self._make_spans(window, group))
        return spans

    def _make_spans(self, window: int | None, group: int) -> list[Span]:
        spans, first_row = [], 0
        for sequence in self.plan.sequences:
            spans.append(self._span(sequence, first_row, window, group))
            first_row += len(sequence.tokens)
        return spans

    def _span(self, sequence: SequencePlan, first_row: int, window: int | None, group: int) -> Span:
        num_rows, device = len(sequence.tokens), self.slots.device
        first = 0 if window is None else max(0, sequence.start - window + 1)
        length = sequence.start + num_rows
        causal = sequence.start == 0 and (window is None or window >= length)
        mask = None if num_rows == 1 else _mask(sequence.start, first, length, window, self.dtype).to(device)
        slots = _span_slots(sequence.blocks, self.block_size, first, length)
        slots = slots if isinstance(slots, slice) else slots.to(device)
        is_folded = num_rows <= MAX_FOLDED_ROWS
        folded_mask = mask.repeat(group, 1) if is_folded and mask is not None else None
        rows = slice(first_row, first_row + num_rows)
        return Span(rows, num_rows, slots, mask, causal, is_folded, folded_mask)


def lay_out(plan: StepPlan, block_size: int, dtype: torch.dtype, device: torch.device) -> RaggedPlan:
    """Raises ValueError where a sequence's blocks do not hold its tokens."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    for sequence in plan.sequences:
        slots += row_slots(sequence, block_size)
        token_ids += sequence.tokens
        positions += range(sequence.start, sequence.start + len(sequence.tokens))
        logit_rows += range(len(token_ids) - sequence.num_logits, len(token_ids))
    rows = torch.tensor([token_ids, positions, slots]).to(device)
    return RaggedPlan(
        plan,
        block_size,
        dtype,
        rows[:1],
        rows[1:2],
        rows[2],
        torch.tensor(logit_rows, device=device, dtype=torch.int64),
    )


def row_slots(sequence: SequencePlan, block_size: int) -> list[int]:
    """Where the keys and values of a sequence's rows go. Raises ValueError where its blocks do not hold its tokens."""
    length = sequence.start + len(sequence.tokens)
    if len(sequence.blocks) * block_size < length:
        raise ValueError(f"{len(sequence.blocks)} blocks of {block_size} do not hold {length} tokens")
    return [sequence.blocks[p // block_size] * block_size + p % block_size for p in range(sequence.start, length)]


def _span_slots(blocks: Sequence[int], block_size: int, first: int, end: int) -> slice | Tensor:
    """Slots of positions [first, end)."""
    used = blocks[first // block_size : -(-end // block_size)]
    offset = first % block_size
    if all(after == before + 1 for before, after in pairwise(used)):
        base = used[0] * block_size + offset
        return slice(base, base + end - first)
    grid = torch.tensor(used)[:, None] * block_size + torch.arange(block_size)
    return grid.flatten()[offset : offset + end - first]


def _mask(start: int, first: int, end: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """[end - start, end - first] of 0 where the row at a position sees a slot's position, else -inf."""
    rows = torch.arange(start, end)[:, None]
    columns = torch.arange(first, end)
    hidden = columns > rows
    if window is not None:
        hidden |= columns <= rows - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
