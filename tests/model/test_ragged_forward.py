"""The law of the runner: the logits of a ragged step are those of each sequence's own full forward."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tandem.core.plan import SequencePlan, StepPlan
from tandem.model.load import load_model
from tandem.model.runner import Runner

BLOCK_SIZE = 4
ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma3_text", "gpt_neox", "gpt2"]
MakeFolder = Callable[..., Path]


class Twins:
    """A runner, and transformers' own forward of the same weights to hold it against."""

    def __init__(self, folder: Path, reference_attention: str = "sdpa", dtype: torch.dtype = torch.float64) -> None:
        self.model = load_model(folder, dtype, "cpu")
        self.runner = Runner(self.model, num_blocks=64, block_size=BLOCK_SIZE)
        self._reference = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=reference_attention
        ).eval()

    def full(self, tokens: tuple[int, ...]) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = self._reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        return logits

    def assert_step(self, *rows: tuple[tuple[int, ...], int, tuple[int, ...], int], tolerance: float = 1e-9) -> None:
        """Each of `rows`: the whole sequence, where this step starts in it, its blocks, the number of logits."""
        plan = StepPlan(tuple(SequencePlan(tokens[start:], start, blocks, n) for tokens, start, blocks, n in rows))
        wanted = torch.cat([self.full(tokens)[len(tokens) - n :] for tokens, _, _, n in rows])
        torch.testing.assert_close(self.runner.forward(plan), wanted, rtol=0, atol=tolerance)


def tokens_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(3, 40) for _ in range(length))


@pytest.fixture(params=ARCHITECTURES)
def twins(request: pytest.FixtureRequest, make_folder: MakeFolder) -> Twins:
    return Twins(make_folder(request.param))


def test_prefill_decode_and_verify_share_a_step(twins: Twins) -> None:
    a, b, c = tokens_of(1, 25), tokens_of(2, 14), tokens_of(3, 9)
    blocks = (range(0, 7), range(7, 11), range(11, 14))
    a_blocks, b_blocks, c_blocks = (tuple(x) for x in blocks)
    twins.assert_step((a[:20], 0, a_blocks, 20), (b[:13], 0, b_blocks, 1))
    twins.assert_step((a, 20, a_blocks, 5), (b, 13, b_blocks, 1), (c, 0, c_blocks, 3))


def test_a_prompt_in_chunks_equals_the_prompt_at_once(twins: Twins) -> None:
    tokens, blocks = tokens_of(4, 23), tuple(range(6))
    for start, end in [(0, 9), (9, 10), (10, 17), (17, 23)]:
        twins.assert_step((tokens[:end], start, blocks, end - start))


def test_after_a_roll_back_wrong_tokens_leave_no_trace(twins: Twins) -> None:
    right, wrong, blocks = tokens_of(5, 20), tokens_of(6, 20), tuple(range(5))
    twins.assert_step((right[:12] + wrong[12:], 0, blocks, 20))
    twins.assert_step((right[:15], 12, blocks, 3))
    twins.assert_step((right, 15, blocks, 5))


def test_blocks_may_lie_anywhere_in_the_pool(twins: Twins) -> None:
    a, b = tokens_of(7, 18), tokens_of(8, 18)
    a_blocks, b_blocks = (9, 2, 30, 7, 1), (8, 3, 4, 5, 6)
    twins.assert_step((a[:15], 0, a_blocks, 2), (b[:13], 0, b_blocks, 13))
    twins.assert_step((a, 15, a_blocks, 3), (b[:14], 13, b_blocks, 1))


def test_only_wanted_rows_have_logits(twins: Twins) -> None:
    a, b = tokens_of(9, 12), tokens_of(10, 6)
    twins.assert_step((a, 0, (0, 1, 2), 0), (b, 0, (3, 4), 2))
    assert twins.runner.forward(StepPlan((SequencePlan(a[:3], 0, (0,), 0),))).shape == (0, 40)


def test_a_step_is_one_forward_of_the_module(twins: Twins) -> None:
    shapes: list[torch.Size] = []
    twins.model.module.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    a, b = tokens_of(11, 7), tokens_of(12, 4)
    twins.assert_step((a, 0, (0, 1), 1), (b, 0, (2,), 4))
    assert shapes == [torch.Size([1, 11])]
    assert twins.runner.num_forwards == 1


@pytest.mark.parametrize("architecture", ["mistral", "gemma3_text"])
def test_a_window_of_8_hides_what_lies_further_back(make_folder: MakeFolder, architecture: str) -> None:
    twins = Twins(make_folder(architecture))
    tokens, blocks = tokens_of(13, 26), (0, 1, 2, 3, 4, 20, 21)
    twins.assert_step((tokens[:20], 0, blocks, 20))
    twins.assert_step((tokens[:21], 20, blocks, 1))
    twins.assert_step((tokens, 21, blocks, 5))


@pytest.mark.parametrize("architecture", ["gemma2", "gpt_oss"])
def test_soft_capped_scores_and_sinks(make_folder: MakeFolder, architecture: str) -> None:
    """In float32, as transformers computes the softmax of these and the experts of one."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    small = (
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": rope} if architecture == "gpt_oss" else {}
    )
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    twins = Twins(make_folder(architecture, sliding_window=8, layer_types=layers, **small), "eager", torch.float32)
    a, b = tokens_of(14, 24), tokens_of(15, 9)
    twins.assert_step((a[:20], 0, tuple(range(6)), 20), (b[:8], 0, (7, 8, 9), 1), tolerance=1e-4)
    twins.assert_step((a, 20, tuple(range(6)), 4), (b, 8, (7, 8, 9), 1), tolerance=1e-4)


def test_random_steps_over_shared_memory_equal_full_forwards(make_folder: MakeFolder) -> None:
    """60 steps of 1 to 4 sequences, each going on from a random earlier position with new tokens."""
    twins, choice = Twins(make_folder("mistral")), random.Random(16)
    blocks = list(range(40))
    choice.shuffle(blocks)
    owned = [tuple(blocks[8 * i : 8 * i + 8]) for i in range(4)]
    sequences: list[tuple[int, ...]] = [()] * 4
    for step in range(60):
        rows = []
        for index in choice.sample(range(4), choice.randint(1, 4)):
            start = choice.randint(0, min(len(sequences[index]), 24))
            new = tokens_of(1000 * step + index, choice.randint(1, 8))
            sequences[index] = sequences[index][:start] + new
            rows.append((sequences[index], start, owned[index], choice.randint(0, len(new))))
        twins.assert_step(*rows)


def test_blocks_too_few_for_the_tokens_are_refused(make_folder: MakeFolder) -> None:
    twins = Twins(make_folder("llama"))
    with pytest.raises(ValueError, match="do not hold 5 tokens"):
        twins.runner.forward(StepPlan((SequencePlan(tokens_of(17, 5), 0, (0,), 1),)))


def test_kv_bytes_per_token_counts_every_layer(make_folder: MakeFolder) -> None:
    twins = Twins(make_folder("llama"))
    assert twins.runner.kv_bytes_per_token == 3 * 2 * 2 * 8 * 8  # layers, k and v, heads, head_dim, bytes
