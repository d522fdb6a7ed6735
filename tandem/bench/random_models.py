"""Models of random weights: of any shape in memory, or as folders with a tokenizer of bytes, for want of real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from tandem.model.attention import ATTENTION
from tandem.model.lean import LeanDecoder
from tandem.model.loaded import LoadedModel

NUM_BYTES = 256
DRAFT_NOISE = 0.06  # of a draft's weights, as a share of their spread: it is then right about half of the time
_models: Any = AutoModelForCausalLM  # Any: transformers has no hints for what is called here
Shape = Mapping[str, Any]  # keywords of LlamaConfig
NO_ENDS: Shape = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
TINY: Shape = {
    "vocab_size": NUM_BYTES,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@dataclass(frozen=True, slots=True)
class RandomModel:
    model: LoadedModel
    weight_bytes: int  # of all linear layers, head included: what every step reads


def random_model(shape: Shape, dtype: torch.dtype, device: str, seed: int = 0) -> RandomModel:
    """A lean decoder built like Llama, made on `device` itself."""
    config = LlamaConfig(**shape, **NO_ENDS)
    torch.manual_seed(seed)
    with torch.device(device):
        module = _models.from_config(config, dtype=dtype, attn_implementation=ATTENTION).eval().requires_grad_(False)
    weights = [part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear)]
    attention = module.model.layers[0].self_attn
    kv_values = 2 * config.num_hidden_layers * attention.k_proj.out_features
    decoder = LeanDecoder(module)
    model = LoadedModel(
        module=decoder,
        name="random",
        fingerprint="",
        dtype=dtype,
        device=device,
        context_length=config.max_position_embeddings,
        end_token_ids=frozenset(),
        head_width=config.vocab_size,
        num_pieces=config.vocab_size,
        vocabulary_hash="",
        kv_bytes_per_token=kv_values * dtype.itemsize,
    )
    return RandomModel(model, sum(weights) * dtype.itemsize)


def save_pair(folder: Path, shape: Shape, dtype: torch.dtype, seed: int = 0) -> tuple[Path, Path]:
    """Folders of a target whose tokens are bytes, and of a draft that is the target with some noise on its weights."""
    config = LlamaConfig(**{**shape, "vocab_size": NUM_BYTES}, **NO_ENDS)
    torch.manual_seed(seed)
    module = _models.from_config(config, dtype=dtype)
    target = _save(module, folder / "random-target")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=DRAFT_NOISE * config.initializer_range)
    return target, _save(module, folder / "random-draft")


def _save(module: Any, folder: Path) -> Path:
    module.save_pretrained(folder)
    _byte_tokenizer().save_pretrained(folder)
    return folder


def _byte_tokenizer() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=backend)
