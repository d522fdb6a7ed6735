"""What must come out, computed by hand: softmax, Markov chains, and how often two draws with the same noise agree."""

from __future__ import annotations

import torch
from harness.scripted import random_table
from torch import Tensor

# One position, V = 8. Half of p's mass lies where q has too much (ids 4 to 7), which is what makes a ratio that is too
# generous by 2 % visible: total variation 0.45 between them.
P = torch.tensor([0.30, 0.12, 0.05, 0.03, 0.20, 0.15, 0.10, 0.05], dtype=torch.float64)
Q = torch.tensor([0.02, 0.02, 0.005, 0.005, 0.40, 0.30, 0.17, 0.08], dtype=torch.float64)

# A bigram target and a bigram draft. A row of logits for each last token.
NUM_IDS = 6
TARGET = random_table(NUM_IDS, seed=11, scale=1.3)
DRAFT = TARGET + random_table(NUM_IDS, seed=12, scale=1.1)
# A draft that is wrong more often than not, in the same way whatever the context.
FAR = random_table(NUM_IDS, seed=156, scale=1.0)[:1].expand(NUM_IDS, -1).contiguous()


def softmax(table: Tensor) -> Tensor:
    return torch.softmax(table.double(), dim=-1)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """sum of min(p, q): how often the test of rejection sampling accepts. [..., V] -> [...]."""
    return torch.minimum(p, q).sum(dim=-1)


def agreement(p: Tensor, q: Tensor) -> Tensor:
    """How often argmax(log p + g) = argmax(log q + g): sum_x 1 / sum_y max(p_y / p_x, q_y / q_x). [..., V] -> [...].

    Full supports only (Daliri, Musco, Suresh 2024, theorem 1's scheme; exponential races: the winner of both is x with
    chance 1 / sum_y max(...)).
    """
    ratios = torch.maximum(p[..., None, :] / p[..., :, None], q[..., None, :] / q[..., :, None])
    return (1 / ratios.sum(dim=-1)).sum(dim=-1)


def positions(table: Tensor, last: int, num_tokens: int) -> list[Tensor]:
    """The law of each of the next `num_tokens` tokens of a bigram chain."""
    chain = softmax(table)
    laws = [chain[last]]
    while len(laws) < num_tokens:
        laws.append(laws[-1] @ chain)
    return laws
