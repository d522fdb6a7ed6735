"""The lean decoder computes what transformers' own module computes, with the weights it took over."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ModelError
from tandem.model import lean, lean_linear
from tandem.model.lean import LeanDecoder, fits
from tandem.model.lean_linear import fuse
from tandem.model.load import load_model
from tandem.model.runner import Runner

MakeFolder = Callable[..., Path]
ROPE = {"rope_theta": 10_000.0}
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, one KV head per head": ("llama", {"num_key_value_heads": 4}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, wide heads": ("llama", {"head_dim": 16}),
    "llama, gelu": ("llama", {"hidden_act": "gelu"}),
    "llama, linear": ("llama", {"rope_parameters": ROPE | {"rope_type": "linear", "factor": 4.0}}),
    "llama, dynamic": ("llama", {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 4.0}}),
    "llama, llama3": (
        "llama",
        {
            "rope_parameters": ROPE
            | {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama, yarn": (
        "llama",
        {
            "rope_parameters": ROPE
            | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.2}
        },
    ),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2, some windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "layer_types": LAYERS}),
    "qwen3": ("qwen3", {}),
    "qwen3, biases, tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3, some windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": LAYERS}),
}
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


def randomised(folder: Path, target: Path) -> Path:
    """A copy whose norms and biases are no longer ones and zeros, and whose logits are of ordinary size."""
    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    for path in folder.glob("tokenizer*"):
        (target / path.name).write_bytes(path.read_bytes())
    module.save_pretrained(target)
    return target


def tokens_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(3, 40) for _ in range(length))


A, B, C = tokens_of(1, 50), tokens_of(2, 14), tokens_of(3, 9)
BLOCKS = (tuple(range(13)), (20, 19, 30, 15), (40, 41, 42))
# Prompts, single rows, verifies and a prompt's second chunk, alone and side by side.
STEPS = (
    StepPlan((SequencePlan(A[:40], 0, BLOCKS[0], 40), SequencePlan(B[:6], 0, BLOCKS[1], 1))),
    StepPlan((SequencePlan(A[40:41], 40, BLOCKS[0], 1),)),
    StepPlan((SequencePlan(A[41:47], 41, BLOCKS[0], 6),)),
    StepPlan(
        (
            SequencePlan(A[44:50], 44, BLOCKS[0], 6),
            SequencePlan(B[6:13], 6, BLOCKS[1], 0),
            SequencePlan(C, 0, BLOCKS[2], 2),
        )
    ),
    StepPlan((SequencePlan(B[13:], 13, BLOCKS[1], 1), SequencePlan(C[8:], 8, BLOCKS[2], 1))),
)


def run(folder: Path, dtype: torch.dtype, **options: Any) -> list[Tensor]:
    model = load_model(folder, dtype, "cpu", **options)
    assert isinstance(model.module, LeanDecoder) == options.get("lean", True)
    runner = Runner(model, num_blocks=64, block_size=4)
    return [runner.forward(step) for step in STEPS]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(
    make_folder: MakeFolder, tmp_path: Path, case: str, dtype: torch.dtype
) -> None:
    architecture, overrides = CASES[case]
    folder = randomised(make_folder(architecture, **overrides), tmp_path)
    for own, theirs in zip(run(folder, dtype), run(folder, dtype, lean=False), strict=True):
        size = theirs.abs().max() if len(theirs) else torch.tensor(1.0)
        torch.testing.assert_close(own / size, theirs / size, rtol=0, atol=TOLERANCES[dtype])


def test_bfloat16_runs_on_plain_products(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = randomised(make_folder("qwen3"), tmp_path)
    for own, theirs in zip(run(folder, torch.bfloat16), run(folder, torch.bfloat16, lean=False), strict=True):
        assert (own - theirs).float().norm() <= 0.1 * theirs.float().norm()


@pytest.mark.parametrize("rows", [1, 2, 3, 6, 17, 127, 128, 129, 513])
@pytest.mark.parametrize("kind", ["_mkl_linear", "_mkldnn_linear"])
def test_packed_weights_serve_every_row_count(kind: str, rows: int) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(100, 72), torch.randn(100), torch.randn(rows, 72)
    for given in (None, bias):
        packed = getattr(lean_linear, kind)(weight, given)
        torch.testing.assert_close(packed(x), linear(x, weight, given), rtol=0, atol=1e-4)


def test_packed_weights_serve_views_and_no_rows_at_all() -> None:
    part = nn.Linear(8, 5, bias=False).requires_grad_(False)
    product, x = fuse([part]), torch.randn(3, 16)
    assert product(x[:0, :8]).shape == (0, 5)
    torch.testing.assert_close(product(x[:, 8:]), part(x[:, 8:]))


def test_a_missing_bias_is_zeros_where_others_have_one() -> None:
    parts = [nn.Linear(8, 4), nn.Linear(8, 3, bias=False), nn.Linear(8, 2)]
    x = torch.randn(2, 8)
    with torch.inference_mode():
        torch.testing.assert_close(fuse(parts)(x), torch.cat([part(x) for part in parts], dim=1))


@pytest.mark.parametrize("architecture", ["gemma3_text", "gpt_neox", "gpt2"])
def test_other_architectures_run_through_transformers(make_folder: MakeFolder, architecture: str) -> None:
    assert not isinstance(load_model(make_folder(architecture), torch.float32, "cpu").module, LeanDecoder)


def test_layers_that_are_no_plain_linears_are_left_alone(make_folder: MakeFolder) -> None:
    module: Any = AutoModelForCausalLM.from_pretrained(make_folder("llama"))
    assert fits(module)
    module.model.layers[1].mlp.up_proj = nn.Sequential(module.model.layers[1].mlp.up_proj)
    assert not fits(module)


def test_the_weights_are_not_held_twice(make_folder: MakeFolder) -> None:
    module: Any = AutoModelForCausalLM.from_pretrained(make_folder("llama")).requires_grad_(False)
    taken = [weakref.ref(part) for part in module.model.layers.modules() if isinstance(part, nn.Linear)]
    decoder = LeanDecoder(module)
    gc.collect()
    assert len(taken) == 21
    assert not any(reference() for reference in taken)
    assert [name for name, _ in decoder.named_parameters()] == ["embed_tokens.weight"]


def test_the_fingerprint_names_the_kernels(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(**options: Any) -> str:
        return load_model(make_folder("llama"), torch.float32, "cpu", **options).fingerprint

    prints = {fingerprint(), fingerprint(lean=False)}
    monkeypatch.setattr(lean_linear, "mkl_packs_for_any_rows", lambda: False)
    prints.add(fingerprint())
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    prints.add(fingerprint())
    packs = torch.backends.mkl.is_available()
    assert len(prints) == (4 if packs else 3)


def test_a_decoder_that_strays_from_transformers_is_not_used(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = lean._rotation
    monkeypatch.setattr(lean, "_rotation", lambda cos, sin: plain(cos, -sin))
    with pytest.raises(ModelError, match="other logits"):
        load_model(make_folder("llama"), torch.float64, "cpu")
