"""The ranks of one target model: rank 0 decides, all ranks run the same step plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from tandem.core.plan import StepPlan
from tandem.model.engine import Forward


class Follower(Protocol):
    """A rank other than 0, wherever it runs."""

    def send(self, plan: StepPlan) -> None:
        """Has the rank run `plan`; returns without waiting for it."""
        ...


class Group:
    """Rank 0's model and the ways to the other ranks. The ranks meet in the model's own collectives, not here."""

    def __init__(self, leader: Forward, followers: Sequence[Follower] = ()) -> None:
        self._leader = leader
        self._followers = followers

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Runs `plan` on every rank; rank 0's logits [sum of num_logits, head rows]."""
        for follower in self._followers:
            follower.send(plan)
        return self._leader.forward(plan)
