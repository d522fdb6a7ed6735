"""The ranks of one target model: rank 0 decides, all ranks run the same step plans."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from tandem.core.plan import StepPlan
from tandem.model.engine import Forward
from target_worker.broadcast import synchronized


class Broadcast(Protocol):
    """The way to the other ranks."""

    def step(self, plan: StepPlan) -> AbstractContextManager[None]:
        """They run `plan` meanwhile."""
        ...


class Group:
    """Rank 0's model, alone or with others. The ranks meet in the model's own collectives, not here."""

    def __init__(self, model: Forward, broadcast: Broadcast | None = None) -> None:
        self._model = model
        self._broadcast = broadcast

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Runs `plan` on every rank; rank 0's logits [sum of num_logits, head rows]."""
        if self._broadcast is None:
            return self._model.forward(plan)
        with self._broadcast.step(plan):
            return synchronized(self._model.forward(plan))
