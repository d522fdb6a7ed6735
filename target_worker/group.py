"""The ranks of one target model: rank 0 decides, all ranks run the same step plans."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from tandem.core.plan import StepPlan
from tandem.model.engine import Forward
from target_worker.line import finish


class Others(Protocol):
    """The way to the other ranks."""

    def step(self, plan: StepPlan) -> AbstractContextManager[None]:
        """They run `plan` meanwhile."""
        ...


class Group:
    """Rank 0's model, alone or with others. The ranks meet in the model's own collectives, not here."""

    def __init__(self, leader: Forward, others: Others | None = None) -> None:
        self._leader = leader
        self._others = others

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Runs `plan` on every rank; rank 0's logits [sum of num_logits, head rows]."""
        if self._others is None:
            return self._leader.forward(plan)
        with self._others.step(plan):
            return finish(self._leader.forward(plan))
