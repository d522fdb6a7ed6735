"""What a step of the draft and a verify of the target cost, both as the workers run them."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import torch

from tandem.core.plan import SequencePlan, StepPlan
from tandem.distill.acceptance import MAX_BLOCK
from tandem.distill.speedup import Costs
from tandem.model.kv_pool import KVPool
from tandem.model.load import load_model
from tandem.model.loaded import LoadedModel
from tandem.model.runner import run_step

CONTEXT = 128
BLOCK_SIZE = 16
REPEATS = 15


def measure_costs(drafts: list[Path], target: Path, dtype: torch.dtype, device: str) -> list[Costs]:
    """Of each of the folders `drafts`: medians. All take turns, so that whatever else the machine does meets all."""
    whole = load_model(target, dtype, device)
    steps = [_Step(whole, num_rows, device) for num_rows in range(1, MAX_BLOCK + 2)]
    steps += [_Step(load_model(draft, dtype, device, target), 1, device) for draft in drafts]
    times = [[step.time_s() for step in steps] for _ in range(REPEATS + 1)][1:]
    step_s, *others_s = (median(column) for column in zip(*times, strict=True))
    in_steps = [seconds / step_s for seconds in others_s]
    return [Costs(draft_step, tuple(in_steps[:MAX_BLOCK])) for draft_step in in_steps[MAX_BLOCK:]]


class _Step:
    """One sequence of CONTEXT tokens, or as many as the model takes, fed `num_rows` more."""

    def __init__(self, model: LoadedModel, num_rows: int, device: str) -> None:
        context = min(CONTEXT, model.context_length - num_rows)
        blocks = tuple(range(-(-(context + num_rows) // BLOCK_SIZE)))
        self._module, self._device = model.module, device
        self._pool = KVPool(len(blocks) * BLOCK_SIZE)
        self._run(StepPlan((SequencePlan((1,) * context, 0, blocks, 1),)))
        self._plan = StepPlan((SequencePlan((1,) * num_rows, context, blocks, num_rows),))

    def time_s(self) -> float:
        before = time.perf_counter()
        self._run(self._plan)
        return time.perf_counter() - before

    def _run(self, plan: StepPlan) -> None:
        run_step(self._module, self._pool, BLOCK_SIZE, plan)
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)
