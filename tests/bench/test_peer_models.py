"""The same weights in other engines' forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from harness.tiny import tiny_folder
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tandem.bench.peer_models import float32_gguf, whole_draft

KEPT = torch.tensor([5, 200, 7])


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """The target's own first layer as a folder of draft layers with three rows of the head."""
    folder = tmp_path / "layers"
    folder.mkdir()
    weights = load_file(tiny_folder("target") / "model.safetensors")
    chosen = {name: tensor for name, tensor in weights.items() if ".layers.0." in name or name == "model.norm.weight"}
    save_file({**chosen, "kept_token_ids": KEPT}, folder / "layers.safetensors")
    (folder / "config.json").write_text('{"format": "tandem-draft", "target": "target"}')
    return folder


def test_a_draft_of_layers_becomes_an_ordinary_folder_with_the_full_head(layers: Path, tmp_path: Path) -> None:
    made = whole_draft(layers, tiny_folder("target"), tmp_path / "cache")
    assert whole_draft(layers, tiny_folder("target"), tmp_path / "cache") == made
    draft, target = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (made, tiny_folder("target"))
    )
    assert draft.config.num_hidden_layers == 1 and draft.config.vocab_size == target.config.vocab_size
    target.model.layers = target.model.layers[:1]
    ids = torch.tensor([[1, 2, 3, 250]])
    torch.testing.assert_close(draft(ids, use_cache=False).logits, target(ids, use_cache=False).logits)
    assert (made / "tokenizer.json").exists()


def test_a_whole_model_is_given_as_it_is(tmp_path: Path) -> None:
    assert whole_draft(tiny_folder("near"), tiny_folder("target"), tmp_path) == tiny_folder("near")


def test_a_gguf_file_keeps_its_words_and_its_weights(tmp_path: Path) -> None:
    path, weights = tmp_path / "tiny.gguf", np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_token_list(["a", "é"])
    writer.add_token_types([1, 3])
    packed = quantize(weights, GGMLQuantizationType.Q4_1)
    writer.add_tensor("output.weight", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("norm.weight", weights[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = float32_gguf(path, tmp_path / "cache")
    reader = GGUFReader(made)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert all(tensor.tensor_type == GGMLQuantizationType.F32 for tensor in tensors.values())
    np.testing.assert_array_equal(tensors["output.weight"].data, dequantize(packed, GGMLQuantizationType.Q4_1))
    np.testing.assert_array_equal(tensors["norm.weight"].data, weights[0])
    words = reader.fields["tokenizer.ggml.tokens"].contents()
    assert words == ["a", "é"] and reader.fields["llama.block_count"].contents() == 2
    assert float32_gguf(path, tmp_path / "cache") == made
