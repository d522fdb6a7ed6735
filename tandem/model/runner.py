"""Runs step plans: one plan, one forward pass of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tandem.core.plan import StepPlan
from tandem.model.attention import Step
from tandem.model.fixed_shapes import FixedSteps, Record, shape_of
from tandem.model.kv_pool import KVPool
from tandem.model.lean import LeanDecoder
from tandem.model.loaded import LoadedModel
from tandem.model.ragged import lay_out


class Runner:
    """A model and the KV of all sessions that use it. One thread at a time."""

    def __init__(self, model: LoadedModel, num_blocks: int, block_size: int, record: Record | None = None) -> None:
        """`record`: steps of few rows run in fixed shapes, recorded by it; the model is then a static LeanDecoder."""
        self._module = model.module
        self._pool = KVPool(num_blocks * block_size + (record is not None))
        self._fixed: FixedSteps | None = None
        if record is not None:
            assert isinstance(model.module, LeanDecoder)
            self._fixed = FixedSteps(model.module, self._pool, block_size, model.head_width, record)
        self._block_size = block_size
        self.kv_bytes_per_token = model.kv_bytes_per_token
        self.num_forwards = 0

    def forward(self, plan: StepPlan) -> Tensor:
        """Logits of the rows that `plan` wants, in its order: [sum of num_logits, head_width], in the model's dtype.

        What was cached at and behind a sequence's `start` is overwritten. Raises ValueError where a sequence's blocks
        do not hold its tokens; the pool then is as it was.
        """
        shape = shape_of(plan) if self._fixed else None
        if self._fixed and shape:
            logits = self._fixed.forward(plan, shape)
        else:
            logits = run_step(self._module, self._pool, self._block_size, plan)
        self.num_forwards += 1
        return logits


@torch.inference_mode()
def run_step(module: nn.Module, pool: KVPool, block_size: int, plan: StepPlan) -> Tensor:
    """The one forward pass behind `Runner.forward`."""
    parameter = next(module.parameters())
    ragged = lay_out(plan, block_size, parameter.dtype, parameter.device)
    output = module(
        input_ids=ragged.token_ids,
        position_ids=ragged.positions,
        use_cache=False,
        logits_to_keep=ragged.logit_rows,
        tandem_step=Step(ragged, pool),
    )
    logits: Tensor = output.logits[0]
    return logits
