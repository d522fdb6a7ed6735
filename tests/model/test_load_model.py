"""What load_model says of a model, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.errors import ModelError
from tandem.model.load import load_model

MakeFolder = Callable[..., Path]


@pytest.fixture
def folder(make_folder: MakeFolder, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(make_folder("llama"), tmp_path / "tiny"))


def fingerprint(folder: Path, dtype: torch.dtype = torch.float64) -> str:
    return load_model(folder, dtype, "cpu").fingerprint


def set_in_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_describes_the_model(folder: Path) -> None:
    set_in_json(folder / "generation_config.json", eos_token_id=[2, 7])
    model = load_model(folder, torch.float64, "cpu")
    assert (model.name, model.context_length, model.head_width, model.num_pieces) == ("tiny", 128, 40, 40)
    assert model.end_token_ids == {2, 7}
    assert model.row_ids is None
    assert not model.module.training


def test_fingerprint_follows_content_not_place(folder: Path, tmp_path: Path) -> None:
    here = fingerprint(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    set_in_json(moved / "config.json", transformers_version="0.0")
    assert fingerprint(moved) == here
    assert fingerprint(moved, torch.float32) != here
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint(moved) != here


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba", "num_hidden_layers": 1, "vocab_size": 40, "hidden_size": 32},
        {"model_type": "bert", "num_hidden_layers": 1, "vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4},
        {"model_type": "bloom", "n_layer": 1, "vocab_size": 40, "hidden_size": 32, "n_head": 4},
        {"model_type": "rwkv", "num_hidden_layers": 2, "vocab_size": 40, "hidden_size": 32},
    ],
    ids=lambda config: str(config["model_type"]),
)
def test_architectures_that_do_not_run_from_a_pool_are_refused(make_folder: MakeFolder, config: dict[str, int]) -> None:
    folder = make_folder(config["model_type"], **{k: v for k, v in config.items() if k != "model_type"})
    with pytest.raises(ModelError, match=str(folder)):
        load_model(folder, torch.float32, "cpu")


def test_an_encoder_decoder_is_refused(folder: Path) -> None:
    set_in_json(folder / "config.json", is_encoder_decoder=True)
    with pytest.raises(ModelError, match="encoder-decoder"):
        load_model(folder, torch.float32, "cpu")


def test_state_outside_the_kv_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An architecture that lets neighbouring rows see one another, as a convolution over the batch does."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: plain(self, x + x.roll(1, dims=1)))
    with pytest.raises(ModelError, match="outside its KV"):
        load_model(folder, torch.float64, "cpu")


def test_an_attention_keyword_not_known_here_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention

    plain = LlamaAttention.forward
    monkeypatch.setattr(LlamaAttention, "forward", lambda *a, **kw: plain(*a, **kw, position_bias=torch.ones(1)))
    with pytest.raises(ModelError, match="position_bias is not supported"):
        load_model(folder, torch.float64, "cpu")


def test_missing_weights_are_named_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(folder, torch.float64, "cpu")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_corrupt_files_give_an_error_that_names_the_folder(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\x07" * 100)
    with pytest.raises(ModelError, match=str(folder)):
        load_model(folder, torch.float64, "cpu")


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load_model(folder, torch.float64, "cpu")
