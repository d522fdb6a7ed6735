"""A few layers and the target's embeddings make a draft model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ModelError
from tandem.model.load import load_model
from tandem.model.resolve import resolve
from tandem.model.runner import Runner

KEPT = torch.tensor([2, 39, 5, 17])
PLAN = StepPlan((SequencePlan((4, 9, 30, 11), 0, (0,), 4),))
MakeFolder = Callable[..., Path]


def save_draft(folder: Path, target: Path, kept: Tensor | None = KEPT, **changed: Tensor) -> Path:
    """The first two layers of `target`, and its norm."""
    weights = load_file(target / "model.safetensors")
    wanted = ("model.layers.0.", "model.layers.1.", "model.norm.")
    layers = {name: tensor for name, tensor in weights.items() if name.startswith(wanted)} | changed
    save_file(layers if kept is None else layers | {"kept_token_ids": kept}, folder / "layers.safetensors")
    (folder / "config.json").write_text(json.dumps({"format": "tandem-draft", "target": "tiny"}))
    return folder


def logits(folder: Path, target: Path | None = None) -> Tensor:
    return Runner(load_model(folder, torch.float64, "cpu", target), 4, 8).forward(PLAN)


@pytest.mark.parametrize("tied", [True, False])
def test_the_trimmed_head_is_rows_of_the_full_head(make_folder: MakeFolder, tmp_path: Path, tied: bool) -> None:
    target = make_folder("llama", tie_word_embeddings=tied)
    draft = save_draft(tmp_path, target)
    model = load_model(draft, torch.float64, "cpu", target)
    assert model.row_ids is not None
    assert model.row_ids.tolist() == KEPT.tolist()
    assert model.head_width == 4
    assert model.vocabulary_hash == load_model(target, torch.float64, "cpu").vocabulary_hash
    torch.testing.assert_close(logits(draft, target), reference(target)[:, KEPT], rtol=0, atol=1e-9)


def reference(target: Path) -> Tensor:
    """Logits of `target` with its third layer taken out."""
    model = load_model(target, torch.float64, "cpu", lean=False)
    inner: torch.nn.ModuleList = model.module.model.layers  # type: ignore[assignment, union-attr]
    del inner[2]
    return Runner(model, 4, 8).forward(PLAN)


def test_without_kept_ids_the_head_is_the_targets(make_folder: MakeFolder, tmp_path: Path) -> None:
    target = make_folder("llama")
    draft = save_draft(tmp_path, target, kept=None)
    assert load_model(draft, torch.float64, "cpu", target).row_ids is None
    torch.testing.assert_close(logits(draft, target), reference(target), rtol=0, atol=1e-9)


def test_layer_types_are_those_of_the_layers_kept(make_folder: MakeFolder, tmp_path: Path) -> None:
    target = make_folder("gemma3_text")
    draft = save_draft(tmp_path, target)
    torch.testing.assert_close(logits(draft, target), reference(target)[:, KEPT], rtol=0, atol=1e-9)


def test_weights_of_another_shape_are_named_with_both_shapes(make_folder: MakeFolder, tmp_path: Path) -> None:
    target = make_folder("llama")
    draft = save_draft(tmp_path, target, **{"model.norm.weight": torch.ones(33)})
    with pytest.raises(ModelError, match=r"model\.norm\.weight: shape \(33,\), the target's is \(32,\)"):
        load_model(draft, torch.float64, "cpu", target)


def test_a_tensor_that_the_target_does_not_have_is_named(make_folder: MakeFolder, tmp_path: Path) -> None:
    target = make_folder("llama")
    draft = save_draft(tmp_path, target, **{"model.layers.1.extra.weight": torch.ones(3)})
    with pytest.raises(ModelError, match=r"layers\.1\.extra\.weight: shape \(3,\), the target's is none"):
        load_model(draft, torch.float64, "cpu", target)


@pytest.mark.parametrize("kept", [[1, 1], [40], [-1], []], ids=str)
def test_kept_ids_must_be_distinct_ids_of_the_target(make_folder: MakeFolder, tmp_path: Path, kept: list[int]) -> None:
    target = make_folder("llama")
    draft = save_draft(tmp_path, target, torch.tensor(kept, dtype=torch.int64))
    with pytest.raises(ModelError, match="distinct ids below 40"):
        load_model(draft, torch.float64, "cpu", target)


def test_the_fingerprint_covers_layers_and_target(make_folder: MakeFolder, tmp_path: Path) -> None:
    tied, untied = make_folder("llama", tie_word_embeddings=True), make_folder("llama")
    draft = save_draft(tmp_path, untied)
    prints = {load_model(draft, torch.float64, "cpu", target).fingerprint for target in (tied, untied)}
    save_draft(tmp_path, untied, **{"model.norm.weight": torch.full((32,), 2.0, dtype=torch.float64)})
    prints.add(load_model(draft, torch.float64, "cpu", untied).fingerprint)
    assert len(prints) == 3


def test_layers_without_a_target_are_refused(make_folder: MakeFolder, tmp_path: Path) -> None:
    draft = save_draft(tmp_path, make_folder("llama"))
    assert resolve(str(draft), tmp_path / "cache") == draft
    with pytest.raises(ModelError, match=r"need their target's folder"):
        load_model(draft, torch.float64, "cpu")


def test_corrupt_layers_are_named(make_folder: MakeFolder, tmp_path: Path) -> None:
    target = make_folder("llama")
    draft = save_draft(tmp_path, target)
    (draft / "layers.safetensors").write_bytes(b"\x01" * 64)
    with pytest.raises(ModelError, match=r"layers\.safetensors"):
        load_model(draft, torch.float64, "cpu", target)
