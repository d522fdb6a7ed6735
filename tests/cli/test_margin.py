"""Where two texts may part: only where the model itself is undecided."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.cli.margin import MARGIN, fork_position, score_gap


@pytest.mark.parametrize(
    ("left", "right", "position"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 3], 1), ([], [1], 0), ([], [], None)],
)
def test_fork_position(left: Sequence[int], right: Sequence[int], position: int | None) -> None:
    assert fork_position(left, right) == position


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in which tokens 3 and 4 have the same logits everywhere."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=12, **sizes))
    with torch.no_grad():
        model.lm_head.weight[4] = model.lm_head.weight[3]
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    return folder


def test_gap_of_the_best_token_and_of_a_tie(model_folder: Path) -> None:
    context = best_at_3(model_folder)
    assert score_gap(model_folder, context, (3, 4)) <= MARGIN
    assert score_gap(model_folder, context, (3, 5)) > MARGIN


def best_at_3(folder: Path) -> list[int]:
    """A context after which token 3 is the best one."""
    model = LlamaForCausalLM.from_pretrained(folder)
    contexts = torch.randint(0, 12, (256, 4))
    with torch.inference_mode():
        best = model(contexts).logits[:, -1].argmax(-1)
    return [int(token) for token in contexts[(best == 3) | (best == 4)][0]]


def test_the_noise_of_a_seed_counts_where_the_text_is_sampled(model_folder: Path) -> None:
    """Under each seed exactly one token is the best one, and seeds differ in which."""

    def winners(seed: int) -> list[int]:
        return [token for token in range(12) if score_gap(model_folder, [1, 2, 3], (token,), 1.0, seed) == 0.0]

    found = [winners(seed) for seed in range(6)]
    assert all(len(best) == 1 for best in found)
    assert len({best[0] for best in found}) > 1
