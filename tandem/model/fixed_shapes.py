"""Steps of few rows in a small number of shapes, so that a device can record each shape once and replay it.

A decode or verify step is laid out as a grid in static buffers, of which a shape uses the beginning:

    tokens, positions, slots   [num_sequences, num_rows]     row r of sequence s, filled from the left
    blocks                     [num_sequences, num_blocks]   KV blocks of the sequence

All that depends on more is computed on the device, inside what is recorded. Padding rows hold token 0 at position 0 and
write to a spare slot behind all blocks; padding sequences read that slot, and nobody else does. A column behind a
sequence's last position reads that very position, masked: so no row sees another sequence's keys, not even times zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tandem.core.plan import SequencePlan, StepPlan
from tandem.model.attention import Scores
from tandem.model.kv_pool import KVPool
from tandem.model.lean import LeanDecoder
from tandem.model.ragged import row_slots

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
ROWS = (1, 2, 4, 6, 8, 12, 17)  # a verify of 16 draft tokens feeds 17
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
MAX_ROWS = 256  # of all sequences: beyond that a step computes more than it waits
MAX_COLUMNS = 1 << 17  # of all sequences: keys and values are gathered, a copy of this many positions

Record = Callable[[Callable[[], None]], Callable[[], None]]  # runs some work, and returns what runs it again


class Shape(NamedTuple):
    num_sequences: int
    num_rows: int  # of each sequence
    context: int  # positions that a row may look at

    @property
    def num_cells(self) -> int:
        return self.num_sequences * self.num_rows


def shape_of(plan: StepPlan) -> Shape | None:
    """The smallest shape that holds `plan`; None where there is none, as for prompts."""
    if not plan.sequences:
        return None
    wanted = (
        len(plan.sequences),
        max(len(sequence.tokens) for sequence in plan.sequences),
        max(_length(sequence) for sequence in plan.sequences),
    )
    buckets = (SEQUENCES, ROWS, CONTEXTS)
    found = [next((size for size in sizes if size >= least), 0) for sizes, least in zip(buckets, wanted, strict=True)]
    shape = Shape(*found)
    fits = all(found) and shape.num_cells <= MAX_ROWS and shape.num_sequences * shape.context <= MAX_COLUMNS
    return shape if fits else None


def why_not(module: object) -> str:
    """Why the steps of `module` cannot be recorded; empty where they can."""
    if not isinstance(module, LeanDecoder):
        return "only models that a lean decoder fits have fixed shapes"
    if not module.is_static:
        return "its rotary embedding depends on how long sequences are"
    return ""


class FixedSteps:
    """Runs steps of a lean decoder through recordings, one per shape."""

    def __init__(self, module: LeanDecoder, pool: KVPool, block_size: int, width: int, record: Record) -> None:
        """`pool` has one slot more than its blocks hold, the last, for padding; `width`: columns of the logits."""
        embeddings = module.get_input_embeddings().weight
        self._module, self._pool, self._block_size, self._record = module, pool, block_size, record
        self._num_blocks = (pool.num_slots - 1) // block_size
        most = 3 * MAX_ROWS + MAX_COLUMNS // block_size + SEQUENCES[-1]  # a context's last block may be a part
        self._ids = torch.zeros(most, dtype=torch.int64, device=embeddings.device)
        self._every_row = torch.arange(MAX_ROWS, device=embeddings.device)
        self._logits = embeddings.new_empty(MAX_ROWS, width)
        self._replays: dict[Shape, Callable[[], None]] = {}

    @torch.inference_mode()
    def forward(self, plan: StepPlan, shape: Shape) -> Tensor:
        """As `Runner.forward`, of a plan that `shape` holds."""
        ids = _fill(plan, shape, self._block_size, self._num_blocks)
        self._ids[: len(ids)].copy_(torch.tensor(ids))
        if shape not in self._replays:
            self._replays[shape] = self._record(lambda: self._run(shape))
        self._replays[shape]()
        wanted = torch.tensor(_wanted(plan, shape), dtype=torch.int64)
        return self._logits[wanted.to(self._logits.device)]

    def _run(self, shape: Shape) -> None:
        """What is recorded: from the buffer of ids to that of logits, the same addresses every time."""
        cells, num_blocks = shape.num_cells, -(-shape.context // self._block_size)
        sizes = (cells, cells, cells, shape.num_sequences * num_blocks)
        tokens, positions, slots, blocks = self._ids[: sum(sizes)].split(sizes)
        step = GridStep(shape, self._pool, self._block_size, positions, slots, blocks.view(-1, num_blocks))
        output = self._module(
            input_ids=tokens[None],
            position_ids=positions[None],
            logits_to_keep=self._every_row[:cells],
            tandem_step=step,
        )
        self._logits[:cells] = output.logits[0]


@dataclass(frozen=True, slots=True)
class GridStep:
    """What a lean decoder's layers need to know of a step: stands where `attention.Step` does."""

    shape: Shape
    pool: KVPool
    block_size: int
    positions: Tensor  # int64 [cells]
    slots: Tensor  # int64 [cells]
    blocks: Tensor  # int64 [num_sequences, num_blocks]
    _columns: list[Tensor] = field(default_factory=list)
    _masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None, scores: Scores
    ) -> Tensor:
        """As `attention.Step.attend`, for scores with neither softcap nor sinks."""
        num_sequences, num_rows, context = self.shape
        keys, values = (
            part[self._column_slots()].view(num_sequences, context, *part.shape[1:]).transpose(1, 2)
            for part in self.pool.write(layer, self.slots, key, value)
        )
        group = len(query) // len(key)
        grid = query.view(len(key), group, num_sequences, num_rows, -1).permute(2, 0, 1, 3, 4)
        mask = self._mask(window, group, query.dtype)
        out = scaled_dot_product_attention(grid.flatten(2, 3), keys, values, mask, scale=scores.scale)
        return out.view(*grid.shape[:4], -1).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)

    def _column_slots(self) -> Tensor:
        """The slot of every column: int64 [num_sequences * context]."""
        if not self._columns:
            last = self.positions.view(self.shape[:2]).amax(1, keepdim=True)
            seen = torch.arange(self.shape.context, device=last.device).minimum(last)
            blocks = self.blocks.gather(1, seen // self.block_size)
            self._columns.append((blocks * self.block_size + seen % self.block_size).flatten())
        return self._columns[0]

    def _mask(self, window: int | None, group: int, dtype: torch.dtype) -> Tensor:
        """[num_sequences, 1, group * num_rows, context] of 0 where a row sees a column, else -inf."""
        key = (window, group, dtype)
        if key not in self._masks:
            rows = self.positions.view(self.shape.num_sequences, 1, self.shape.num_rows, 1)
            columns = torch.arange(self.shape.context, device=rows.device)
            hidden = columns > rows
            if window is not None:
                hidden = hidden | (columns <= rows - window)
            mask = torch.zeros(hidden.shape, dtype=dtype, device=rows.device).masked_fill_(hidden, -torch.inf)
            self._masks[key] = mask.repeat(1, 1, group, 1)
        return self._masks[key]


def _length(sequence: SequencePlan) -> int:
    return sequence.start + len(sequence.tokens)


def _fill(plan: StepPlan, shape: Shape, block_size: int, spare_block: int) -> list[int]:
    """Tokens, positions, slots and blocks of the grid. Raises ValueError where blocks do not hold their tokens."""
    num_blocks = -(-shape.context // block_size)
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    blocks: list[int] = []
    for sequence in plan.sequences:
        own = row_slots(sequence, block_size)
        tokens += _padded(sequence.tokens, shape.num_rows, 0)
        positions += _padded(range(sequence.start, _length(sequence)), shape.num_rows, 0)
        slots += _padded(own, shape.num_rows, spare_block * block_size)
        blocks += _padded(sequence.blocks[:num_blocks], num_blocks, spare_block)
    cells, num_entries = shape.num_cells, shape.num_sequences * num_blocks
    return [
        *_padded(tokens, cells, 0),
        *_padded(positions, cells, 0),
        *_padded(slots, cells, spare_block * block_size),
        *_padded(blocks, num_entries, spare_block),
    ]


def _padded(values: Sequence[int], length: int, padding: int) -> list[int]:
    return [*values, *[padding] * (length - len(values))]


def _wanted(plan: StepPlan, shape: Shape) -> list[int]:
    """Cells whose logits the plan wants, in its order."""
    rows: list[int] = []
    for index, sequence in enumerate(plan.sequences):
        end = index * shape.num_rows + len(sequence.tokens)
        rows += range(end - sequence.num_logits, end)
    return rows
