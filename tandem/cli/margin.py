"""Two texts of one prompt and one seed may part where the model itself is undecided, and only there.

A verify of several rows and as many steps of one row differ in the last bits of float32. Where the best two tokens lie
closer together than that, either is the model's answer. "Best" is by logits where the text is greedy, by logits over
temperature plus the seed's noise where it is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MARGIN = 1e-3  # in logits; the two ways of computing them differ by some 1e-5


def fork_position(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The index of the first token in which two outputs differ, or where one of them ends; None if they are equal."""
    if tuple(left) == tuple(right):
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(left), len(right)))


def score_gap(
    folder: Path, context: Sequence[int], candidates: Sequence[int], temperature: float = 0.0, seed: int = 0
) -> float:
    """How far the lowest of `candidates` lies below the best token after `context`, in one float32 forward pass."""
    import torch
    from transformers import AutoModelForCausalLM

    from tandem.core.noise import Purpose, noise_key, uniforms

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    with torch.inference_mode():
        logits = model(torch.tensor([list(context)])).logits[0, -1]
    if temperature > 0:
        key = noise_key(seed, 0, len(context), Purpose.COUPLED)
        exponential = -torch.log1p(-uniforms([key], torch.arange(len(logits)))[0])
        logits = logits.double() / temperature - exponential.log()
    return float(logits.max() - logits[list(candidates)].min())
