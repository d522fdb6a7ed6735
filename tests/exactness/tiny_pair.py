"""The tiny transformers models: behind real engines over carriers, and as transformers runs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from harness.carriers import PROMPT, DraftCarrier, Misbehaviour, TargetCarrier
from harness.generation import Workers, tiny_engine
from harness.tiny import tiny_folder
from torch import Tensor
from transformers import AutoModelForCausalLM

_NUM_BLOCKS = 512


@cache
def _module(name: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float64).eval()


@torch.inference_mode()
def logits(name: str, tokens: Sequence[Sequence[int]]) -> Tensor:
    """float64 [sequences, length, V]: transformers' own forward pass, no cache."""
    output: Tensor = _module(name)(torch.tensor(tokens), use_cache=False).logits
    return output


def workers(network: Misbehaviour = PROMPT, seed: int = 0, draft: str = "near") -> Workers:
    """Call it with a loop running."""

    def carry(kind: type, role: str, name: str, number: int) -> TargetCarrier | DraftCarrier:
        return kind(lambda: tiny_engine(role, name, _NUM_BLOCKS), network, seed=2 * seed + number)

    return Workers(carry(TargetCarrier, "target", "target", 0), carry(DraftCarrier, "draft", draft, 1))
