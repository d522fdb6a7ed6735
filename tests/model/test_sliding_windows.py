"""Greedy text of a model with sliding and full layers, in blocks that are partly wrong, is transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.core.plan import SequencePlan, StepPlan
from tandem.model.load import load_model
from tandem.model.runner import Runner

NUM_TOKENS = 40  # five windows of 8
BLOCK_SIZE = 4
MakeFolder = Callable[..., Path]


def reference(folder: Path, prompt: list[int]) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def speculated(runner: Runner, prompt: list[int], oracle: list[int], num_right: int) -> list[int]:
    """Blocks of `num_right` tokens of the oracle and a wrong one, verified and rolled back."""
    tokens, cached = list(prompt), 0
    while len(tokens) < len(prompt) + NUM_TOKENS:
        done = len(tokens) - len(prompt)
        right = oracle[done : done + num_right]
        block = [*right, (oracle[done + len(right)] + 1) % 40] if done + len(right) < NUM_TOKENS else right
        fed = (*tokens[cached:], *block)
        blocks = tuple(range((cached + len(fed)) // BLOCK_SIZE + 1))
        logits = runner.forward(StepPlan((SequencePlan(fed, cached, blocks, len(block) + 1),)))
        best = logits.argmax(-1).tolist()
        accepted = next((i for i, token in enumerate(block) if token != best[i]), len(block))
        cached = len(tokens)
        tokens += best[: accepted + 1]
    return tokens[len(prompt) : len(prompt) + NUM_TOKENS]


@pytest.mark.parametrize("prompt_length", [4, 21])
@pytest.mark.parametrize("num_right", [0, 1, 5])
def test_gemma3_says_what_transformers_says(make_folder: MakeFolder, prompt_length: int, num_right: int) -> None:
    folder = make_folder("gemma3_text")
    prompt = [(7 * i + 3) % 37 + 3 for i in range(prompt_length)]
    wanted = reference(folder, prompt)
    runner = Runner(load_model(folder, torch.float64, "cpu"), num_blocks=64, block_size=BLOCK_SIZE)
    assert len(set(wanted)) > 2
    assert speculated(runner, prompt, wanted, num_right) == wanted
