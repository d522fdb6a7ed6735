"""Tiny random models of several architectures, float64, saved as ordinary model folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY_SIZE = 40
SHAPE = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
GROUPED = SHAPE | {"num_key_value_heads": 2, "head_dim": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen3": GROUPED,
    "mistral": GROUPED | {"sliding_window": 8},
    "gemma3_text": GROUPED
    | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gpt_neox": SHAPE,
    "gpt2": {"vocab_size": VOCABULARY_SIZE, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128},
}

MakeFolder = Callable[..., Path]


def save_model(folder: Path, architecture: str, **overrides: Any) -> Path:
    """A model of seed 0 whose weights are large enough to make every row's logits distinct."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **(ARCHITECTURES.get(architecture, GROUPED) | overrides))
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    module.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCABULARY_SIZE)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> MakeFolder:
    """Saves a model once per architecture and set of overrides."""
    made: dict[str, Path] = {}

    def make(architecture: str, **overrides: Any) -> Path:
        key = f"{architecture} {sorted(overrides.items())}"
        if key not in made:
            made[key] = save_model(tmp_path_factory.mktemp(architecture), architecture, **overrides)
        return made[key]

    return make
