"""Tiny random transformers models in float64, with a byte-level tokenizer, saved as ordinary model folders.

Token id = byte value, so every string is reachable and one emoji is four tokens.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.model.load import load_model
from tandem.model.loaded import LoadedModel

CONTEXT_LENGTH = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_tokenizer(permuted: bool = False) -> PreTrainedTokenizerFast:
    """256 ids, one per byte; `permuted` exchanges the ids of "a" and "b"."""
    ids = {_letter(byte): byte for byte in range(256)}
    if permuted:
        ids["a"], ids["b"] = ids["b"], ids["a"]
    backend = Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=CHAT_TEMPLATE)


def _letter(byte: int) -> str:
    """The letter that stands for a byte in a byte-level vocabulary: itself if visible, else one from U+0100 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte if byte in seen else 256 + sum(other not in seen for other in range(byte)))


def save_tiny(
    folder: Path, seed: int, *, vocab_size: int = 256, context: int = CONTEXT_LENGTH, permuted: bool = False
) -> Path:
    """A two-layer Llama with grouped heads, whose logits differ clearly from row to row."""
    torch.manual_seed(seed)
    module = LlamaForCausalLM(_config(vocab_size, context)).to(torch.float64)
    module.save_pretrained(folder)
    byte_tokenizer(permuted).save_pretrained(folder)
    return folder


def save_near(folder: Path, target: Path, noise: float, seed: int = 7) -> Path:
    """The target with noise on its weights: a draft that is right about half of the time."""
    module = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    module.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def _config(vocab_size: int, context: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


@functools.cache
def _cache() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tandem-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


MODELS: dict[str, Callable[[Path], Path]] = {
    "target": lambda folder: save_tiny(folder, seed=0),
    "draft": lambda folder: save_tiny(folder, seed=1),  # agrees with the target by chance alone
    "near": lambda folder: save_near(folder, tiny_folder("target"), noise=0.012),
    "short-context draft": lambda folder: save_tiny(folder, seed=0, context=32),  # the target's weights
    "padded draft": lambda folder: save_tiny(folder, seed=1, vocab_size=272),
    "narrow draft": lambda folder: save_tiny(folder, seed=1, vocab_size=240),
    "permuted draft": lambda folder: save_tiny(folder, seed=1, permuted=True),
}


@functools.cache
def tiny_folder(name: str) -> Path:
    """The folder of one of MODELS, made once per run."""
    return MODELS[name](_cache() / name.replace(" ", "-"))


@functools.cache
def tiny_model(name: str) -> LoadedModel:
    """One of MODELS as the workers load it."""
    return load_model(tiny_folder(name), torch.float64, "cpu")


@functools.cache
def _reference_module(name: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float64).eval()


@functools.cache
def _longest_reference(name: str, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    output = _reference_module(name).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0
    )
    return tuple(output[0, len(prompt) :].tolist())


def reference(prompt: Sequence[int], num_tokens: int, ends: Iterable[int] = (), name: str = "target") -> list[int]:
    """transformers' own greedy continuation, its end token included."""
    tokens = list(_longest_reference(name, tuple(prompt), num_tokens))
    first = next((index for index, token in enumerate(tokens) if token in set(ends)), num_tokens)
    return tokens[: first + 1]
